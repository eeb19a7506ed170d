"""All sequences, from their request to their end. Pure: no socket, clock, thread or log, so that a fuzzer can drive it.

A sequence has so many tokens, known or in flight, and so many of them in its blocks; a step grants some of the
difference (vLLM V1's unified count), so prefill, chunked prefill and decode are one thing. The engine calls `add`,
`cancel`, `plan` and `commit` and tells which executors come and go; `planner.py` says what a plan is made of.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from common.errors import RequestRejected, WireError
from common.messages import FinishReason, Plan, StepResult, Submit
from common.plan import parse_result
from common.wire import int32_array
from scheduler_svc.core.executor.block_manager import HashFunction, hash_block
from scheduler_svc.core.executor.capacity import Capability
from scheduler_svc.core.executor.executor_state import Worker
from scheduler_svc.core.executor.memory_forecast import OutputHistory
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.outcomes import SchedulerStats, SequenceEnd, StepOutput
from scheduler_svc.core.scheduling.assignments import Assignments
from scheduler_svc.core.scheduling.deadlines import Deadlines
from scheduler_svc.core.scheduling.placement import place
from scheduler_svc.core.scheduling.planner import MAX_PREEMPTIONS, PlacementRule, Planner
from scheduler_svc.core.scheduling.suspects import MAX_STRIKES, Suspects
from scheduler_svc.core.sequence import Sequence, State, new_sequences


@dataclass(frozen=True)
class SchedulerConfig:
    """How the scheduler works.

    Attributes:
        window: plans in flight to one executor.
        max_waiting: sequences that may wait; a request beyond is refused (`queue_full`).
        look_ahead: whether admission asks what memory running sequences will still take, and not only what is free.
    """

    window: int = 2
    max_waiting: int = 4096
    look_ahead: bool = True


class Scheduler:
    """Owns all sequences and, through one Worker for each epoch, all blocks and lanes.

    Args:
        config: window and limits.
        hash_function: of the prefix cache; tests force collisions with it.
        placement: which executor a waiting sequence is for; a benchmark compares ours with another.

    Attributes:
        stats: counts since the start.
        planner: for tests that preempt at will.
    """

    worker_type = Worker

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        hash_function: HashFunction = hash_block,
        placement: PlacementRule = place,
    ) -> None:
        self.config = config or SchedulerConfig()
        self.stats = SchedulerStats()
        self._hash_function = hash_function
        self._assignments = Assignments()
        self._requests: dict[str, list[Sequence]] = {}
        self._deadlines = Deadlines()
        self._history = OutputHistory()
        self._suspects = Suspects()
        self._arrivals = 0
        self._capability = Capability()
        self.planner = Planner(
            self._assignments,
            self._suspects,
            self._history,
            self.stats,
            placement,
            look_ahead=self.config.look_ahead,
        )

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no lane."""
        return len(self._assignments.waiting)

    @property
    def knows_capacity(self) -> bool:
        """Whether what is accepted is known to fit an executor."""
        return self._capability.is_known

    @property
    def num_running(self) -> int:
        """Sequences that hold a lane, or wait for their last tokens."""
        return sum(worker.num_running for worker in self._assignments.workers.values())

    @property
    def workers(self) -> list[Worker]:
        """The workers of all live epochs, for reading."""
        return list(self._assignments.workers.values())

    def worker(self, epoch: int) -> Worker:
        """The worker of a live epoch, for reading."""
        return self._assignments.workers[epoch]

    def __iter__(self) -> Iterator[Sequence]:
        """All sequences that have not ended, request by request."""
        return (s for sequences in self._requests.values() for s in sequences if s.state is not State.FINISHED)

    # --- requests ---

    def add(self, submit: Submit, now: float = 0.0) -> list[Sequence]:
        """Queue a request's sequences.

        Args:
            now: the time from which the request's `timeout_s` counts.

        Raises:
            RequestRejected: it can never be served, or not now (`queue_full`); nothing has changed.
        """
        if submit.request_id in self._requests:
            raise RequestRejected(f"request id {submit.request_id!r} is in use")
        try:
            prompt = int32_array("prompt", submit.prompt)
        except WireError as error:
            raise RequestRejected(str(error)) from error
        if len(prompt) == 0:
            raise RequestRejected("the prompt is empty; it needs at least 1 token")
        if prompt.min() < 0:
            raise RequestRejected(f"prompt has token id {prompt.min()}; ids start at 0")
        deadline = None if submit.timeout_s is None else now + submit.timeout_s
        sequences = new_sequences(submit, prompt, self._arrivals, deadline)
        if (refusal := self._capability.refusal(sequences[0])) is not None:
            raise refusal
        if self.num_waiting + submit.n > self.config.max_waiting:
            raise RequestRejected(
                f"{self.num_waiting} sequences are waiting, the limit is {self.config.max_waiting}", "queue_full"
            )
        self._arrivals += submit.n
        self._requests[submit.request_id] = sequences
        for sequence in sequences:
            self._assignments.enqueue(sequence)
            self._deadlines.watch(sequence)
        self.stats.prompt_tokens += len(prompt) * submit.n
        return sequences

    def restore(
        self, submit: Submit, arrival: int, outputs: Iterable[bytes], deadline: float | None, *, fits: bool
    ) -> list[Sequence]:
        """Take a request up again that an earlier life of the scheduler had accepted; its place is its old one.

        Args:
            arrival: of its first sequence then. What is added later comes after it.
            outputs: int32, the tokens that each sequence had. The caller cancels the sequences that had ended.
            deadline: of all of them.
            fits: whether there was an executor then that could run it.
        """
        sequences = new_sequences(submit, int32_array("prompt", submit.prompt), arrival, deadline)
        self._arrivals = max(self._arrivals, arrival + submit.n)
        self._requests[submit.request_id] = sequences
        for sequence, output in zip(sequences, outputs, strict=True):
            sequence.tokens.frombytes(output)
            sequence.largest_token = max(sequence.tokens)
            if fits:
                self._capability.has_fitted(sequence)
            self._assignments.enqueue(sequence)
            self._deadlines.watch(sequence)
        return sequences

    def output_of(self, sequence: Sequence) -> bytes:
        """The tokens a sequence has generated so far, int32; those in flight are not among them."""
        if sequence.state is State.RUNNING:
            hot = self._assignments.workers[sequence.epoch].hot
            tokens = hot.tokens[sequence.lane, sequence.num_prompt : hot.known[sequence.lane]]
            return tokens.astype("<i4").tobytes()
        return sequence.tokens[sequence.num_prompt :].tobytes()

    def cancel(self, request_id: str, index: int = -1) -> list[SequenceEnd]:
        """End sequence `index` of a request, or all of them; unknown and ended ones are none.

        Their blocks are free by the next plan; tokens in flight are dropped at commit.
        """
        chosen = [s for s in self._requests.get(request_id, ()) if index in (-1, s.index)]
        return [self._finish(s, "cancelled") for s in chosen if s.state is not State.FINISHED]

    def expire(self, now: float) -> list[SequenceEnd]:
        """End what has passed its deadline."""
        late = self._deadlines.passed(now)
        return [self._finish(s, "error", "the request's time is up", "deadline_exceeded") for s in late]

    # --- executors ---

    def add_executor(self, membership: Membership) -> list[SequenceEnd]:
        """Start planning for an executor, as its standing allows.

        Returns:
            The ends of waiting sequences that turn out never to fit.
        """
        self._assignments.workers[membership.epoch] = self.worker_type(membership, self._hash_function)
        self._capability.widen(membership.limits)
        refused = [
            (s, refusal) for s in self._assignments.waiting if (refusal := self._capability.refusal(s)) is not None
        ]
        return [self._finish(s, "error", str(refusal), refusal.code) for s, refusal in refused]

    def is_spent(self, epoch: int) -> bool:
        """Whether the executor runs no sequence and has answered every plan."""
        worker = self._assignments.workers[epoch]
        return not worker.inflight and worker.num_running == 0

    def is_idle(self, epoch: int) -> bool:
        """Whether the executor has answered every plan it was sent."""
        return not self._assignments.workers[epoch].inflight

    def blame(self, epoch: int, step: int | None = None) -> list[SequenceEnd]:
        """An executor has failed: the sequences it was computing get a strike (`suspects.py`), and one may end by it.

        Args:
            step: the plan that failed; None if nobody knows which of those in flight did.
        """
        worker = self._assignments.workers[epoch]
        plans = [plan for plan in worker.inflight if step in (None, plan.step)]
        involved = dict.fromkeys(sequence for plan in plans for sequence in plan.everyone)
        alive = [sequence for sequence in involved if sequence.state is not State.FINISHED]
        self.stats.strikes += len(alive)
        message = f"{MAX_STRIKES} failures in a row of executors that computed this sequence"
        guilty = self._suspects.strike(alive, worker.name)
        self.stats.struck_out += len(guilty)
        return [self._finish(sequence, "error", message, "internal_error") for sequence in guilty]

    def remove_executor(self, epoch: int) -> list[Sequence]:
        """End an epoch: its sequences wait again, at their places, with all tokens that have landed.

        Returns:
            The sequences that were running there.
        """
        worker = self._assignments.workers.pop(epoch)
        worker.abandon()
        resumed = [worker.sequence(lane) for lane in worker.running] + worker.landing
        for sequence in resumed:
            self._assignments.requeue(worker, sequence)
        self.stats.resumed += len(resumed)
        return resumed

    # --- steps ---

    def plan(self, epoch: int) -> Plan | None:
        """The executor's next plan, or None if its window is full or there is nothing to do.

        What is returned must be sent: blocks that it fills are in the prefix cache already.
        """
        worker = self._assignments.workers[epoch]
        if not worker.gets_plans or len(worker.inflight) >= self.config.window:
            return None
        return self.planner.plan(worker)

    def commit(self, result: StepResult) -> StepOutput:
        """Take in the answer to the oldest plan in flight.

        Raises:
            WireError: the answer is not to that plan, or does not fit it; nothing has changed. The executor
                cannot be trusted any more.
        """
        worker = self._assignments.workers[result.epoch]
        if not worker.inflight or worker.inflight[0].step != result.step:
            expected = worker.inflight[0].step if worker.inflight else "none"
            raise WireError(f"result of step {result.step}, expected is {expected}")
        landed = worker.land(parse_result(result, len(worker.inflight[0].lanes), worker.limits.vocab_size))
        self.stats.output_tokens += len(landed.tokens)
        self._suspects.acquit(landed.sequences)
        ends = [self._finish(sequence, "stop") for sequence in landed.stopped]
        ends += [self._finish(sequence, "length") for sequence in landed.exhausted]
        for end in ends:
            sequence = end.sequence
            self._history.add(len(sequence.tokens) - sequence.num_prompt, sequence.params.max_tokens)
        return StepOutput(landed.sequences, landed.tokens, landed.firsts, ends, worker.model)

    def check(self) -> None:
        """Assert the invariants of docs/architecture.md that can be seen from here."""
        for worker in self._assignments.workers.values():
            worker.check()
            assert len(worker.inflight) <= self.config.window
        ranks = [s.rank for s in self._assignments.waiting]
        assert ranks == sorted(ranks), "waiting sequences are out of order"
        for sequence in self._assignments.waiting:
            assert (sequence.state, sequence.epoch, sequence.lane) == (State.WAITING, 0, -1)
            assert sequence.num_preemptions <= MAX_PREEMPTIONS
        assert len(list(self)) == self.num_waiting + self.num_running, "a sequence is lost"

    # --- inside ---

    def _finish(self, sequence: Sequence, reason: FinishReason, error: str = "", code: str = "") -> SequenceEnd:
        self._assignments.end(sequence)
        self._suspects.forget(sequence)
        siblings = self._requests[sequence.request_id]
        if all(s.state is State.FINISHED for s in siblings):
            del self._requests[sequence.request_id]
        return SequenceEnd(sequence, reason, error, code)
