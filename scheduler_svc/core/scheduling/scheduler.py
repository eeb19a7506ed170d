"""What each executor computes next. Pure: no socket, clock, thread or log, so that a fuzzer can drive it.

A sequence has so many tokens, known or in flight, and so many of them in its blocks; a step grants some of the
difference (vLLM V1's unified count), so prefill, chunked prefill and decode are one thing. `core.py` calls `plan` and
`commit` for each executor, and the request manager calls `add`, `restore` and `cancel`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from common.errors import WireError
from common.messages import Plan, StepResult, Submit, Task
from common.step_result import parse_result
from scheduler_svc.core.executor.block_manager import HashFunction, hash_block
from scheduler_svc.core.executor.cache_events import CacheEvents
from scheduler_svc.core.executor.capacity import Capacity
from scheduler_svc.core.executor.executor_state import EarlierIndex, ExecutorState
from scheduler_svc.core.executor.plan_builder import PromptRow
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.scheduling.admission import Admission
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.placement import PlacementRule, place
from scheduler_svc.core.scheduling.plan_budget import PlanBudget
from scheduler_svc.core.scheduling.sequences import Sequences
from scheduler_svc.core.scheduling.stats import Moves, SchedulerStats
from scheduler_svc.core.scheduling.yielding import sitting_out
from scheduler_svc.core.sequence import NO_POSITION, NO_SHARE, Earlier, Generated, Sequence, Share, State
from scheduler_svc.core.step_output import SequenceEnd, StepOutput


class Scheduler:
    """Owns all sequences and, through one ExecutorState for each epoch, all blocks and lanes.

    Args:
        config: window and limits.
        hash_function: of the prefix cache; tests force collisions with it.
        placement: which executor a waiting sequence is for; a benchmark compares ours with another.
        first_arrival: of the sequences to come; above all of earlier lives.

    Attributes:
        stats: counts since the start.
        sequences: all that have not ended; for reading, and for tests that preempt at will.
        cache_events: what routers are to be told; None unless the config asks for it.
    """

    executor_type = ExecutorState
    budget_type = PlanBudget

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        hash_function: HashFunction = hash_block,
        placement: PlacementRule = place,
        first_arrival: int = 0,
    ) -> None:
        self.config = config = config or SchedulerConfig()
        self.stats = SchedulerStats()
        self.sequences = Sequences(config, self.stats, first_arrival)
        self.cache_events = None if config.announced_salt is None else CacheEvents(config.announced_salt)
        self._hash_function = hash_function
        self._suspects = self.sequences.suspects
        self._admission = Admission(self.sequences, self.stats, placement, look_ahead=config.look_ahead)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for an executor."""
        return len(self.sequences.waiting)

    @property
    def num_running(self) -> int:
        """Sequences that hold a lane, or wait for their last tokens."""
        return sum(executor.num_running for executor in self.sequences.executors.values())

    @property
    def executors(self) -> list[ExecutorState]:
        """The executors of all live epochs, for reading."""
        return list(self.sequences.executors.values())

    def largest(self, now: float, task: Task = "generate") -> int:
        """Positions that a sequence may have which is accepted now; 0 before the first executor was seen."""
        return self.sequences.capacities.of(task).largest(now)

    def executor(self, epoch: int) -> ExecutorState:
        """The executor of a live epoch, for reading."""
        return self.sequences.executors[epoch]

    def __iter__(self) -> Iterator[Sequence]:
        """All sequences that have not ended, request by request."""
        return iter(self.sequences)

    # --- steps ---

    def may_plan(self, epoch: int) -> bool:
        """Whether the executor's window has room for a plan."""
        return len(self.sequences.executors[epoch].inflight) < self.config.window

    def plan(self, epoch: int) -> Plan | None:
        """The executor's next plan, or None if its window is full or there is nothing to do.

        Every sequence that decodes has a row in every plan; what is left of the token budget goes to prompts that are
        being computed, in the order of their rank, and then to admissions.

        What is returned must be sent: blocks that it fills are in the prefix cache already.
        """
        executor = self.sequences.executors[epoch]
        if not self.may_plan(epoch) or executor.is_draining:
            return None
        self.sequences.regroup()
        if executor.is_suspects and executor.inflight:
            return None  # a suspect is alone until its row is answered
        suspects = self._suspects.on(executor)
        if not executor.is_suspects and (suspects or executor.is_emptying):
            if executor.inflight:
                return None
            if (plan := self._plan_suspect(executor, suspects)) is not None:
                return plan
        plan = self._plan_others(executor, suspects)
        return plan if plan is not None or executor.inflight else self._plan_suspect(executor, suspects)

    def _plan_suspect(self, executor: ExecutorState, suspects: list[Sequence]) -> Plan | None:
        """A plan with a row of one suspect; nothing is in flight.

        Args:
            suspects: those that hold a lane here.
        """
        running = executor.running
        for suspect in suspects:
            others = {*running.decode_rows().sequences} - {suspect}
            if running.decodes(suspect):
                if not running.extend_all(others):
                    return self._build(executor, [], others, num_decodes=1, is_suspects=True)
            else:
                tokens = self.budget_type(executor.limits).tokens_for(suspect, running.num_computed(suspect))
                if (row := running.reserve_more(suspect, tokens)) is not None:
                    return self._build(executor, [row], others, is_suspects=True)
            self.sequences.requeue(executor, suspect)  # others have the memory: it waits for its turn to be admitted
        if executor.is_emptying:
            executor.awaits_suspect = False
            may_admit = self._admission.may_admit(executor)
            if may_admit and (rows := self._admission.admit(executor, self.budget_type(executor.limits), suspect=True)):
                return self._build(executor, rows, {*running.decode_rows().sequences}, is_suspects=True)
        return None

    def _plan_others(self, executor: ExecutorState, suspects: Iterable[Sequence]) -> Plan | None:
        """A plan without the suspects, and if it has a row then also without those that yield."""
        yielding = sitting_out(executor, self.sequences.waiting)
        if yielding and (plan := self._plan_beside(executor, {*suspects, *yielding})) is not None:
            return plan
        return self._plan_beside(executor, {*suspects})

    def _plan_beside(self, executor: ExecutorState, sitting: set[Sequence]) -> Plan | None:
        """The next plan, without those in `sitting`."""
        admission, running = self._admission, executor.running
        short, took_from_decodes = admission.make_room(executor, sitting)
        skipped = {*short, *filter(running.decodes, sitting)}
        num_decodes = len(running.decode_rows()) - len(skipped)
        is_shared = admission.is_contested(executor, sitting)
        budget = self.budget_type(executor.limits, num_decodes, is_shared=is_shared)
        rows, took_from_prompts = admission.continue_prompts(executor, budget, skipped, sitting)
        if not (short or took_from_decodes or took_from_prompts) and admission.may_admit(executor):
            # Blocks that are short, or were just taken away, are for older sequences than those that wait.
            rows += admission.admit(executor, budget, rows)
            skipped = {*filter(running.decodes, skipped)}  # one that sat out may have given its lane away
            num_decodes = len(running.decode_rows()) - len(skipped)
        if is_shared:
            budget.extend(rows, running.extended)
        return self._build(executor, rows, skipped, num_decodes) if num_decodes or rows else None

    def _build(
        self,
        executor: ExecutorState,
        rows: list[PromptRow],
        skipped: Collection[Sequence],
        num_decodes: int = 0,
        *,
        is_suspects: bool = False,
    ) -> Plan:
        """A plan of these rows and of those that decode, but for `skipped`, which leaves so many."""
        self.stats.decode_tokens += num_decodes
        self.stats.planned_prompts(rows)
        self.sequences.moves.prefilled(rows, executor.epoch)
        executor.is_suspects = is_suspects
        return executor.build_plan(rows, skipped)

    def commit(self, result: StepResult) -> StepOutput:
        """Take in the answer to the oldest plan in flight.

        Raises:
            WireError: the answer is not to that plan, or does not fit it; nothing has changed. The executor
                cannot be trusted any more.
        """
        executor = self.sequences.executors[result.epoch]
        if not executor.inflight or executor.inflight[0].step != result.step:
            expected = executor.inflight[0].step if executor.inflight else "none"
            raise WireError(f"result of step {result.step}, expected is {expected}")
        oldest = executor.inflight[0]
        targets = None if oldest.asked_prompts is None else oldest.asked_prompts.targets
        pooled = None if oldest.asked_results is None else oldest.asked_results.pooled
        vocab_size, counts = executor.limits.vocab_size, oldest.logprob_counts
        columns = parse_result(result, len(oldest.lanes), vocab_size, counts, targets, pooled)
        output = executor.apply_result(columns)
        self.stats.output_tokens += len(output.tokens)
        if self._suspects:
            self._suspects.answered([*oldest.unsampled, *((sequence, NO_POSITION) for sequence in output.sequences)])
        convictions = self._convictions(output) if self.sequences.in_doubt else []
        begun = output.firsts
        if output.prompt_logprobs:
            begun = [*(came.sequence for came in output.prompt_logprobs if came.first == 0), *begun]
        for sequence in begun:
            if sequence.state is State.WAITING:
                self.sequences.answer_begins(sequence)
        for end in output.ends:
            self.sequences.end(end.sequence, end.reason, end.error, end.code)
            self.stats.answered(end.sequence.num_output)
        if output.numberless or convictions:
            ends = [end for sequence in output.numberless for end in self.sequences.doubt(executor, sequence)]
            for end in ends:
                self.stats.answered(end.sequence.num_output)
            output = replace(output, ends=[*output.ends, *ends], convictions=convictions)
        for sequence in output.unmasked:
            self.sequences.mask_was_late(executor, sequence)
        return output

    def take_moves(self) -> Moves:
        """Sequences that were admitted, or lost their lane, since the last call."""
        return self.sequences.take_moves()

    # --- requests ---

    def add(self, submit: Submit, now: float = 0.0) -> list[Sequence]:
        """Queue a request's sequences. The caller sees to it that no two requests have one id.

        Args:
            now: the time from which the request's `timeout_s` counts.

        Raises:
            RequestRejected: it can never be served, or not now (`queue_full`); nothing has changed.
        """
        return self.sequences.add(submit, now)

    def restore(
        self, submit: Submit, arrival: int, earlier: Iterable[Earlier], deadline: float | None, share: Share = NO_SHARE
    ) -> list[Sequence]:
        """Take a request up again that an earlier life of the scheduler had accepted; its place is its old one.

        Args:
            arrival: of its first sequence then. What is added later comes after it.
            earlier: what each sequence had.
            deadline: of all of them.
            share: of the request then.

        Returns:
            All of them; those that had ended are over.
        """
        self.stats.restored += 1
        return self.sequences.restore(submit, arrival, earlier, deadline, share)

    def cancel(self, sequences: Iterable[Sequence]) -> list[SequenceEnd]:
        """End those of these sequences that have not ended.

        Their blocks are free by the next plan; tokens in flight are dropped at commit.
        """
        ends = self.sequences.cancel(sequences)
        for end in ends:
            self.stats.answered(end.sequence.num_output)
        return ends

    def fail(self, sequences: Iterable[Sequence], message: str, code: str) -> list[SequenceEnd]:
        """End those of these sequences that have not ended, with an error."""
        return [self.sequences.end(s, "error", message, code) for s in sequences if s.state is not State.FINISHED]

    def expire(self, now: float) -> Iterator[list[SequenceEnd]]:
        """End what has passed its deadline, and what has waited `pool_grace_s` for an executor that fits it; instead, a
        default `max_tokens` is shortened, and any grammar library will do (`take_relaxed`). Each step is one sequence.
        To be called each 0.1 s."""
        return self.sequences.expire(now)

    def tick(self, now: float) -> None:
        """Note the time, from which what loses its lane waits. To be called before the plans of a turn."""
        self.sequences.tick(now)

    def take_relaxed(self) -> list[Sequence]:
        """Sequences that may be masked by another library than their grammar's, since the last call."""
        return self.sequences.take_relaxed()

    def output_of(self, sequence: Sequence) -> Generated:
        """What a sequence has generated so far, and its prompt's log-probabilities; nothing that is in flight."""
        if sequence.state is State.RUNNING:
            token_ids = self.sequences.executors[sequence.epoch].running.lanes.output_of(sequence)
        else:
            token_ids = sequence.tokens[sequence.num_prompt :].tobytes()
        told = sequence.logprob_ids, sequence.logprobs, sequence.prompt_logprob_ids, sequence.prompt_logprobs
        return Generated(token_ids, *(column.tobytes() for column in told))

    # --- executors ---

    def remember(self, executors: Mapping[str, Capacity], tasks: Iterable[Task] = ()) -> None:
        """An earlier life of the scheduler has seen these executors, by name, which may come back, and others that took
        these tasks."""
        self.sequences.capacities.remember_taken(tasks)
        self.sequences.remember(executors)

    def known_executors(self, now: float) -> dict[str, Capacity]:
        """What those can hold that are there, or may come back, by name."""
        return self.sequences.capacities.known(now)

    def add_executor(self, membership: Membership, now: float = 0.0) -> None:
        """Start planning for an executor, as its standing allows."""
        vacant, reason = self.sequences.pools.take(membership, now)
        index = None if vacant is None else vacant.index
        if index is None and self.cache_events is not None:
            index = EarlierIndex(self.cache_events.index(membership.limits, self._hash_function), membership.epoch)
        executor = self.executor_type(membership, self._hash_function, index, reason)
        self.stats.pools_adopted += vacant is not None
        self.sequences.add_executor(executor, now)

    def executor_leaves(self, epoch: int, now: float = 0.0) -> None:
        """The standing of an executor has changed: it takes no more sequences."""
        self.sequences.executor_leaves(epoch, now)

    def remove_executor(self, epoch: int, now: float = 0.0, pool_wait_s: float | None = None) -> list[Sequence]:
        """End an epoch: its sequences, which are returned, wait again, at their places, with all tokens that arrived.

        Args:
            pool_wait_s: how long they wait for the next executor of its pool, if a keeper keeps it; None if what is in
                it must not count any more.
        """
        return self.sequences.remove_executor(epoch, now, pool_wait_s)

    def pool_wait_s(self, epoch: int, start_s: float, others_tokens_per_s: float) -> float:
        """How long the sequences of an executor that is gone should wait for the next one of its pool, if its own start
        took `start_s`, and the others of its model compute `others_tokens_per_s`."""
        pools, executor = self.sequences.pools, self.sequences.executors[epoch]
        return pools.wait_s(executor, start_s, others_tokens_per_s, self.config.adoption_wait_s)

    def is_spent(self, epoch: int) -> bool:
        """Whether the executor runs no sequence and has answered every plan."""
        return self.is_idle(epoch) and self.sequences.executors[epoch].num_running == 0

    def is_idle(self, epoch: int) -> bool:
        """Whether the executor has answered every plan it was sent."""
        return not self.sequences.executors[epoch].inflight

    def blame(self, epoch: int, step: int | None = None) -> list[SequenceEnd]:
        """An executor has failed: the sequences it was computing get a strike (`suspects.py`), and one may end by it.

        Args:
            step: the plan that failed; None if it is not known which of those in flight did.
        """
        executor = self.sequences.executors[epoch]
        return self.sequences.strike(executor.planned(step), executor.name)

    def check(self) -> None:
        """Assert the invariants of docs/architecture.md that can be seen from here."""
        for executor in self.sequences.executors.values():
            executor.check()
            assert len(executor.inflight) <= self.config.window
        self.sequences.check()
        assert len(self.sequences) == self.num_waiting + self.num_running, "a sequence is lost"

    # --- inside ---

    def _convictions(self, output: StepOutput) -> list[tuple[int, str]]:
        """For some sequences in doubt this answer has numbers: something else was why they had none before."""
        convictions = []
        for sequence in dict.fromkeys([*output.sequences, *(end.sequence for end in output.ends)]):
            if (doubt := self.sequences.settle(sequence)) is not None:
                self.sequences.convict(sequence, doubt)
                convictions.append((doubt.epoch, sequence.client))
        return convictions
