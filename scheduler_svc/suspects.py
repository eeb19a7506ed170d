"""Sequences that were being computed when an executor failed, and may be why. Pure.

A sequence gets a *strike* for each failure it had a part in, of a step or of the whole executor, and loses them all
with the next token it gets. One strike means little: somebody may have killed the executor, and all it computed with
it. From the second on it is a suspect: no executor runs two of them at once, so that they prove themselves one by one,
and it is tried on another executor if there is one. With the third it ends. So a request that always kills ends alone,
and executors that are killed now and then end nobody.
"""

from collections.abc import Iterable

from scheduler_svc.sequence import Sequence

SUSPICIOUS_STRIKES = 2
MAX_STRIKES = 3


class Suspects:
    """All sequences with strikes."""

    def __init__(self) -> None:
        self._struck: dict[Sequence, None] = {}

    def strike(self, sequence: Sequence, executor: str) -> bool:
        """A failure of an executor that computed it. Returns whether it has to end."""
        sequence.strikes += 1
        sequence.failed_on = executor
        self._struck[sequence] = None
        return sequence.strikes >= MAX_STRIKES

    def acquit(self, sequences: Iterable[Sequence]) -> None:
        """These got a token: it was not they."""
        if not self._struck:
            return
        for sequence in [sequence for sequence in sequences if sequence in self._struck]:
            sequence.strikes, sequence.failed_on = 0, ""
            del self._struck[sequence]

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self._struck.pop(sequence, None)

    def must_wait(self, sequence: Sequence, epoch: int) -> bool:
        """Whether two suspects would run in an epoch at once if this one were admitted."""
        if sequence.strikes < SUSPICIOUS_STRIKES:
            return False
        return any(other.strikes >= SUSPICIOUS_STRIKES and other.epoch == epoch for other in self._struck)
