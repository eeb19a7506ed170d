"""Which executor reads which weights: several that start at once are to read them once, and to keep one copy.

An executor that looks for weights in vain reads them, and brings them. Others that look for the same are told that they
are read, and ask again. If a reader could not bring them, each reads for itself from then on.
"""

from collections import deque
from collections.abc import Mapping

from common import messages as m
from keeper_svc.executor import Executor, Reading
from keeper_svc.shelf import Shelf

READER_TIMEOUT_S = 300.0
MAX_IN_VAIN = 64


class Readers:
    """Chooses readers.

    Args:
        shelf: where weights are kept.
        executors: all that are known, by instance.
    """

    def __init__(self, shelf: Shelf, executors: Mapping[str, Executor]) -> None:
        self._shelf = shelf
        self._executors = executors
        self._in_vain: deque[tuple[m.WeightsKind, str]] = deque(maxlen=MAX_IN_VAIN)

    def must_wait(self, executor: Executor, message: m.FindWeights, now: float) -> bool:
        """Whether an executor, which has found no weights, had better wait for another one; if not, it reads."""
        wanted = (message.kind, message.source)
        if not message.reads or not message.source or wanted in self._in_vain:
            return False
        others = (other.reads for other in self._executors.values() if other is not executor)
        if any(each.wanted == wanted and now - each.since <= READER_TIMEOUT_S for each in others if each is not None):
            return True
        executor.reads = Reading(wanted, now)
        return False

    def end(self, executor: Executor) -> None:
        """An executor does something else: it has brought what it read, or will not."""
        if executor.reads is not None:
            kind, source = executor.reads.wanted
            if self._shelf.find_weights(kind, "", source) is None:
                self._in_vain.append((kind, source))
            executor.reads = None
