"""The queue of sequences that hold nothing and want to run, by rank."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from scheduler_svc.core.sequence import Sequence


class WaitingQueue:
    """A sorted list: most sequences come in at its end and leave at its head, the preempted go back to their places."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """In the order in which they are to be admitted."""
        return iter(self._sequences)

    def snapshot(self) -> list[Sequence]:
        """All of them, as a list that stays while the queue changes."""
        return self._sequences[:]

    def add(self, sequence: Sequence) -> bool:
        """Put a sequence at its place. Returns whether that is the head."""
        insort(self._sequences, sequence, key=_rank)
        return self._sequences[0] is sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        place = bisect_left(self._sequences, sequence.rank, key=_rank)
        assert self._sequences[place] is sequence, "the sequence does not wait"
        del self._sequences[place]


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank
