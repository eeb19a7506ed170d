"""The queue of sequences that hold nothing and want to run, by rank, in a list for each set of executors that may run
them. So an executor does not look at sequences that it cannot take, however many there are."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import NamedTuple

from common.messages import Task
from scheduler_svc.core.sequence import Sequence

Epochs = tuple[int, ...]


class Waiting(NamedTuple):
    """How much waits.

    Attributes:
        sequences, tokens: those that wait, and the tokens that they had when they came.
    """

    sequences: int
    tokens: int


class WaitingQueue:
    """Sorted lists: most sequences come in at the end and leave at the head, the preempted go back to their places.

    Args:
        epochs_for: the executors that may run a sequence, by their epochs. It has to give the same for a sequence until
            `regroup` is called.
    """

    def __init__(self, epochs_for: Callable[[Sequence], Epochs]) -> None:
        self._epochs_for = epochs_for
        self._lists: dict[Epochs, list[Sequence]] = {}
        self._epochs: dict[Sequence, Epochs] = {}
        self._tokens: dict[Sequence, int] = {}  # as they are counted in `_sums`; more may arrive meanwhile
        self._sums: dict[Epochs, int] = {}  # tokens of each list
        self._num_of: dict[Task, int] = {}  # sequences

    def __len__(self) -> int:
        return len(self._epochs)

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, by rank. The queue must not change meanwhile."""
        return heapq.merge(*self._lists.values(), key=_rank)

    def num_of(self, task: Task) -> int:
        """How many of one task wait. Kept as a running count."""
        return self._num_of.get(task, 0)

    def epochs_for(self, sequence: Sequence) -> Epochs:
        """The executors that may run a sequence of the queue."""
        return self._epochs[sequence]

    def total(self, *, with_stranded: bool) -> Waiting:
        """How much waits, with or without what no executor may run. Kept as a running sum."""
        sequences, tokens = len(self._epochs), sum(self._sums.values())
        if with_stranded:
            return Waiting(sequences, tokens)
        return Waiting(sequences - len(self.stranded()), tokens - self._sums.get((), 0))

    def stranded(self) -> list[Sequence]:
        """Those that no executor may run, by rank."""
        return self._lists.get((), [])

    def candidates(self, epoch: int) -> Iterator[Sequence]:
        """The sequences that an executor may run, by rank. The one that was given last may be removed meanwhile."""
        lists = [waiting for epochs, waiting in self._lists.items() if epoch in epochs]
        places = [0] * len(lists)
        while heads := [(waiting[places[i]].rank, i) for i, waiting in enumerate(lists) if places[i] < len(waiting)]:
            _, i = min(heads)
            sequence = lists[i][places[i]]
            yield sequence
            places[i] += sequence in self._epochs

    def add(self, sequence: Sequence) -> bool:
        """Put a sequence at its place. Returns whether that is the head of a list."""
        epochs = self._epochs_for(sequence)
        waiting = self._lists.setdefault(epochs, [])
        insort(waiting, sequence, key=_rank)
        self._epochs[sequence] = epochs
        self._num_of[sequence.params.task] = self.num_of(sequence.params.task) + 1
        tokens = self._tokens[sequence] = len(sequence.tokens)
        self._sums[epochs] = self._sums.get(epochs, 0) + tokens
        return waiting[0] is sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        epochs = self._epochs.pop(sequence)
        self._num_of[sequence.params.task] -= 1
        waiting = self._lists[epochs]
        self._sums[epochs] -= self._tokens.pop(sequence)
        place = bisect_left(waiting, sequence.rank, key=_rank)
        assert waiting[place] is sequence, "the sequence does not wait"
        del waiting[place]
        if not waiting:
            del self._lists[epochs], self._sums[epochs]

    def regroup(self) -> None:
        """Other executors may run the sequences than before."""
        everyone = list(self)
        self._lists, self._epochs, self._tokens, self._sums, self._num_of = {}, {}, {}, {}, {}
        for sequence in everyone:
            self.add(sequence)


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank
