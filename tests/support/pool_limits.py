"""Which requests a fleet of different pools has to accept, said a second time: docs/scheduling.md in other words."""

from math import inf
from typing import get_args

from common.messages import Task
from common.plan import ExecutorLimits

ENOUGH = 4096  # tokens of an answer: a small pool cuts no default below this
TASKS: tuple[Task, ...] = get_args(Task)


class PoolLimits:
    """What pools are there, and were there a moment ago.

    Args:
        grace_s: how long one that left counts as there, beside others.

    Attributes:
        taking: capacities of the executors that take sequences, by epoch.
    """

    def __init__(self, grace_s: float) -> None:
        self.taking: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._grace_s = grace_s
        self._left: list[tuple[float, int, str]] = []  # when executors left (as `_served_s` says): capacity and name
        self._served_s = 0.0  # how long there was an executor that took sequences
        self._passed_at = 0.0
        self._seen = 0
        self._restored = 0

    @property
    def largest(self) -> int:
        """The capacity of the largest executor that takes sequences, 0 if there is none."""
        return max(self.taking.values(), default=0)

    @property
    def largest_seen(self) -> int:
        """Positions of the largest executor that was ever seen; 0 before the first one was seen in this life."""
        return max(self._seen, self._restored) if self._seen else 0

    @property
    def is_expected(self) -> bool:
        """Whether executors were there, in this life of the scheduler or in an earlier one."""
        return bool(self._seen or self._restored)

    def restored(self, name: str, capacity: int) -> None:
        """An earlier life of the scheduler saw this executor."""
        self._restored = max(self._restored, capacity)
        self._left.append((0.0, capacity, name))

    def joined(self, epoch: int, capacity: int, now: float, name: str = "") -> None:
        """An executor takes sequences."""
        self._pass(now)
        self._names[epoch] = name
        self.taking[epoch] = capacity
        self._seen = max(self._seen, capacity)

    def came_back(self, name: str) -> None:
        """What an executor of this name had before counts no more."""
        self._left = [left for left in self._left if not name or left[2] != name]

    def left(self, epoch: int, now: float) -> None:
        """An executor takes no sequences any more, if it did."""
        self._pass(now)
        if epoch in self.taking:
            self._left.append((self._served_s, self.taking.pop(epoch), self._names[epoch]))

    def limit(self, now: float, late_s: float = 0.0) -> int:
        """Positions that a sequence may need which is accepted now; 0 if any number has to be accepted.

        Args:
            late_s: how long one that left counts as there beyond the grace.
        """
        self._pass(now)
        if not self._seen:
            return 0
        counts_s = self._grace_s + late_s
        return max([self.largest, *(size for at, size, _ in self._left if self._served_s < at + counts_s)])

    def max_tokens(self, num_prompt: int, asked: int, *, may_shorten: bool) -> int:
        """The `max_tokens` that a request has to be accepted with now."""
        rooms = [size - num_prompt for size in self.taking.values() if size > num_prompt]
        if not may_shorten or not rooms:
            return asked
        return min(asked, *(room for room in rooms if room >= min(ENOUGH, max(rooms) / 2)))

    def _pass(self, now: float) -> None:
        self._served_s += (now - self._passed_at) * bool(self.taking)
        self._passed_at = now


class TaskPools:
    """Pools by the tasks of their executors."""

    def __init__(self, grace_s: float) -> None:
        self._limits = {task: PoolLimits(grace_s) for task in TASKS}
        self._grace_s = grace_s
        self._first_at = inf  # when the first executor of all joined

    def of(self, task: Task) -> PoolLimits:
        """Those whose executors take a task."""
        return self._limits[task]

    @property
    def taking(self) -> list[int]:
        """Epochs of executors that take sequences."""
        return sorted({epoch for each in self._limits.values() for epoch in each.taking})

    def has_seen(self, *tasks: Task) -> bool:
        """Whether an executor of one of these tasks was there."""
        return any(self._limits[task].largest_seen for task in tasks)

    def is_unavailable(self, task: Task, now: float) -> bool:
        """Whether a request of a task is refused because no executor of it was there in this life. What generates may
        come before, and for a while beside others."""
        return not self.has_seen(task) and (task != "generate" or now >= self._first_at + self._grace_s)

    def code_of_unavailable(self, task: Task, now: float) -> str:
        """The code of such a request in a first life: whether an executor of its task may still come."""
        is_early = now < self._first_at + self._grace_s
        return "no_executor" if self.has_seen(task) or is_early else "task_not_served"

    def strands(self, task: Task) -> bool:
        """Whether what no executor fits waits beside others: those of its task, or any if none of it is expected."""
        limits = self._limits[task]
        return bool(limits.taking or (not limits.is_expected and self.taking))

    def joined(self, epoch: int, limits: ExecutorLimits, now: float, name: str = "") -> None:
        """An executor takes sequences."""
        self._first_at = min(self._first_at, now)
        for each in self._limits.values():
            each.came_back(name)
        for task in limits.tasks:
            size = min(limits.max_model_len, limits.num_blocks * limits.block_size)
            self._limits[task].joined(epoch, size, now, name)

    def left(self, epoch: int, now: float) -> None:
        """An executor takes no sequences any more, if it did."""
        for each in self._limits.values():
            each.left(epoch, now)
