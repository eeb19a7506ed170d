"""What the executors of a fleet can run: those that take sequences now, and those that left a moment ago. Pure.

Each task has its own: an executor that does not take a task does not count for it.
"""

from typing import get_args

from common.errors import RequestRejected
from common.messages import SamplingParams, Task
from common.plan import ExecutorLimits
from scheduler_svc.core.sequence import Sequence

POOL_GRACE_S = 60.0  # a sequence waits so long for an executor that can hold it, while others are there
DEFAULT_TOKENS = 4096  # a default `max_tokens` is not cut below this for the sake of a small pool


def capacity(limits: ExecutorLimits) -> int:
    """Positions that one sequence can have on an executor of these limits."""
    return min(limits.max_model_len, limits.num_blocks * limits.block_size)


class TaskCapacities:
    """Which sequences of one task the fleet can hold at their full length.

    What left less than `grace_s` ago counts as there, because executors are restarted and upgraded; and while no
    executor takes sequences, what was seen before counts, because it may come back. Time in which no executor takes
    sequences is not counted, and what an earlier life of the scheduler has seen left when this one began.
    """

    def __init__(self, grace_s: float = POOL_GRACE_S) -> None:
        self.grace_s = grace_s
        self._ready: dict[int, int] = {}  # by epoch
        self._left_at: dict[int, float] = {}  # by capacity, the last time
        self._empty_since = 0.0  # when the last executor left
        self._seen = 0
        self._vocab_size = 0
        self._is_known = False

    @property
    def is_known(self) -> bool:
        """Whether an executor has been seen."""
        return self._is_known

    @property
    def was_seen(self) -> bool:
        """Whether one has been seen in this life of the scheduler or, as far as is known, in an earlier one."""
        return self._seen > 0

    @property
    def ready(self) -> int:
        """The capacity of the most capable executor that takes sequences now, 0 if there is none."""
        return max(self._ready.values(), default=0)

    def joined(self, epoch: int, limits: ExecutorLimits, now: float) -> None:
        """Another executor takes sequences."""
        if not self._is_known:
            self._left_at = {self._seen: now}
        elif not self._ready:
            self._left_at = {size: at + now - self._empty_since for size, at in self._left_at.items()}
        self._is_known = True
        self._ready[epoch] = capacity(limits)
        self._seen = max(self._seen, capacity(limits))
        self._vocab_size = max(self._vocab_size, limits.vocab_size)

    def left(self, epoch: int, now: float) -> None:
        """An executor takes no sequences any more. May be said again."""
        if (gone := self._ready.pop(epoch, None)) is not None:
            self._left_at[gone] = now
            self._empty_since = now

    def has_fitted(self, sequence: Sequence) -> None:
        """An executor that an earlier life of the scheduler has seen could run the sequence."""
        self._seen = max(self._seen, sequence.max_length)
        self._vocab_size = max(self._vocab_size, sequence.largest_token + 1)

    def largest(self, now: float) -> int:
        """Positions that a sequence may have which is accepted now; 0 before the first executor was seen."""
        if not self._is_known:
            return 0
        if not self._ready:
            return self._seen
        self._left_at = {size: at for size, at in self._left_at.items() if now < at + self.grace_s}
        return max(*self._left_at, self.ready, 0)

    def default_max_tokens(self, num_prompt: int, max_tokens: int) -> int:
        """A `max_tokens` that the client left open, so that every ready executor can take the request whose pool holds
        the prompt and `DEFAULT_TOKENS`, or half of what the largest pool leaves for the answer if that is less.

        Otherwise all such requests would wait for the largest executor, and be lost with it.
        """
        room = self.ready - num_prompt
        enough = num_prompt + min(DEFAULT_TOKENS, -(-room // 2))
        fitting = [size for size in self._ready.values() if size >= enough and size > num_prompt]
        return min(max_tokens, min(fitting) - num_prompt) if fitting else max_tokens

    def refusal(self, sequence: Sequence, now: float) -> RequestRejected | None:
        """Why a sequence cannot be accepted now, if so; None before the first executor was seen."""
        return self._refusal(sequence, sequence.max_length, self.largest(now)) if self._is_known else None

    def never_fits(self, sequence: Sequence) -> RequestRejected | None:
        """Why no executor that was ever seen could run the sequence, if so. One with a default needs a single token."""
        least = sequence.num_prompt + 1 if sequence.may_shorten else sequence.max_length
        return self._refusal(sequence, least, self._seen) if self._is_known else None

    def _refusal(self, sequence: Sequence, needed: int, limit: int) -> RequestRejected | None:
        if needed > limit:
            length = f"prompt of {sequence.num_prompt} tokens"
            if not sequence.is_pooled:
                length += f" plus max_tokens {sequence.params.max_tokens} is {sequence.max_length}"
            return RequestRejected(f"{length}, the limit is {limit}", "context_length_exceeded")
        if sequence.largest_token >= self._vocab_size:
            return RequestRejected(
                f"prompt has token id {sequence.largest_token}, the vocabulary ends at {self._vocab_size - 1}"
            )
        return None


class Capacities:
    """What the fleet can hold, by task. See `TaskCapacities`, whose time counts for each task by itself."""

    def __init__(self, grace_s: float = POOL_GRACE_S) -> None:
        self.grace_s = grace_s
        self._by_task: dict[Task, TaskCapacities] = {task: TaskCapacities(grace_s) for task in get_args(Task)}
        self._first_at: float | None = None  # when the first executor of all joined

    def of(self, task: Task) -> TaskCapacities:
        """Those of one task."""
        return self._by_task[task]

    def joined(self, epoch: int, limits: ExecutorLimits, now: float) -> None:
        """Another executor takes sequences."""
        self._first_at = now if self._first_at is None else self._first_at
        for task in limits.tasks:
            self._by_task[task].joined(epoch, limits, now)

    def left(self, epoch: int, now: float) -> None:
        """An executor takes no sequences any more. May be said again."""
        for capacities in self._by_task.values():
            capacities.left(epoch, now)

    def has_fitted(self, sequence: Sequence) -> None:
        """See `TaskCapacities.has_fitted`."""
        self.of(sequence.params.task).has_fitted(sequence)

    def ready_for(self, sequence: Sequence) -> int:
        """The capacity of the most capable executor that takes the sequence's task now, 0 if there is none."""
        return self.of(sequence.params.task).ready

    def has_others(self, sequence: Sequence) -> bool:
        """Whether a sequence that no executor may run waits beside some, and so not for ever: beside those that take
        its task or, if none ever did, any."""
        task = self.of(sequence.params.task)
        return task.ready > 0 or (not task.was_seen and any(each.ready for each in self._by_task.values()))

    def default_max_tokens(self, params: SamplingParams, num_prompt: int) -> int:
        """See `TaskCapacities.default_max_tokens`."""
        return self.of(params.task).default_max_tokens(num_prompt, params.max_tokens)

    def never_fits(self, sequence: Sequence) -> RequestRejected | None:
        """See `TaskCapacities.never_fits`."""
        return self.of(sequence.params.task).never_fits(sequence)

    def refusal(self, sequence: Sequence, now: float) -> RequestRejected | None:
        """Why a sequence cannot be accepted now, if so. One that generates may come before the first executor of its
        task, until the first one of all has been there for `grace_s`: a large model takes longer to load."""
        task = sequence.params.task
        if self._by_task[task].is_known:
            return self._by_task[task].refusal(sequence, now)
        if task == "generate" and (self._first_at is None or now < self._first_at + self.grace_s):
            return None
        return missing(task)


def missing(task: Task) -> RequestRejected:
    """The error of a sequence whose task no executor has taken."""
    return RequestRejected(f"no executor that takes the task {task!r} has been here", "unavailable")
