"""Sequences that were being computed when an executor failed, and may be why. Pure.

A sequence gets a *strike* for each failure it had a part in, of a step or of the whole executor. It loses them all with
the next token that it gets, or when a chunk of its prompt gets as far as the one that failed: to compute again what was
known proves nothing, and nor does a shorter chunk that stops before the deadly position. One strike means little: the
executor may have been killed from outside, and with it all that it computed. From the second strike on the sequence is
a suspect: it runs alone, with no other sequence in any plan in flight, on another executor if one can take it, and in
turn with the others: one plan for it, one for them. So suspects prove themselves one by one; one that fails alone, and
for the third time in a row, ends. A request that always kills ends, and no other does.
"""

from collections.abc import Iterable, Mapping

from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.sequence import NO_POSITION, Sequence

SUSPICIOUS_STRIKES = 2
MAX_STRIKES = 3


class Suspects:
    """All sequences with strikes, and the position that an answered row has to reach to clear each."""

    def __init__(self) -> None:
        self._ends: dict[Sequence, int] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def strike(self, involved: Mapping[Sequence, int], executor: str) -> list[Sequence]:
        """An executor failed while it computed these sequences, up to these positions.

        Returns:
            Those that have to end.
        """
        for sequence, end in involved.items():
            sequence.strikes += 1
            sequence.failed_on = executor
            self._ends[sequence] = end
        is_proof = len(involved) == 1
        return [sequence for sequence in involved if is_proof and sequence.strikes >= MAX_STRIKES]

    def answered(self, rows: Iterable[tuple[Sequence, int]]) -> None:
        """Rows of these sequences were answered, each of which ends before a position, or brought a token."""
        for sequence, end in rows:
            if end >= self._ends.get(sequence, NO_POSITION):
                sequence.strikes, sequence.failed_on = 0, ""
                self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self._ends.pop(sequence, None)

    def on(self, executor: ExecutorState) -> list[Sequence]:
        """The suspects that hold a lane on an executor, by rank."""
        return [sequence for sequence in executor.running if is_suspect(sequence)] if self._ends else []


def is_suspect(sequence: Sequence) -> bool:
    """Whether it has to run alone."""
    return sequence.strikes >= SUSPICIOUS_STRIKES
