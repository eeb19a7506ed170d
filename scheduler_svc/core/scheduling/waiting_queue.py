"""The queue of sequences that hold nothing and want to run, by rank, in a list for each group that needs the same of an
executor. So an executor does not look at sequences that it cannot take, however many there are."""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from common.messages import Task
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.scheduling.needs import Needs, able_executors, kinds_of
from scheduler_svc.core.sequence import NO_POSITION, Sequence


class Waiting(NamedTuple):
    """How much waits.

    Attributes:
        sequences, tokens: those that wait, and the tokens that they had when they came.
    """

    sequences: int
    tokens: int


class _Arrival(NamedTuple):
    """When a sequence came to its group, in the caller's seconds, and the tokens that it had then."""

    at: float
    num_tokens: int


@dataclass(slots=True, eq=False)
class Group:
    """Sequences that need the same of an executor.

    Attributes:
        needs: of all of them; positions and vocabulary are rounded up to what some executor has.
        sequences: by rank.
        arrivals: in their order.
        num_tokens: sum of theirs.
        executors: that may run them, in the order in which they joined.
        unfit_at: since when there is none; None if there is one, or the sequences wait for a pool.
    """

    needs: Needs
    sequences: list[Sequence] = field(default_factory=list)
    arrivals: dict[Sequence, _Arrival] = field(default_factory=dict)
    num_tokens: int = 0
    executors: list[ExecutorState] = field(default_factory=list)
    unfit_at: float | None = None

    def split(self, limit: int, size_of: Callable[[Sequence], int]) -> "Group":
        """Move the sequences whose size is not above a limit to another group, which is returned."""
        small = {sequence: arrival for sequence, arrival in self.arrivals.items() if size_of(sequence) <= limit}
        other = Group(self.needs, [s for s in self.sequences if s in small], small, unfit_at=self.unfit_at)
        other.num_tokens = sum(arrival.num_tokens for arrival in small.values())
        self.sequences = [sequence for sequence in self.sequences if sequence not in small]
        self.arrivals = {sequence: at for sequence, at in self.arrivals.items() if sequence not in small}
        self.num_tokens -= other.num_tokens
        return other


class _Sizes:
    """The sizes of one kind that executors have had, for rounding up: most sequences need one that others need too."""

    def __init__(self, name: str, size_of: Callable[[Sequence], int]) -> None:
        self.name = name
        self.size_of = size_of
        self._known: list[int] = []

    def rounded(self, needs: Needs) -> int:
        """The smallest known size that is enough; NO_POSITION if none is."""
        place = bisect_left(self._known, getattr(needs, self.name))
        return self._known[place] if place < len(self._known) else NO_POSITION

    def add(self, size: int) -> bool:
        """Another size. Returns whether it is new."""
        place = bisect_left(self._known, size)
        is_new = place == len(self._known) or self._known[place] != size
        if is_new:
            self._known.insert(place, size)
        return is_new


class WaitingQueue:
    """Sorted lists: most sequences come in at the end and leave at the head, the preempted go back to their places.

    `regroup` has to be called when executors begin or cease to take sequences.

    Args:
        grammars: the library that grammars are compiled with; empty for none.

    Attributes:
        placed_cost: tokens that what waits for each executor is expected to take, by epoch; 0 counts those for which
            that is open.
    """

    def __init__(self, grammars: str = "") -> None:
        self._grammars = grammars
        self._kinds = kinds_of(())
        self._sizes = (
            _Sizes("positions", lambda sequence: sequence.num_positions),
            _Sizes("vocabulary", lambda sequence: sequence.largest_token + 1),
        )
        self._groups: dict[Needs, Group] = {}  # some may be empty
        self._group_of: dict[Sequence, Group] = {}
        self._groups_of: dict[int, list[Group]] = {}  # by epoch
        self._num_of: dict[Task, int] = {}  # sequences
        self.placed_cost: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._group_of

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, by rank. The queue must not change meanwhile."""
        return heapq.merge(*(group.sequences for group in self._groups.values()), key=_rank)

    def num_of(self, task: Task) -> int:
        """How many of one task wait. Kept as a running count."""
        return self._num_of.get(task, 0)

    def executors_for(self, sequence: Sequence) -> list[ExecutorState]:
        """The executors that may run a sequence of the queue, in the order in which they joined."""
        return self._group_of[sequence].executors

    def total(self, *, with_stranded: bool) -> Waiting:
        """How much waits, with or without what no executor may run. Kept as running sums."""
        groups = [group for group in self._groups.values() if with_stranded or group.executors or group.needs.pool]
        return Waiting(sum(len(group.sequences) for group in groups), sum(group.num_tokens for group in groups))

    def awaiting(self, epoch: int) -> list[Sequence]:
        """Those that wait for the pool of an epoch, by rank."""
        return [s for needs, group in self._groups.items() if needs.pool == epoch for s in group.sequences]

    def stranded(self, since: float, others_since: Callable[[Task], float]) -> Iterator[Sequence]:
        """Those that no executor may run, since a time at least, though others take sequences. The caller takes out
        each.

        Args:
            others_since: since when there are others beside the sequences of a task, without a break.
        """
        for needs, group in list(self._groups.items()):
            if group.unfit_at is not None and max(group.unfit_at, others_since(needs.task)) <= since:
                while group.arrivals and next(iter(group.arrivals.values())).at <= since:
                    yield next(iter(group.arrivals))

    def hopeless(self, can_hold: Callable[[Task, int, int], bool]) -> Iterator[Sequence]:
        """Those of a task, with so many positions and such a vocabulary, that `can_hold` denies. The caller takes out
        each."""
        for needs, group in list(self._groups.items()):
            if not (group.executors or needs.pool or can_hold(needs.task, needs.positions, needs.vocabulary)):
                while group.sequences:
                    yield group.sequences[0]

    def heads(self, epoch: int) -> list[Sequence]:
        """Return the first of each group that an executor may run."""
        if not self._group_of:
            return []
        return [group.sequences[0] for group in self._groups_of.get(epoch, ()) if group.sequences]

    def first(self, epoch: int) -> Sequence | None:
        """Return the first in rank of those that an executor may run."""
        heads = self.heads(epoch)
        return min(heads, key=_rank) if len(heads) > 1 else heads[0] if heads else None

    def candidates(self, epoch: int) -> Iterator[Sequence]:
        """The sequences that an executor may run, by rank. The one that was given last may be removed meanwhile."""
        lists = [group.sequences for group in self._groups_of.get(epoch, ())]
        places = [0] * len(lists)
        while heads := [(waiting[places[i]].rank, i) for i, waiting in enumerate(lists) if places[i] < len(waiting)]:
            _, i = min(heads)
            sequence = lists[i][places[i]]
            yield sequence
            places[i] += sequence in self._group_of

    def add(self, sequence: Sequence, now: float) -> None:
        """Put a sequence at its place. `now` never goes back."""
        needs = Needs.of(sequence, self._grammars)
        positions, vocabulary = (sizes.rounded(needs) for sizes in self._sizes)
        needs = needs._replace(positions=positions, vocabulary=vocabulary)
        if (group := self._groups.get(needs)) is None:
            group = self._groups[needs] = Group(needs)
            self._match(group, now)
        insort(group.sequences, sequence, key=_rank)
        arrival = group.arrivals[sequence] = _Arrival(now, len(sequence.tokens))
        group.num_tokens += arrival.num_tokens
        self._group_of[sequence] = group
        self._num_of[needs.task] = self.num_of(needs.task) + 1
        self.placed_cost[sequence.placed] += sequence.cost

    def place(self, sequence: Sequence, epoch: int) -> None:
        """A sequence of the queue waits for an executor from now on; 0 leaves open for which."""
        self._count_down(sequence)
        sequence.placed = epoch
        self.placed_cost[epoch] += sequence.cost

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        group = self._group_of.pop(sequence)
        self._num_of[group.needs.task] -= 1
        self._count_down(sequence)
        group.num_tokens -= group.arrivals.pop(sequence).num_tokens
        place = bisect_left(group.sequences, sequence.rank, key=_rank)
        assert group.sequences[place] is sequence, "the sequence does not wait"
        del group.sequences[place]

    def know(self, positions: int, vocabulary: int) -> None:
        """There is, or was, an executor with so much of both; `regroup` has to follow. Costs sequences only where a
        size is new."""
        for sizes, size in zip(self._sizes, (positions, vocabulary), strict=True):
            if sizes.add(size):
                self._split(sizes, size)

    def regroup(self, executors: Iterable[ExecutorState], now: float) -> None:
        """Other executors take sequences than before; `know` knows the sizes of all. Costs groups times kinds of
        executors."""
        self._kinds = kinds_of(executors)
        self._groups_of = {}
        self._groups = {needs: group for needs, group in self._groups.items() if group.sequences}
        for group in self._groups.values():
            self._match(group, now)

    def _count_down(self, sequence: Sequence) -> None:
        self.placed_cost[sequence.placed] -= sequence.cost
        if not self.placed_cost[sequence.placed]:
            del self.placed_cost[sequence.placed]

    def _match(self, group: Group, now: float) -> None:
        group.executors = able_executors(group.needs, self._kinds)
        for executor in group.executors:
            self._groups_of.setdefault(executor.epoch, []).append(group)
        is_unfit = not (group.executors or group.needs.pool)
        group.unfit_at = None if not is_unfit else now if group.unfit_at is None else group.unfit_at

    def _split(self, sizes: _Sizes, size: int) -> None:
        """Some sequences of the groups that need more than a new size are content with it."""
        following = sizes.rounded(Needs("generate", size + 1, size + 1))
        for group in [g for g in self._groups.values() if getattr(g.needs, sizes.name) == following]:
            other = group.split(size, sizes.size_of)
            other.needs = Needs(**(group.needs._asdict() | {sizes.name: size}))
            self._groups[other.needs] = other
            self._group_of |= dict.fromkeys(other.sequences, other)


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank
