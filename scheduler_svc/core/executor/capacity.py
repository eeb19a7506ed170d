"""What the executors of a fleet can run: those that take sequences now, and those that left a moment ago. Pure.

Each task has its own: an executor that does not take a task does not count for it.
"""

from collections import OrderedDict
from collections.abc import Iterable
from math import inf
from typing import NamedTuple, get_args

from common.errors import RequestRejected, TaskMissing
from common.messages import Task
from common.plan import ExecutorLimits
from scheduler_svc.core.sequence import Sequence

POOL_GRACE_S = 60.0  # a sequence waits so long for an executor that can hold it, while others are there
MAX_NAMES = 1024  # of executors that the journal remembers
DEFAULT_TOKENS = 4096  # a default `max_tokens` is not cut below this for the sake of a small pool


def capacity(limits: ExecutorLimits) -> int:
    """Positions that one sequence can have on an executor of these limits."""
    return min(limits.max_model_len, limits.num_blocks * limits.block_size)


class Capacity(NamedTuple):
    """What one executor can hold.

    Attributes:
        positions: of one sequence.
        vocabulary: token ids that it has.
    """

    tasks: tuple[Task, ...]
    positions: int
    vocabulary: int

    @classmethod
    def of(cls, limits: ExecutorLimits) -> "Capacity":
        """That of an executor with these limits."""
        return cls(limits.tasks, capacity(limits), limits.vocab_size)


class TaskCapacities:
    """Which sequences of one task the fleet can hold at their full length.

    An executor that left less than `grace_s` ago counts as there, by its name, because executors are restarted and
    upgraded; one that comes back with less counts with that. While no executor takes sequences, all that were there
    before count, because they may come back, and time in which none does is not counted. Executors that an earlier life
    of the scheduler has seen left when this one began.
    """

    def __init__(self, grace_s: float = POOL_GRACE_S) -> None:
        self.grace_s = grace_s
        self._ready: dict[int, tuple[str, int]] = {}  # by epoch: name and positions
        self._left: dict[str, tuple[int, float]] = {}  # by name: positions, and when the last one left
        self._empty_since = 0.0  # when the last executor left
        self._seen = 0
        self._vocab_size = 0
        self.ready_since = inf  # since when, without a break, some executor takes sequences; infinite while none does
        self._is_known = False

    @property
    def is_known(self) -> bool:
        """Whether an executor has been seen in this life of the scheduler."""
        return self._is_known

    @property
    def seen(self) -> int:
        """The capacity of the most capable executor that was seen, in this life of the scheduler or an earlier one."""
        return self._seen

    @property
    def ready(self) -> int:
        """The capacity of the most capable executor that takes sequences now, 0 if there is none."""
        return max((positions for _, positions in self._ready.values()), default=0)

    def remember(self, name: str, known: Capacity) -> None:
        """An earlier life of the scheduler has seen this executor."""
        self._left[name] = max(known.positions, self._left.get(name, (0, 0.0))[0]), 0.0
        self._see(known)

    def joined(self, epoch: int, name: str, known: Capacity, now: float) -> None:
        """Another executor takes sequences."""
        if not self._ready:
            self.ready_since = now
            pause_s = now - self._empty_since
            self._left = {left: (positions, at + pause_s) for left, (positions, at) in self._left.items()}
        self._is_known = True
        self._ready[epoch] = name, known.positions
        self._see(known)

    def came_back(self, name: str) -> None:
        """What an executor of this name had when it left counts no more."""
        self._left.pop(name, None)

    def left(self, epoch: int, now: float) -> None:
        """An executor takes no sequences any more. May be said again."""
        if epoch in self._ready:
            self._forget(now)
            name, positions = self._ready.pop(epoch)
            self.ready_since = self.ready_since if self._ready else inf
            self._left[name] = max(positions, self._left.get(name, (0, 0.0))[0]), now
            self._empty_since = now

    def names(self, now: float) -> set[str]:
        """Executors that left, and still count as there."""
        self._forget(now)
        return set(self._left)

    def largest(self, now: float) -> int:
        """Positions that a sequence may have which is accepted now; 0 before the first executor was seen."""
        if not self._is_known:
            return 0
        self._forget(now)
        return max(self.ready, *(positions for positions, _ in self._left.values()), 0)

    def _forget(self, now: float) -> None:
        """Executors that left too long ago count no more."""
        if self._ready:
            self._left = {name: left for name, left in self._left.items() if now < left[1] + self.grace_s}

    def _see(self, known: Capacity) -> None:
        self._seen = max(self._seen, known.positions)
        self._vocab_size = max(self._vocab_size, known.vocabulary)

    def default_max_tokens(self, num_prompt: int, max_tokens: int) -> int:
        """A `max_tokens` that the client left open, so that every ready executor can take the request whose pool holds
        the prompt and `DEFAULT_TOKENS`, or half of what the largest pool leaves for the answer if that is less.

        Otherwise all such requests would wait for the largest executor, and be lost with it.
        """
        room = self.ready - num_prompt
        enough = num_prompt + min(DEFAULT_TOKENS, -(-room // 2))
        fitting = [size for _, size in self._ready.values() if size >= enough and size > num_prompt]
        return min(max_tokens, min(fitting) - num_prompt) if fitting else max_tokens

    def can_hold(self, positions: int, vocabulary: int) -> bool:
        """Whether any executor that was ever seen could; also before one was."""
        return not self._is_known or (positions <= self._seen and vocabulary <= self._vocab_size)

    def objection(self, sequence: Sequence, needed: int, limit: int) -> RequestRejected | None:
        """Return why a sequence that needs so many positions cannot be run where there are at most so many; None if it
        can, and before the first executor was seen."""
        if not self._is_known:
            return None
        if needed > limit:
            length = f"prompt of {sequence.num_prompt} tokens"
            if not sequence.is_pooled:
                length += f" plus max_tokens {sequence.params.max_tokens} needs {sequence.num_positions} positions"
            return RequestRejected(f"{length}, the limit is {limit}", "context_length_exceeded")
        if sequence.largest_token >= self._vocab_size:
            return RequestRejected(
                f"prompt has token id {sequence.largest_token}, the vocabulary ends at {self._vocab_size - 1}"
            )
        return None


class Capacities:
    """What the fleet can hold, by task. See `TaskCapacities`, whose time counts for each task by itself.

    Args:
        task_grace_s: how long after the first executor of all others may come that take a task which none has taken.
    """

    def __init__(self, grace_s: float = POOL_GRACE_S, task_grace_s: float = POOL_GRACE_S) -> None:
        self.grace_s = grace_s
        self._task_grace_s = task_grace_s
        self._taken: set[Task] = set()  # in this life of the scheduler, or an earlier one
        self._by_task: dict[Task, TaskCapacities] = {task: TaskCapacities(grace_s) for task in get_args(Task)}
        self._there: dict[int, tuple[str, Capacity]] = {}  # by epoch
        self._lost: OrderedDict[str, Capacity] = OrderedDict()  # those that left, though not in order, and may return
        self._first_at: float | None = None  # when the first executor of all joined

    def of(self, task: Task) -> TaskCapacities:
        """Those of one task."""
        return self._by_task[task]

    @property
    def taken(self) -> tuple[Task, ...]:
        """Tasks that executors have taken, in this life of the scheduler or an earlier one."""
        return tuple(task for task in get_args(Task) if task in self._taken)

    def remember_taken(self, tasks: Iterable[Task]) -> None:
        """Executors took these tasks in an earlier life of the scheduler."""
        self._taken.update(tasks)

    def may_come(self, task: Task, now: float) -> bool:
        """Whether an executor of a task may come, or come back: one was here, or the first executor of all has not been
        here for long; a large model takes longer to load."""
        return task in self._taken or self._is_early(now)

    def remember(self, name: str, known: Capacity) -> None:
        """An earlier life of the scheduler has seen this executor."""
        self._lost[name] = known
        self._taken.update(known.tasks)
        for task in known.tasks:
            self._by_task[task].remember(name, known)

    def known(self, now: float) -> dict[str, Capacity]:
        """What those can hold that are there, or may come back, by name; at most MAX_NAMES."""
        counting = {name for each in self._by_task.values() for name in each.names(now)}
        self._lost = OrderedDict((name, known) for name, known in self._lost.items() if name in counting)
        everyone = dict(self._lost) | dict(self._there.values())
        return dict([*everyone.items()][-MAX_NAMES:])

    def joined(self, epoch: int, name: str, known: Capacity, now: float) -> None:
        """Another executor takes sequences."""
        self._first_at = now if self._first_at is None else self._first_at
        self._there[epoch] = name, known
        self._taken.update(known.tasks)
        self._lost.pop(name, None)
        for task, capacities in self._by_task.items():
            capacities.came_back(name)
            if task in known.tasks:
                capacities.joined(epoch, name, known, now)

    def left(self, epoch: int, now: float, *, in_order: bool) -> None:
        """An executor takes no sequences any more. May be said again; the first time counts."""
        if (gone := self._there.pop(epoch, None)) is not None and not in_order:
            self._lost[gone[0]] = gone[1]
        for capacities in self._by_task.values():
            capacities.left(epoch, now)

    def others_since(self, task: Task) -> float:
        """Since when, without a break, a sequence of a task that no executor may run waits beside some, and so not for
        ever: beside those that take the task or, if none ever did, any. Infinite while there are none."""
        own = self.of(task)
        return own.ready_since if own.seen else min(each.ready_since for each in self._by_task.values())

    def can_hold(self, task: Task, positions: int, vocabulary: int) -> bool:
        """See `TaskCapacities.can_hold`."""
        return self.of(task).can_hold(positions, vocabulary)

    def refusal(self, sequence: Sequence, now: float) -> RequestRejected | None:
        """Why a sequence cannot be accepted now, if so. One that generates may come before the first executor of its
        task, as long as the first one of all has not been there for long."""
        task = sequence.params.task
        if (capacities := self._by_task[task]).is_known:
            return capacities.objection(sequence, sequence.num_positions, capacities.largest(now))
        return None if task == "generate" and self._is_early(now) else self.missing(task, now)

    def missing(self, task: Task, now: float) -> TaskMissing:
        """The error of a sequence whose task no executor takes, and none has taken in this life of the scheduler."""
        return TaskMissing(task, may_come=self.may_come(task, now))

    def _is_early(self, now: float) -> bool:
        return self._first_at is None or now < self._first_at + self._task_grace_s
