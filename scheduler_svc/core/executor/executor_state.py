"""One epoch of an executor as the scheduler sees it: its blocks, its lanes, what runs there, what is in flight.

It knows how to do things (give a lane, build a plan, take in an answer); whom to serve is the scheduler's to decide.
Pure.
"""

from bisect import insort
from collections import deque
from enum import IntEnum

import numpy as np

from common.messages import Plan
from common.wire import IntArray
from scheduler_svc.core.executor.block_manager import BlockManager, BlockTable, Grant, HashFunction, hash_block
from scheduler_svc.core.executor.capacity import capacity
from scheduler_svc.core.executor.inflight_plans import InflightPlan, Landed
from scheduler_svc.core.executor.lanes import Lanes
from scheduler_svc.core.executor.memory_forecast import Forecast, OutputHistory
from scheduler_svc.core.executor.plan_builder import DecodeRows, PromptRow, build_plan, prompt_columns, sampling_columns
from scheduler_svc.core.fleet.membership import Membership, Standing
from scheduler_svc.core.sequence import Sequence, State

PROMPT_SHARE = 8  # one in so many tokens of a plan's budget is not given to lanes, so that prompts always go on


class Phase(IntEnum):
    """What a lane's sequence needs next."""

    PROMPT = 0  # known tokens that are not computed yet
    DECODE = 1  # its last token, known or in flight
    FREE = 2  # nobody holds it


class Worker:
    """Everything that dies with an epoch (invariant 7).

    Args:
        membership: the executor's; the fleet changes its standing.
        hash_function: of the prefix cache.

    Attributes:
        running: lanes that are held, by the rank of their sequences.
        landing: sequences that only wait for their last tokens.
        inflight: plans sent and not answered, in the order sent, which is the order they run in.
        clearing: it gets no plan until those in flight are answered, because a suspect is to run alone next.
        closed: whether the first in the queue was refused for want of memory and none has been given back since.
    """

    block_manager_type = BlockManager

    def __init__(self, membership: Membership, hash_function: HashFunction = hash_block) -> None:
        self.membership = membership
        self.epoch = membership.epoch
        self.limits = limits = membership.limits
        self.blocks = self.block_manager_type(limits.num_blocks, limits.block_size, hash_function)
        budget = limits.max_batch_tokens
        num_lanes = max(1, min(limits.max_num_seqs, budget - budget // PROMPT_SHARE))
        self.hot = Lanes(num_lanes)
        self.phases = [Phase.FREE] * num_lanes
        self.running: list[int] = []
        self.landing: list[Sequence] = []
        self.inflight: deque[InflightPlan] = deque()
        self.clearing = False
        self.closed = False
        self._num_prompts = 0  # lanes in Phase.PROMPT
        self._protected: list[int] = []
        self._next_step = 0
        self._decode_rows: DecodeRows | None = None

    @property
    def num_running(self) -> int:
        """Sequences that hold a lane, or wait for their last tokens."""
        return len(self.running) + len(self.landing)

    @property
    def name(self) -> str:
        """The executor's name."""
        return self.membership.executor

    @property
    def model(self) -> str:
        """What it computes with; tokens of different models are different."""
        return self.membership.model

    @property
    def gets_plans(self) -> bool:
        """Whether it is to be planned for."""
        return self.membership.standing is not Standing.DRAINING

    @property
    def takes_new(self) -> bool:
        """Whether sequences may be admitted here."""
        return self.membership.standing is Standing.READY

    def can_hold(self, sequence: Sequence) -> bool:
        """Whether the sequence fits here at its full length, given the worker to itself."""
        return sequence.max_length <= capacity(self.limits) and sequence.largest_token < self.limits.vocab_size

    def sequence(self, lane: int) -> Sequence:
        """Who holds a lane."""
        sequence = self.hot.sequences[lane]
        assert sequence is not None, f"lane {lane} is free"
        return sequence

    # --- lanes and blocks ---

    def enter(self, sequence: Sequence, table: BlockTable, *, protected: bool) -> int:
        """Give an admitted sequence, whose first blocks are in `table`, a lane."""
        lane = self.hot.enter(sequence, table)
        sequence.state, sequence.epoch, sequence.lane = State.RUNNING, self.epoch, lane
        self.phases[lane] = Phase.PROMPT
        self._num_prompts += 1
        if self.running and sequence.rank < self.sequence(self.running[-1]).rank:
            insort(self.running, lane, key=lambda lane: self.sequence(lane).rank)
        else:
            self.running.append(lane)  # the usual case, and much cheaper
        if protected:
            self._protected.append(lane)
        return lane

    def leave(self, sequence: Sequence) -> None:
        """The sequence is here no longer; take back what it holds."""
        if sequence.state is State.LANDING:
            self.landing.remove(sequence)
            sequence.epoch = 0
        else:
            self._free_lane(sequence)

    def _free_lane(self, sequence: Sequence) -> None:
        """Take a lane and its blocks back. Plans in flight may still write both: they run before any plan that hands
        them to another sequence."""
        lane = sequence.lane
        self.running.remove(lane)
        self._num_prompts -= self.phases[lane] is Phase.PROMPT
        self.phases[lane] = Phase.FREE
        if lane in self._protected:
            self._protected.remove(lane)
        sequence.num_inflight = int(self.hot.inflight[lane])
        self.hot.leave(lane)
        self.blocks.release(self.hot.tables[lane])
        sequence.epoch, sequence.lane = 0, -1
        self._decode_rows = None
        self.closed = False

    def set_aside(self, lane: int = -1) -> int:
        """Free blocks that are promised to protected sequences other than the one in `lane`."""
        return sum(
            self.blocks.blocks_for(int(self.hot.limit[other])) - len(self.hot.tables[other].ids)
            for other in self._protected
            if other != lane
        )

    def is_protected(self, lane: int) -> bool:
        """Whether the lane's sequence has all the blocks it will ever need set aside, and keeps those it has."""
        return lane in self._protected

    def lanes_without_room(self) -> list[int]:
        """Lanes that decode and whose blocks are full."""
        lanes = self._decodes().lanes
        full: list[int] = lanes[self.hot.computed[lanes] >= self.hot.room[lanes]].tolist()
        return full

    def extend(self, lane: int) -> bool:
        """Give a lane another block, if one is free that is not set aside for others."""
        if self.blocks.num_free <= self.set_aside(lane):
            return False
        self.hot.tables[lane].ids.extend(self.blocks.allocate(1))
        self.hot.table_changed(lane, self.limits.block_size)
        return True

    def extend_all(self, lanes: list[int]) -> bool:
        """Give each of these lanes another block, if so many are free and none is set aside for anybody."""
        if self._protected or self.blocks.num_free < len(lanes):
            return False
        blocks = self.blocks.allocate(len(lanes))
        for lane, block in zip(lanes, blocks, strict=True):
            self.hot.tables[lane].ids.append(block)
        self.hot.room[lanes] += self.limits.block_size
        self.hot.last_block[lanes] = blocks
        return True

    def prompts(self) -> list[int]:
        """Lanes with a prompt to compute, by rank."""
        if self._num_prompts == 0:
            return []
        return [lane for lane in self.running if self.phases[lane] is Phase.PROMPT]

    def reserve_more(self, lane: int, budget: int) -> PromptRow | None:
        """A row for the next chunk of a lane's prompt, if there are blocks for it."""
        sequence, table = self.sequence(lane), self.hot.tables[lane]
        raw = sequence.tokens.tobytes()
        grant = self.blocks.reserve(table, raw, int(self.hot.computed[lane]), budget, spare=self.set_aside(lane))
        return None if grant is None else self.prompt_row(lane, raw, grant)

    def prompt_row(self, lane: int, raw: bytes, grant: Grant) -> PromptRow:
        """The row for what was granted to a lane's prompt; counts it as computed."""
        sequence = self.sequence(lane)
        end = grant.start + grant.count
        samples = end == len(sequence.tokens)
        self.hot.computed[lane] = end
        self.hot.table_changed(lane, self.limits.block_size)
        self.hot.inflight[lane] += samples
        return PromptRow(lane, sequence, self.hot.tables[lane], raw, grant, samples)

    def forecast(self, history: OutputHistory) -> Forecast:
        """What memory the running sequences will take."""
        lanes = np.array(self.running, np.int32)
        lengths = (self.hot.known[lanes] + self.hot.inflight[lanes]).astype(np.float64)
        num_prompt = self.hot.num_prompt[lanes].astype(np.float64)
        remaining = history.remaining(lengths - num_prompt, self.hot.limit[lanes] - num_prompt)
        return Forecast(lengths, remaining, self.limits.block_size)

    # --- plans ---

    def num_decodes(self) -> int:
        """How many lanes decode."""
        return len(self._decodes())

    def decoding(self) -> set[int]:
        """The lanes that decode."""
        return set(self._decodes().lanes.tolist())

    def build_plan(self, prompt_rows: list[PromptRow], skipped: list[int]) -> Plan:
        """A plan of all lanes that decode but those in `skipped`, and of `prompt_rows`; it must be sent."""
        decodes = self._decodes()
        if skipped:
            decodes = DecodeRows([lane for lane in decodes.lanes.tolist() if lane not in skipped], self.hot)
        sampled = [row for row in prompt_rows if row.samples]
        sampled_lanes = np.array([row.lane for row in sampled], np.int32)
        block_size, step = self.limits.block_size, self._next_step
        parts, sampling, samples = [], [], []
        if len(decodes):
            parts.append(decodes.take_step(self.hot, block_size))
            sampling.append(decodes.sampling)
            samples.append(len(decodes))
        if prompt_rows:
            parts.append(prompt_columns(prompt_rows, len(decodes), block_size))
            sampling.append(sampling_columns(sampled_lanes, self.hot))
            samples.append(len(sampled))
        plan = build_plan(self.epoch, step, parts, sampling, samples)
        lanes, serials, sequences = decodes.lanes, decodes.serials, decodes.sequences
        if sampled:
            lanes = np.concatenate([lanes, sampled_lanes])
            serials = np.concatenate([serials, self.hot.serial[sampled_lanes]])
            sequences = [*sequences, *(row.sequence for row in sampled)]
        unsampled = [row.sequence for row in prompt_rows if not row.samples]
        self.inflight.append(InflightPlan(step, lanes, serials, sequences, unsampled))
        self._next_step += 1
        for row in sampled:
            self.phases[row.lane] = Phase.DECODE
            self._num_prompts -= 1
            self._decode_rows = None
        self._retire(lanes)
        return plan

    def land(self, tokens: IntArray) -> Landed:
        """Take in the answer to the oldest plan in flight: a token for each sampled row."""
        plan = self.inflight.popleft()
        hot, lanes, sequences = self.hot, plan.lanes, plan.sequences
        strays: list[tuple[Sequence, int]] = []
        alive = hot.serial[lanes] == plan.serials
        if not alive.all():
            strays = [(sequences[i], int(tokens[i])) for i in np.flatnonzero(~alive).tolist()]
            kept = np.flatnonzero(alive)
            lanes, tokens, sequences = lanes[kept], tokens[kept], [sequences[i] for i in kept.tolist()]
        known = hot.known[lanes]
        hot.tokens[lanes, known] = tokens
        known = known + 1
        hot.known[lanes] = known
        hot.inflight[lanes] -= 1
        stopped = hot.is_stop(lanes, tokens)
        landed = Landed(
            sequences=sequences,
            tokens=tokens.tolist(),
            firsts=[sequences[i] for i in np.flatnonzero(known == hot.num_prompt[lanes] + 1).tolist()],
            stopped=[sequences[i] for i in np.flatnonzero(stopped).tolist()] if stopped.any() else [],
            exhausted=[],
        )
        self._publish()
        if strays:
            self._land_strays(strays, landed)
        return landed

    def abandon(self) -> None:
        """The epoch is over: tokens in flight will never land."""
        self.hot.inflight[:] = 0
        for plan in self.inflight:
            for sequence in plan.sequences:
                sequence.num_inflight = 0

    def check(self) -> None:
        """Assert the invariants that can be seen from one worker."""
        hot, size = self.hot, self.limits.block_size
        self.blocks.check(hot.tables[lane] for lane in self.running)
        assert sorted(self.running + hot.free) == list(range(len(hot.known))), "a lane is lost or held twice"
        ranks = [self.sequence(lane).rank for lane in self.running]
        assert ranks == sorted(ranks), "running sequences are out of order"
        assert self._num_prompts == sum(self.phases[lane] is Phase.PROMPT for lane in self.running)
        assert self.set_aside() <= self.blocks.num_free, "blocks that are set aside are not there"
        for lane in self.running:
            sequence, table = self.sequence(lane), hot.tables[lane]
            known, computed, inflight = int(hot.known[lane]), int(hot.computed[lane]), int(hot.inflight[lane])
            assert (sequence.state, sequence.epoch, sequence.lane) == (State.RUNNING, self.epoch, lane)
            planned = sum((plan.serials[plan.lanes == lane] == hot.serial[lane]).sum() for plan in self.inflight)
            assert inflight == planned, "tokens in flight do not follow from the plans in flight"
            assert computed <= known + inflight < sequence.max_length
            assert len(table.ids) == self.blocks.blocks_for(computed), "the table does not follow the count"
            assert hot.room[lane] == len(table.ids) * size
            assert hot.last_block[lane] == table.ids[-1]
            assert table.is_stuck or hot.publish_at[lane] == (table.num_published + 1) * size
            if self.phases[lane] is Phase.PROMPT:
                assert computed < known
            else:
                assert computed == known + inflight - 1
        for sequence in self.landing:
            assert (sequence.state, sequence.epoch, sequence.lane) == (State.LANDING, self.epoch, -1)
            assert len(sequence.tokens) + sequence.num_inflight == sequence.max_length

    # --- inside ---

    def _decodes(self) -> DecodeRows:
        """The lanes that decode."""
        if self._decode_rows is None:
            decoding = [lane for lane in self.running if self.phases[lane] is Phase.DECODE]
            self._decode_rows = DecodeRows(decoding, self.hot)
        return self._decode_rows

    def _retire(self, lanes: IntArray) -> None:
        """Sequences whose last token is in flight need no lane and no blocks any more: whoever gets them next uses
        them in a later plan."""
        hot = self.hot
        done = hot.known[lanes] + hot.inflight[lanes] >= hot.limit[lanes]
        if done.any():
            for lane in lanes[done].tolist():
                sequence = self.sequence(lane)
                self._free_lane(sequence)
                sequence.state, sequence.epoch = State.LANDING, self.epoch
                self.landing.append(sequence)

    def _publish(self) -> None:
        """Enter full blocks of known tokens into the prefix cache; those of decoded tokens come here only."""
        hot, size = self.hot, self.limits.block_size
        for lane, usable in hot.due_for_publishing():
            table = hot.tables[lane]
            first = table.num_published
            raw = hot.tokens[lane, first * size : usable // size * size].tobytes()
            if self.blocks.publish(table, raw, first, may_merge=True):
                self.closed = False  # a duplicate was given back
                hot.table_changed(lane, size)
            else:
                hot.publishing_changed(lane, size)

    @staticmethod
    def _land_strays(strays: list[tuple[Sequence, int]], landed: Landed) -> None:
        """Tokens of sequences that have no lane any more; one that has ended gets none."""
        for sequence, token in strays:
            if sequence.state is State.FINISHED:
                continue
            sequence.num_inflight -= 1
            sequence.tokens.append(token)
            landed.sequences.append(sequence)
            landed.tokens.append(token)
            if len(sequence.tokens) == sequence.num_prompt + 1:
                landed.firsts.append(sequence)
            if token in sequence.params.stop_token_ids:
                landed.stopped.append(sequence)
            elif len(sequence.tokens) >= sequence.max_length:
                landed.exhausted.append(sequence)
