"""One epoch of an executor as the scheduler sees it: what it takes, what runs there, what is in flight. Pure.

An ExecutorState says what the executor can do, and does it: it builds a plan and applies the answer, while its
`running` gives sequences lanes and blocks. Which sequences are served is decided in `scheduling/`.
"""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from common.messages import LaneStart, Plan
from common.step_result import ResultColumns
from scheduler_svc.core.executor.block_manager import BlockManager, BlockTable, HashFunction, hash_block
from scheduler_svc.core.executor.inflight_plan import Completed, InflightPlan
from scheduler_svc.core.executor.known_content import keep_what_is_known
from scheduler_svc.core.executor.plan_answer import take_answer
from scheduler_svc.core.executor.plan_builder import (
    DecodeRows,
    PromptRow,
    asked_columns,
    join_asked,
    join_columns,
    lane_start,
    prompt_columns,
    sampling_columns,
)
from scheduler_svc.core.executor.pooled_results import ask_results
from scheduler_svc.core.executor.prompt_logprobs import ask_prompts
from scheduler_svc.core.executor.running_sequences import RunningSequences
from scheduler_svc.core.fleet.membership import Membership, Standing
from scheduler_svc.core.sequence import NO_POSITION, Sequence, State
from scheduler_svc.core.step_output import StepOutput

_NO_COUNTS = np.zeros(0, np.int32)


class EarlierIndex(NamedTuple):
    """What earlier epochs have left of a pool.

    Attributes:
        blocks: the index.
        origin: the epoch in which it began.
        epochs: those of which one was the last that may have written the pool.
    """

    blocks: BlockManager
    origin: int
    epochs: tuple[int, ...] = ()


class ExecutorState:
    """An epoch: everything here dies with it, except for the blocks of a pool that goes on (invariant 7).

    Args:
        membership: the executor's; the fleet changes its standing.
        hash_function: of the prefix cache.
        earlier: of the pool that it continues; None for a new one.
        not_adopted: why what was in its pool does not count, if so.

    Attributes:
        blocks: its KV memory.
        origin: the epoch in which the index of its pool began.
        earlier_epochs: see `EarlierIndex`; none if it continues no pool.
        not_adopted: as given.
        running: sequences that hold a lane.
        completing: sequences that only wait for their last tokens, or their pooled results.
        inflight: plans sent and not answered, in the order sent, which is the order they run in.
        num_sat_out: plans in a row that sequences which yield sat out.
        is_suspects: whether the last plan was one of a suspect alone.
        awaits_suspect: whether a suspect is next in the queue, which must run alone.
        num_doubts: sequences that are computed once more because a row had no numbers here.
        num_hit_tokens: tokens of sequences that were admitted here that its prefix cache had.
    """

    block_manager_type = BlockManager
    running_type = RunningSequences

    def __init__(
        self,
        membership: Membership,
        hash_function: HashFunction = hash_block,
        earlier: EarlierIndex | None = None,
        not_adopted: str = "",
    ) -> None:
        self.membership = membership
        self.epoch = membership.epoch
        self.limits = limits = membership.limits
        if earlier is None:
            earlier = EarlierIndex(
                self.block_manager_type(limits.num_blocks, limits.block_size, hash_function), self.epoch
            )
        self.blocks, self.origin, self.earlier_epochs = earlier.blocks, earlier.origin, earlier.epochs
        self.running = self.running_type(self.epoch, limits, self.blocks, self.origin)
        self.not_adopted = not_adopted
        self.completing: list[Sequence] = []
        self.inflight: deque[InflightPlan] = deque()
        self.num_hit_tokens = 0
        self.num_sat_out = 0
        self.is_suspects = False
        self.num_doubts = 0
        self.awaits_suspect = False
        self._refused: Sequence | None = None
        self._first_then: Sequence | None = None  # in the queue, when that one was refused
        self._next_step = 0

    @property
    def name(self) -> str:
        """The executor's name."""
        return self.membership.executor

    @property
    def model(self) -> str:
        """What it computes with; tokens of different models are different."""
        return self.membership.model

    @property
    def has_answered(self) -> bool:
        """Whether a plan of this epoch was answered."""
        return self._next_step > len(self.inflight)

    @property
    def next_step(self) -> int:
        """Number of the next plan."""
        return self._next_step

    def lets_pause(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence of which a row brought no token here lets others overtake it: until its rows in
        flight, which are void, have come back; and if its mask was late, for some plans more, unless none runs."""
        if sequence.num_void > 0 and sequence.placed == self.epoch:
            return True
        late = sequence.lateness
        if late is None or late.epoch != self.epoch or not len(self.running):
            return False
        return self._next_step < late.until_step

    @property
    def num_running(self) -> int:
        """Sequences that hold a lane, or wait for their last tokens."""
        return len(self.running) + len(self.completing)

    @property
    def load(self) -> int:
        """Tokens that all sequences here are expected to take, also those that wait for their last ones."""
        return self.running.load + sum([sequence.cost for sequence in self.completing])

    def sequences(self) -> list[Sequence]:
        """All sequences here, by rank; those that wait for their last tokens come last."""
        return [*self.running, *self.completing]

    def cached_tokens(self, sequence: Sequence, first_keys: dict[int, int]) -> int:
        """Tokens of a waiting sequence that the prefix cache holds, or its tail behind that.

        Args:
            first_keys: of the sequence's first block, by block size; is filled, so that several executors share it.
        """
        size, tail = self.limits.block_size, sequence.tail
        if (first_key := first_keys.get(size)) is None:
            content = sequence.cache_salt.encode() + sequence.tokens[:size].tobytes()
            first_key = first_keys[size] = self.blocks.first_key(content)
        num_hits = 0
        if self.blocks.has_key(first_key):
            num_hits = len(self.blocks.match(BlockTable(sequence.cache_salt.encode()), sequence.tokens.tobytes()))
        elif tail is None:
            return 0
        in_tail = tail.num_valid if tail is not None and tail.origin == self.origin and num_hits >= tail.first else 0
        return max(num_hits * size, in_tail)

    def planned(self, step: int | None) -> dict[Sequence, int]:
        """The sequences of a plan in flight, or of all, and before which position the last of their rows ends:
        NO_POSITION if it brings a token or a result."""
        ends: dict[Sequence, int] = {}
        for plan in self.inflight:
            if step in (None, plan.step):
                ends |= dict.fromkeys(plan.everyone, NO_POSITION) | dict(plan.unsampled)
        return ends

    # --- what it takes ---

    @property
    def is_leaving(self) -> bool:
        """Whether no sequence may be placed here, now or later."""
        return self.membership.standing is not Standing.READY

    @property
    def is_draining(self) -> bool:
        """Whether it gets no plan any more."""
        return self.membership.standing is Standing.DRAINING

    @property
    def is_emptying(self) -> bool:
        """Whether it gets no plan before those in flight are answered, because a suspect is next in the queue, and then
        has one alone. One that leaves does not empty: the suspect runs elsewhere."""
        return self.awaits_suspect and not self.is_leaving

    @property
    def is_doubtful(self) -> bool:
        """Whether others are to be preferred: its answers are late, or were no numbers."""
        return self.num_doubts > 0 or self.membership.is_late or self.membership.is_doubted

    @property
    def is_full(self) -> bool:
        """Whether a sequence waits for which there was no memory, and none was given back since."""
        return self._refused is not None and self._refused.state is State.WAITING

    def refuse(self, sequence: Sequence, first: Sequence) -> None:
        """A sequence does not fit, and no other one overtakes it while the same is first in the queue."""
        self._refused, self._first_then = sequence, first

    def has_refused(self, first: Sequence) -> bool:
        """Whether to try again would end the same, with this sequence first in the queue."""
        if self.is_full and self._first_then is first:
            return True
        self._refused = None
        return False

    # --- sequences leave ---

    def leave(self, sequence: Sequence) -> None:
        """The sequence is here no longer; take back what it holds."""
        if sequence.state is State.COMPLETING:
            self.completing.remove(sequence)
            sequence.epoch = 0
        else:
            self.running.leave(sequence)
            self._refused = None

    def abandon(self, *, keeps_pool: bool) -> None:
        """The epoch is over: tokens in flight will never arrive. What is in the pool counts on if it is kept."""
        if keeps_pool:
            keep_what_is_known(self.origin, self.blocks, self.inflight, self.running)
        else:
            self.blocks.discard()
        self.running.lanes.inflight[:] = 0
        for plan in self.inflight:
            for sequence in plan.everyone:
                sequence.num_inflight = sequence.num_void = 0

    # --- plans and answers ---

    def build_plan(self, prompt_rows: list[PromptRow], skipped: Collection[Sequence]) -> Plan:
        """A plan of all sequences that decode but those in `skipped`, and of `prompt_rows`; it must be sent."""
        lanes, decodes = self.running.lanes, self.running.decode_rows()
        if skipped:
            decodes = DecodeRows([s.lane for s in decodes.sequences if s not in skipped], lanes)
        sampled = [row for row in prompt_rows if row.samples]
        sampled_lanes = np.array([row.lane for row in sampled], np.int32)
        block_size, step = self.limits.block_size, self._next_step
        parts, sampling, asking, samples = [], [], [], []
        if len(decodes):
            parts.append(decodes.take_step(lanes, block_size))
            sampling.append(decodes.sampling)
            asking.append(decodes.asked)
            samples.append(len(decodes))
        if prompt_rows:
            parts.append(prompt_columns(prompt_rows, len(decodes), block_size))
            sampling.append(sampling_columns(sampled_lanes, lanes))
            asking.append(asked_columns(sampled_lanes, lanes))
            samples.append(len(sampled))
        columns = join_columns(parts, sampling, samples)
        starts: tuple[LaneStart, ...] = ()
        if (asked := join_asked(asking, samples)) is not None:
            columns |= asked.columns()
            starts = tuple(start for row in sampled if (start := lane_start(row)) is not None)
        asked_prompts = ask_prompts(prompt_rows, len(decodes)) if prompt_rows else None
        if asked_prompts is not None:
            columns |= asked_prompts.columns()
        asked_results = ask_results(prompt_rows, len(decodes), self.limits.hidden_size) if prompt_rows else None
        if asked_results is not None:
            columns |= asked_results.pooled.columns()
        plan = Plan(epoch=self.epoch, step=step, lane_starts=starts, **columns)
        planned, serials, sequences = decodes.lanes, decodes.serials, decodes.sequences
        if sampled:
            planned = np.concatenate([planned, sampled_lanes])
            serials = np.concatenate([serials, lanes.serial[sampled_lanes]])
            sequences = [*sequences, *(row.sequence for row in sampled)]
        unsampled = [(row.sequence, row.end) for row in prompt_rows if not row.is_last]
        returning = [row.sequence for row in sampled if row.sequence.num_output > 0]
        counts = _NO_COUNTS if asked is None or not asked.wants_logprobs else asked.logprob_counts
        self.inflight.append(
            InflightPlan(
                *(step, planned, serials, sequences, len(decodes), returning, unsampled, counts),
                columns["slot_mapping"],
                asked_prompts,
                asked_results,
            )
        )
        self._next_step += 1
        for row in prompt_rows:
            if row.is_last:
                self.running.prompt_done(row.sequence)
        if asked_results is not None:
            planned = np.concatenate([planned, [sequence.lane for sequence in asked_results.sequences]])
        # Those whose last token is in flight need no lane and no blocks any more: what gets them uses them later.
        for sequence in self.running.completed(planned):
            if self.membership.pool is not None:
                table = self.running.table_of(sequence)
                self.inflight[-1].completed.append(Completed(sequence, table.ids, self.blocks.spare(table)))
            self.leave(sequence)
            sequence.state, sequence.epoch = State.COMPLETING, self.epoch
            self.completing.append(sequence)
        return plan

    def apply_result(self, result: ResultColumns) -> StepOutput:
        """Apply the answer to the oldest plan in flight; see `take_answer`.

        Sequences that end with it still hold what they hold; the caller ends them.
        """
        plan = self.inflight.popleft()
        for completed in plan.completed:
            self.blocks.unspare(completed.spared)
        output = take_answer(plan, result, self.running.lanes, self.model)
        if self.running.publish():
            self._refused = None
        return output

    def check(self) -> None:
        """Assert the invariants that can be seen from one executor."""
        self.running.check()
        lanes = self.running.lanes
        for lane in self.running.order:
            planned = sum((plan.serials[plan.lanes == lane] == lanes.serial[lane]).sum() for plan in self.inflight)
            assert lanes.inflight[lane] == planned, "tokens in flight do not follow from the plans in flight"
        for sequence in self.completing:
            assert (sequence.state, sequence.epoch, sequence.lane) == (State.COMPLETING, self.epoch, -1)
            assert len(sequence.tokens) + sequence.num_inflight == sequence.max_length + sequence.is_pooled
