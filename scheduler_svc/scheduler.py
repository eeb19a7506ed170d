"""Which sequence runs where and when. Pure: no socket, clock, thread or log, so that a fuzzer can drive it.

A sequence has so many tokens, known or in flight, and so many of them in its blocks; a step grants some of the
difference (vLLM V1's unified count), so prefill, chunked prefill and decode are one thing. The engine calls `add`,
`cancel`, `plan` and `commit` and tells which executors come and go.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from common.errors import RequestRejected, WireError
from common.messages import FinishReason, Plan, StepResult, Submit
from common.plan import ExecutorLimits, parse_result
from common.wire import int32_array
from scheduler_svc.block_manager import BlockTable, HashFunction, hash_block
from scheduler_svc.capability import Capability
from scheduler_svc.deadlines import Deadlines
from scheduler_svc.forecast import Forecast, OutputHistory
from scheduler_svc.outcomes import SchedulerStats, SequenceEnd, StepOutput
from scheduler_svc.placement import place
from scheduler_svc.plan_builder import PromptRow
from scheduler_svc.sequence import Sequence, State, new_sequences
from scheduler_svc.suspects import MAX_STRIKES, Suspects, is_suspect
from scheduler_svc.waiting import WaitingQueue
from scheduler_svc.worker import Phase, Worker

MAX_PREEMPTIONS = 3  # after so many a sequence gets all the blocks it will ever need before it runs again
MAX_OVERTAKEN = 64  # waiting sequences, bound for another executor, that a plan looks past


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
    """

    worker_type = Worker

    def __init__(self, config: SchedulerConfig | None = None, hash_function: HashFunction = hash_block) -> None:
        self.config = config or SchedulerConfig()
        self.stats = SchedulerStats()
        self._hash_function = hash_function
        self._workers: dict[int, Worker] = {}
        self._waiting = WaitingQueue()
        self._requests: dict[str, list[Sequence]] = {}
        self._deadlines = Deadlines()
        self._history = OutputHistory()
        self._suspects = Suspects()
        self._arrivals = 0
        self._capability = Capability()

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no lane."""
        return len(self._waiting)

    @property
    def knows_capacity(self) -> bool:
        """Whether what is accepted is known to fit an executor."""
        return self._capability.is_known

    @property
    def num_running(self) -> int:
        """Sequences that hold a lane, or wait for their last tokens."""
        return sum(worker.num_running for worker in self._workers.values())

    @property
    def workers(self) -> list[Worker]:
        """The workers of all live epochs, for reading."""
        return list(self._workers.values())

    def worker(self, epoch: int) -> Worker:
        """The worker of a live epoch, for reading."""
        return self._workers[epoch]

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
            self._enqueue(sequence)
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
            self._enqueue(sequence)
            self._deadlines.watch(sequence)
        return sequences

    def output_of(self, sequence: Sequence) -> bytes:
        """The tokens a sequence has generated so far, int32; those in flight are not among them."""
        if sequence.state is State.RUNNING:
            hot = self._workers[sequence.epoch].hot
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

    def add_executor(self, epoch: int, limits: ExecutorLimits, name: str = "", model: str = "") -> list[SequenceEnd]:
        """Start planning for an executor. Returns the end of waiting requests that turn out never to fit."""
        self._workers[epoch] = self.worker_type(epoch, limits, self._hash_function, name, model)
        self._capability.widen(limits)
        refused = [(s, refusal) for s in self._waiting if (refusal := self._capability.refusal(s)) is not None]
        return [self._finish(s, "error", str(refusal), refusal.code) for s, refusal in refused]

    def drain(self, epoch: int) -> None:
        """Plan nothing more for an executor; once `is_idle`, `remove_executor` hands its sequences over."""
        self._workers[epoch].draining = True

    def finish(self, epoch: int) -> None:
        """Give an executor no new sequences; once `is_spent`, those it had have ended or moved."""
        self._workers[epoch].finishing = True

    def is_spent(self, epoch: int) -> bool:
        """Whether the executor runs no sequence and has answered every plan."""
        worker = self._workers[epoch]
        return not worker.inflight and worker.num_running == 0

    def is_idle(self, epoch: int) -> bool:
        """Whether the executor has answered every plan it was sent."""
        return not self._workers[epoch].inflight

    def blame(self, epoch: int, step: int | None = None) -> list[SequenceEnd]:
        """An executor has failed: the sequences it was computing get a strike (`suspects.py`), and one may end by it.

        Args:
            step: the plan that failed; None if nobody knows which of those in flight did.
        """
        worker = self._workers[epoch]
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
        worker = self._workers.pop(epoch)
        worker.abandon()
        resumed = [worker.sequence(lane) for lane in worker.running] + worker.landing
        for sequence in resumed:
            self._requeue(worker, sequence)
        self.stats.resumed += len(resumed)
        return resumed

    # --- steps ---

    def plan(self, epoch: int) -> Plan | None:
        """The executor's next plan, or None if its window is full or there is nothing to do.

        What is returned must be sent: blocks that it fills are in the prefix cache already.
        """
        worker = self._workers[epoch]
        if worker.draining or len(worker.inflight) >= self.config.window:
            return None
        if (suspect := self._suspects.on(epoch)) is not None:
            return self._plan_alone(worker, suspect)
        if worker.clearing:
            if worker.inflight:
                return None
            worker.clearing = False
            if (row := self._admit_suspect(worker)) is not None:
                return self._build_alone(worker, row)
        preemptions = self.stats.preemptions
        skipped = self._make_room(worker)
        num_decodes = worker.num_decodes() - len(skipped)
        budget = worker.limits.max_batch_tokens - num_decodes
        rows: list[PromptRow] = []
        for lane in worker.prompts():
            if budget == 0:
                break
            if worker.phases[lane] is not Phase.PROMPT:
                continue  # an older one took its blocks a moment ago
            if (row := self._grant_prompt(worker, lane, budget, skipped)) is not None:
                rows.append(row)
                budget -= row.grant.count
        may_admit = self._waiting and not worker.finishing
        if may_admit and self.stats.preemptions == preemptions:  # blocks just taken away are for older sequences
            self._admit(worker, rows, budget)
        if num_decodes == 0 and not rows:
            return self.plan(epoch) if worker.clearing and not worker.inflight else None
        self.stats.decode_tokens += num_decodes
        self.stats.prefill_tokens += sum(row.grant.count for row in rows)
        return worker.build_plan(rows, skipped)

    def commit(self, result: StepResult) -> StepOutput:
        """Take in the answer to the oldest plan in flight.

        Raises:
            WireError: the answer is not to that plan, or does not fit it; nothing has changed. The executor
                cannot be trusted any more.
        """
        worker = self._workers[result.epoch]
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
        for worker in self._workers.values():
            worker.check()
            assert len(worker.inflight) <= self.config.window
        ranks = [s.rank for s in self._waiting]
        assert ranks == sorted(ranks), "waiting sequences are out of order"
        for sequence in self._waiting:
            assert (sequence.state, sequence.epoch, sequence.lane) == (State.WAITING, 0, -1)
            assert sequence.num_preemptions <= MAX_PREEMPTIONS
        assert len(list(self)) == self.num_waiting + self.num_running, "a sequence is lost"

    # --- inside ---

    def _make_room(self, worker: Worker) -> list[int]:
        """A block for every lane that decodes and whose blocks are full, taken from newer sequences if need be.

        Returns:
            Lanes for which there is none; they sit this step out.
        """
        skipped: list[int] = []
        lanes = worker.lanes_without_room()
        if not lanes or worker.extend_all(lanes):
            return skipped
        for lane in lanes:
            if worker.phases[lane] is not Phase.DECODE:
                continue  # an older one took its blocks a moment ago
            while not worker.extend(lane):
                if (victim := self._victim(worker, lane)) is None:
                    skipped.append(lane)
                    break
                self._preempt(worker, victim)
        return skipped

    def _grant_prompt(self, worker: Worker, lane: int, budget: int, skipped: list[int]) -> PromptRow | None:
        """A row for the next chunk of a lane's prompt, with blocks of newer sequences if need be."""
        while (row := worker.reserve_more(lane, budget)) is None:
            # Lanes that decode have a row in this plan already, but for those that sit it out.
            victim = self._victim(worker, lane, spared=worker.decoding().difference(skipped))
            if victim is None:
                return None
            self._preempt(worker, victim)
        return row

    @staticmethod
    def _victim(worker: Worker, lane: int, spared: Collection[int] = ()) -> Sequence | None:
        """The last in rank of the running sequences behind `lane`'s that are not protected, nor in `spared`.

        Without one, `lane` sits this step out and keeps what it has. The first in rank always finds one, or has the
        pool to itself but for protected sequences, which have all the blocks they need; so somebody always goes on.
        """
        for candidate in reversed(worker.running):
            if candidate == lane:
                return None
            if candidate not in spared and not worker.is_protected(candidate):
                return worker.sequence(candidate)
        return None

    def _preempt(self, worker: Worker, sequence: Sequence) -> None:
        self.stats.preemptions += 1
        sequence.num_preemptions += 1
        self._requeue(worker, sequence)

    def _admit(self, worker: Worker, rows: list[PromptRow], budget: int, *, suspect: bool = False) -> None:
        """Rows for waiting sequences, in the order of the queue, as far as memory, lanes and budget go.

        Args:
            suspect: admit one suspect and nobody else; otherwise, when it is a suspect's turn, see to it that it is
                alone next.
        """
        if worker.closed:
            return
        forecast: Forecast | None = None
        overtaken = 0
        for sequence in self._waiting.snapshot():
            if worker.hot.num_free == 0 or budget == 0 or overtaken == MAX_OVERTAKEN:
                return
            if sequence.num_inflight > 0 and sequence.placed == worker.epoch:
                return  # preempted here a moment ago: its tokens must land first, and nobody overtakes it
            chosen = self._placement(sequence) if sequence.num_inflight == 0 else self._workers[sequence.placed]
            if chosen is not worker:
                # One that nobody has room for now waits for nobody here.
                overtaken += chosen is not None and not chosen.closed
                continue
            if is_suspect(sequence) != suspect:
                worker.clearing = not suspect and not worker.prompts()  # those are computed to their ends first
                return
            if forecast is None:
                forecast = worker.forecast(self._history)
            row = self._try_admit(worker, sequence, budget, forecast)
            if row is None:
                worker.closed = True
                sequence.placed = 0  # another executor may have room
                return
            rows.append(row)
            budget -= row.grant.count
            if suspect:
                return

    def _admit_suspect(self, worker: Worker) -> PromptRow | None:
        """A row for the next in the queue, if it is a suspect and there is room for it."""
        rows: list[PromptRow] = []
        self._admit(worker, rows, worker.limits.max_batch_tokens, suspect=True)
        return rows[0] if rows else None

    def _plan_alone(self, worker: Worker, suspect: Sequence) -> Plan | None:
        """The next part of a suspect's prompt; nothing else is computed until its token has landed."""
        if suspect.state is not State.RUNNING or worker.phases[suspect.lane] is not Phase.PROMPT:
            return None
        row = worker.reserve_more(suspect.lane, worker.limits.max_batch_tokens)
        if row is None:  # it became a suspect here, in company that has taken the room: it waits for its turn alone
            self._requeue(worker, suspect)
            return self.plan(worker.epoch)
        return self._build_alone(worker, row)

    def _build_alone(self, worker: Worker, row: PromptRow) -> Plan:
        self.stats.prefill_tokens += row.grant.count
        return worker.build_plan([row], list(worker.decoding()))

    def _try_admit(self, worker: Worker, sequence: Sequence, budget: int, forecast: Forecast) -> PromptRow | None:
        """Admit a sequence if there is memory for it, now and later."""
        blocks, length = worker.blocks, len(sequence.tokens)
        protected = sequence.num_preemptions >= MAX_PREEMPTIONS
        spare = worker.set_aside()
        if protected:
            spare += blocks.blocks_for(sequence.max_length) - blocks.blocks_for(length)
        remaining = self._history.expected(length - sequence.num_prompt, sequence.params.max_tokens)
        forecast.add(length, remaining)
        look_ahead = self.config.look_ahead and worker.running and not protected
        if look_ahead and forecast.exceeds(blocks.num_blocks - spare):
            return None
        table, raw = BlockTable(sequence.cache_salt.encode()), sequence.tokens.tobytes()
        grant = blocks.reserve(table, raw, 0, budget, spare=spare, whole=True)
        if grant is None:
            return None
        self._dequeue(sequence)
        lane = worker.enter(sequence, table, protected=protected)
        if sequence.model != worker.model:
            self.stats.model_changes += sequence.num_output > 0
            sequence.model = worker.model
        if sequence.num_cached_prompt is None:
            sequence.num_cached_prompt = min(grant.start, sequence.num_prompt)
            self.stats.cached_prompt_tokens += sequence.num_cached_prompt
        else:
            self.stats.cached_resumed_tokens += grant.start
            self.stats.recomputed_tokens += length - grant.start
        return worker.prompt_row(lane, raw, grant)

    def _placement(self, sequence: Sequence) -> Worker | None:
        """The rule by itself, so that a benchmark can put another in its place."""
        return place(sequence, list(self._workers.values()))

    def _finish(self, sequence: Sequence, reason: FinishReason, error: str = "", code: str = "") -> SequenceEnd:
        """End a sequence: it holds nothing any more, wherever it was (invariant 10)."""
        if sequence.state is State.WAITING:
            self._dequeue(sequence)
        else:
            self._workers[sequence.epoch].leave(sequence)
        sequence.state = State.FINISHED
        self._suspects.forget(sequence)
        siblings = self._requests[sequence.request_id]
        if all(s.state is State.FINISHED for s in siblings):
            del self._requests[sequence.request_id]
        return SequenceEnd(sequence, reason, error, code)

    def _requeue(self, worker: Worker, sequence: Sequence) -> None:
        """Back to its place among the waiting, with its tokens and without blocks. Its blocks are cached here."""
        worker.leave(sequence)
        sequence.state, sequence.placed = State.WAITING, worker.epoch
        self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        if self._waiting.add(sequence):
            self._open_workers()

    def _dequeue(self, sequence: Sequence) -> None:
        """Somebody leaves the queue: it may have been the one that was refused."""
        self._waiting.remove(sequence)
        self._open_workers()

    def _open_workers(self) -> None:
        for worker in self._workers.values():
            worker.closed = False
