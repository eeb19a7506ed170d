"""What a sequence needs of an executor, which executors have it, and what it gives up where none has. Pure.

Sequences that need the same are one group of the queue (`waiting_queue.py`), and executors that offer the same are one
kind. So what an executor's coming or going changes is found by comparing groups with kinds, however many sequences wait
and executors there are.

A sequence that no executor can run gives up, in this order: the model that began its answer, at once; after a grace the
version of its grammar's library; then what a default `max_tokens` has too much; then itself.
"""

from collections.abc import Iterable
from typing import NamedTuple

from common.messages import Task
from scheduler_svc.core.executor.capacity import capacity
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.sequence import Sequence

ANY_LIBRARY, NO_LIBRARY = "any", "none"


class Needs(NamedTuple):
    """What an executor must have to run a sequence.

    Attributes:
        positions: that it has at its full length.
        vocabulary: token ids that there must be: one more than the largest that the sequence has or names.
        model: what computed its answer; empty if it has none. Any will do while no executor has this one.
        library: version of the one that is to mask its tokens; ANY_LIBRARY once it has given that up, NO_LIBRARY if
            frontends have none; empty without a grammar.
        newest: whether it is pooled. Results of two models cannot be compared, so all inputs of a request had better
            get the same one.
        pool: epoch whose pool it waits for: no executor will do then. 0 for none.
    """

    task: Task
    positions: int
    vocabulary: int
    model: str = ""
    library: str = ""
    newest: bool = False
    pool: int = 0

    @classmethod
    def of(cls, sequence: Sequence, grammars: str) -> "Needs":
        """Return the needs of a waiting sequence.

        Args:
            grammars: the library that grammars are compiled with; empty for none.
        """
        library = "" if not sequence.has_grammar else grammars or NO_LIBRARY
        return cls(
            sequence.params.task,
            sequence.num_positions,
            sequence.largest_token + 1,
            sequence.model if sequence.has_answer else "",
            ANY_LIBRARY if library and sequence.takes_any_library else library,
            sequence.is_pooled,
            sequence.awaited,
        )


class Kind(NamedTuple):
    """What an executor offers; see `Needs`, and `Membership.grammars`."""

    tasks: tuple[Task, ...]
    positions: int
    vocabulary: int
    model: str
    library: str

    def has(self, needs: Needs) -> bool:
        """Tell whether it has all that is needed, whatever its model."""
        if needs.task not in self.tasks or needs.positions > self.positions or needs.vocabulary > self.vocabulary:
            return False
        return needs.library in ("", self.library) or (needs.library == ANY_LIBRARY and self.library != "")


Kinds = dict[Kind, list[ExecutorState]]


def kinds_of(executors: Iterable[ExecutorState]) -> Kinds:
    """Executors that take new sequences, in the order in which they joined, by what they offer."""
    kinds: Kinds = {}
    for executor in executors:
        if not executor.is_leaving:
            limits, membership = executor.limits, executor.membership
            kind = Kind(limits.tasks, capacity(limits), limits.vocab_size, membership.model, membership.grammars)
            kinds.setdefault(kind, []).append(executor)
    return kinds


def able_executors(needs: Needs, kinds: Kinds) -> list[ExecutorState]:
    """Those that may run a sequence with these needs, in the order in which they joined."""
    if needs.pool:
        return []
    able = [kind for kind in kinds if kind.has(needs)]
    if needs.model:
        able = [kind for kind in able if kind.model == needs.model] or able
    if needs.newest and able:
        first_epochs: dict[str, int] = {}
        for kind in able:  # that of an older model may have been restarted
            first_epochs[kind.model] = min(kinds[kind][0].epoch, first_epochs.get(kind.model, kinds[kind][0].epoch))
        newest = max(first_epochs, key=first_epochs.__getitem__)
        able = [kind for kind in able if kind.model == newest]
    if len(able) == 1:
        return kinds[able[0]]
    return sorted((executor for kind in able for executor in kinds[kind]), key=lambda executor: executor.epoch)
