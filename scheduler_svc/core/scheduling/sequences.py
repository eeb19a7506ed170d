"""All sequences from their arrival to their end: which wait, and which run where. Pure.

Every change of a sequence's state goes through here, except for the step from running to completing, which follows from
a plan (`executor_state.py`).
"""

from collections.abc import Iterable, Iterator

import msgspec

from common.errors import RequestRejected, WireError
from common.messages import FinishReason, Submit
from common.wire import int32_array
from scheduler_svc.core.executor.capacity import SeenCapacity
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.scheduling.deadlines import Deadlines
from scheduler_svc.core.scheduling.stats import SchedulerStats
from scheduler_svc.core.scheduling.suspects import MAX_STRIKES, Suspects
from scheduler_svc.core.scheduling.waiting_queue import WaitingQueue
from scheduler_svc.core.sequence import Sequence, State, new_sequences
from scheduler_svc.core.step_output import SequenceEnd


class Sequences:
    """The sequences that have not ended, the queue, and the executors of all live epochs.

    Args:
        max_waiting: sequences that may wait.
        stats: where it counts what it does.

    Attributes:
        executors: by epoch.
        waiting: sequences that hold no lane; for reading.
        suspects: sequences with strikes.
    """

    def __init__(self, max_waiting: int, stats: SchedulerStats) -> None:
        self.executors: dict[int, ExecutorState] = {}
        self.waiting = WaitingQueue()
        self.suspects = Suspects()
        self._open: dict[Sequence, None] = {}
        self._deadlines = Deadlines()
        self._capacity = SeenCapacity()
        self._max_waiting = max_waiting
        self._stats = stats
        self._arrivals = 0

    def __iter__(self) -> Iterator[Sequence]:
        """In the order of their arrival, or of their return from the journal."""
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def knows_capacity(self) -> bool:
        """Whether an executor has been seen."""
        return self._capacity.is_known

    # --- arrivals ---

    def add(self, submit: Submit, now: float) -> list[Sequence]:
        """See `Scheduler.add`."""
        try:
            prompt = int32_array("prompt", submit.prompt)
        except WireError as error:
            raise RequestRejected(str(error)) from error
        if len(prompt) == 0:
            raise RequestRejected("the prompt is empty; it needs at least 1 token")
        if prompt.min() < 0:
            raise RequestRejected(f"prompt has token id {prompt.min()}; ids start at 0")
        deadline = None if submit.timeout_s is None else now + submit.timeout_s
        one = new_sequences(msgspec.structs.replace(submit, n=1), prompt, self._arrivals, deadline)[0]
        if (refusal := self._capacity.refusal(one)) is not None:  # before n copies of the prompt are made
            raise refusal
        if len(self.waiting) + submit.n > self._max_waiting:
            raise RequestRejected(
                f"{len(self.waiting)} sequences are waiting, the limit is {self._max_waiting}", "queue_full"
            )
        sequences = new_sequences(submit, prompt, self._arrivals, deadline)
        self._arrivals += submit.n
        for sequence in sequences:
            self._enter(sequence)
        self._stats.prompt_tokens += len(prompt) * submit.n
        return sequences

    def restore(
        self,
        submit: Submit,
        arrival: int,
        outputs: Iterable[bytes],
        deadline: float | None,
        *,
        place: int | None = None,
        fits: bool,
    ) -> list[Sequence]:
        """See `Scheduler.restore`."""
        sequences = new_sequences(submit, int32_array("prompt", submit.prompt), arrival, deadline, place)
        self._arrivals = max(self._arrivals, arrival + submit.n)
        for sequence, output in zip(sequences, outputs, strict=True):
            sequence.tokens.frombytes(output)
            sequence.largest_token = max(sequence.tokens)
            sequence.num_written = len(sequence.tokens) - 1 if output else 0
            if fits:
                self._capacity.has_fitted(sequence)
            self._enter(sequence)
        return sequences

    # --- moves ---

    def leave_queue(self, sequence: Sequence) -> None:
        """The sequence waits no longer. It may have been the one that an executor refused."""
        self.waiting.remove(sequence)
        self._reopen_executors()

    def preempt(self, executor: ExecutorState, sequence: Sequence) -> None:
        """Take a running sequence's blocks for another one: it waits again, at its place."""
        self._stats.preemptions += 1
        sequence.num_preemptions += 1
        self.requeue(executor, sequence)

    def requeue(self, executor: ExecutorState, sequence: Sequence) -> None:
        """Back to its place among the waiting, with its tokens and without blocks. Its blocks are cached there."""
        executor.leave(sequence)
        sequence.state, sequence.placed = State.WAITING, executor.epoch
        self._join_queue(sequence)

    # --- executors ---

    def add_executor(self, executor: ExecutorState) -> list[SequenceEnd]:
        """An epoch begins. Returns the ends of waiting sequences that turn out never to fit."""
        self.executors[executor.epoch] = executor
        self._capacity.widen(executor.limits)
        refused = [(s, refusal) for s in self.waiting if (refusal := self._capacity.refusal(s)) is not None]
        return [self.end(s, "error", str(refusal), refusal.code) for s, refusal in refused]

    def remove_executor(self, epoch: int) -> list[Sequence]:
        """An epoch is over. Returns the sequences that ran there; they wait again."""
        executor = self.executors.pop(epoch)
        executor.abandon()
        resumed = executor.sequences()
        for sequence in resumed:
            self.requeue(executor, sequence)
        self._stats.resumed += len(resumed)
        return resumed

    # --- ends ---

    def cancel(self, sequences: Iterable[Sequence]) -> list[SequenceEnd]:
        """See `Scheduler.cancel`."""
        return [self.end(s, "cancelled") for s in sequences if s.state is not State.FINISHED]

    def expire(self, now: float) -> list[SequenceEnd]:
        """End what has passed its deadline."""
        late = self._deadlines.passed(now)
        return [self.end(s, "error", "the request's time is up", "deadline_exceeded") for s in late]

    def strike(self, sequences: Iterable[Sequence], executor: str) -> list[SequenceEnd]:
        """An executor failed while it computed these: each gets a strike, and one may end by it."""
        alive = [sequence for sequence in sequences if sequence.state is not State.FINISHED]
        self._stats.strikes += len(alive)
        message = f"{MAX_STRIKES} failures in a row of executors that computed this sequence"
        guilty = self.suspects.strike(alive, executor)
        self._stats.struck_out += len(guilty)
        return [self.end(sequence, "error", message, "internal_error") for sequence in guilty]

    def end(self, sequence: Sequence, reason: FinishReason, error: str = "", code: str = "") -> SequenceEnd:
        """The sequence holds nothing any more, wherever it was (invariant 10)."""
        if sequence.state is State.WAITING:
            self.leave_queue(sequence)
        else:
            self.executors[sequence.epoch].leave(sequence)
        sequence.state = State.FINISHED
        self.suspects.forget(sequence)
        del self._open[sequence]
        return SequenceEnd(sequence, reason, error, code)

    # --- inside ---

    def _enter(self, sequence: Sequence) -> None:
        self._open[sequence] = None
        self._join_queue(sequence)
        self._deadlines.watch(sequence)

    def _join_queue(self, sequence: Sequence) -> None:
        if self.waiting.add(sequence):
            self._reopen_executors()

    def _reopen_executors(self) -> None:
        for executor in self.executors.values():
            executor.reopen()
