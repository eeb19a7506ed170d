"""The sequences that hold a lane on one executor: their order, what each needs next, and their blocks. Pure."""

from bisect import insort
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from common.plan import ExecutorLimits
from common.wire import IntArray
from scheduler_svc.core.executor.block_manager import Accept, BlockManager, BlockTable, Grant
from scheduler_svc.core.executor.lanes import LanePhase, Lanes
from scheduler_svc.core.executor.memory_forecast import Forecast, Growing
from scheduler_svc.core.executor.plan_builder import DecodeRows, PromptRow
from scheduler_svc.core.sequence import NO_POSITION, Sequence, State

LANES_A_LINE = 64  # sequences that yield keep one lane of so many
PROMPT_SHARE = 8  # one in so many tokens of a plan's budget is not given to lanes, so that prompts always go on


class RunningSequences:
    """Lanes and the blocks behind them.

    Args:
        epoch, limits, blocks: of the executor.
        origin: see `ExecutorState`.

    Attributes:
        lanes: a column for each fact of a lane.
        order: lanes that are held, by the rank of their sequences.
        num_yielding: how many of these sequences yield.
        num_kept: how many of those that yield have a lane to keep.
    """

    def __init__(self, epoch: int, limits: ExecutorLimits, blocks: BlockManager, origin: int = 0) -> None:
        budget = limits.max_batch_tokens
        self.lanes = Lanes(max(1, min(limits.max_num_seqs, budget - budget // PROMPT_SHARE)))
        self.order: list[int] = []
        self.num_yielding = 0
        self.num_kept = limits.max_num_seqs // LANES_A_LINE
        self._epoch = epoch
        self._origin = origin
        self._blocks = blocks
        self._block_size = limits.block_size
        self._cost = 0  # tokens that all of them are expected to take
        self._num_prompts = 0  # lanes in LanePhase.PROMPT
        self._decode_rows: DecodeRows | None = None

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Sequence]:
        """By rank."""
        return map(self.lanes.sequence, self.order)

    def __reversed__(self) -> Iterator[Sequence]:
        """The last in rank first."""
        return map(self.lanes.sequence, reversed(self.order))

    @property
    def last(self) -> Sequence:
        """The last in rank; there must be one."""
        return self.lanes.sequence(self.order[-1])

    @property
    def has_free_lane(self) -> bool:
        """Whether another sequence could hold a lane."""
        return self.lanes.has_free

    @property
    def load(self) -> int:
        """Tokens that they are expected to take, but for prompts whose first token has come."""
        lanes, held = self.lanes, np.array(self.order, np.int32)
        prompts = lanes.num_prompt[held]
        return max(0, self._cost - int(prompts[lanes.known[held] > prompts].sum()))

    # --- what they need next ---

    def prompts(self) -> list[Sequence]:
        """Sequences with a prompt to compute, by rank."""
        if self._num_prompts == 0:
            return []
        return [self.lanes.sequence(lane) for lane in self.order if self.lanes.phases[lane] is LanePhase.PROMPT]

    def has_prompt(self, sequence: Sequence) -> bool:
        """Whether a sequence that ran here a moment ago still holds a lane, and has a prompt to compute."""
        return sequence.lane >= 0 and self.lanes.phases[sequence.lane] is LanePhase.PROMPT

    def decodes(self, sequence: Sequence) -> bool:
        """Whether a sequence that ran here a moment ago still holds a lane, and decodes."""
        return sequence.lane >= 0 and self.lanes.phases[sequence.lane] is LanePhase.DECODE

    def decode_rows(self) -> DecodeRows:
        """The sequences that decode."""
        if self._decode_rows is None:
            decoding = [lane for lane in self.order if self.lanes.phases[lane] is LanePhase.DECODE]
            self._decode_rows = DecodeRows(decoding, self.lanes)
        return self._decode_rows

    def prompt_done(self, sequence: Sequence) -> None:
        """A plan computes the last of a sequence's known tokens: it decodes from now on."""
        self.lanes.phases[sequence.lane] = LanePhase.DECODE
        self._num_prompts -= 1
        self._decode_rows = None

    def table_of(self, sequence: Sequence) -> BlockTable:
        """The blocks of a sequence with a lane."""
        return self.lanes.tables[sequence.lane]

    def num_own_blocks(self, sequence: Sequence) -> int:
        """Count the blocks of a sequence with a lane that no other one holds."""
        ref_counts = self._blocks.ref_counts
        return sum([ref_counts[block] == 1 for block in self.table_of(sequence).ids])

    def num_computed(self, sequence: Sequence) -> int:
        """Tokens of a sequence with a lane that are computed once the plans in flight have run."""
        return int(self.lanes.computed[sequence.lane])

    # --- memory ---

    def lanes_without_room(self) -> list[int]:
        """Lanes that decode and whose blocks are full."""
        decoding = self.decode_rows().lanes
        full: list[int] = decoding[self.lanes.computed[decoding] >= self.lanes.room[decoding]].tolist()
        return full

    def extend_all(self, sitting: Collection[Sequence] = ()) -> list[Sequence]:
        """Give another block to each sequence that decodes and whose blocks are full, if there are enough for all.

        Args:
            sitting: sequences that get none, as they sit the next plan out.

        Returns:
            The sequences that lack a block: none, or all of them by rank.
        """
        full = self.lanes_without_room()
        if sitting:
            full = [lane for lane in full if self.lanes.sequence(lane) not in sitting]
        if not full:
            return []
        if self._blocks.num_free < len(full):
            return [self.lanes.sequence(lane) for lane in full]
        blocks = self._blocks.allocate(len(full))
        for lane, block in zip(full, blocks, strict=True):
            self.lanes.tables[lane].ids.append(block)
        self.lanes.room[full] += self._block_size
        self.lanes.last_block[full] = blocks
        return []

    def extend(self, sequence: Sequence) -> bool:
        """Give a sequence another block, if one is free."""
        if self._blocks.num_free == 0:
            return False
        self.lanes.tables[sequence.lane].ids.extend(self._blocks.allocate(1))
        self.lanes.table_changed(sequence.lane, self._block_size)
        return True

    def reserve_more(self, sequence: Sequence, budget: int) -> PromptRow | None:
        """A row for the next chunk of a sequence's prompt, if there are blocks for it."""
        lane, raw = sequence.lane, sequence.tokens.tobytes()
        computed, table = self.num_computed(sequence), self.lanes.tables[lane]
        wanted_from = sequence.wanted_from(computed)
        grant = self._blocks.reserve(table, raw, computed, budget, wanted_from=wanted_from)
        return None if grant is None else self._prompt_row(sequence, raw, grant, wanted_from)

    def extended(self, row: PromptRow, budget: int) -> PromptRow:
        """Return a row of the plan that is being made with up to so many tokens more, if there are blocks for them."""
        computed, raw = self.num_computed(row.sequence), row.raw
        if row.is_last or (more := self._blocks.reserve(row.table, raw, computed, budget, may_hit=False)) is None:
            return row
        first = row.grant
        grant = replace(first, count=first.count + more.count, num_new=first.num_new + more.num_new)
        return self._prompt_row(row.sequence, raw, grant, NO_POSITION)

    def forecast(self) -> Forecast:
        """What memory they will take."""
        lanes, held = self.lanes, np.array(self.order, np.int32)
        lengths = (lanes.known[held] + lanes.inflight[held]).astype(np.float64)
        # What is in several tables is there once: each sequence bears the same part of what is saved.
        num_saved = int(lanes.room[held].sum()) - (self._blocks.num_blocks - self._blocks.num_free) * self._block_size
        growing = Growing(
            sizes=lengths - num_saved / max(1, len(held)),
            remaining=np.maximum(1, lanes.limit[held] - lengths),  # of a pooled sequence none is left
            can_stop=lanes.stops[held, 0] >= 0,
        )
        return Forecast(growing, self._block_size)

    def publish(self) -> bool:
        """Enter full blocks of known tokens into the prefix cache; those of decoded tokens come here only.

        Returns:
            Whether a duplicate was given back.
        """
        lanes, size, merged = self.lanes, self._block_size, False
        for lane, usable in lanes.due_for_publishing():
            table = lanes.tables[lane]
            first = table.num_published
            raw = lanes.tokens[lane, first * size : usable // size * size].tobytes()
            if self._blocks.publish(table, raw, first, may_merge=True):
                merged = True
                lanes.table_changed(lane, size)
            else:
                lanes.publishing_changed(lane, size)
        return merged

    def forget(self, sequence: Sequence) -> None:
        """What the prefix cache has of a sequence's tokens may be wrong: no sequence will hit it any more."""
        blocks = self._blocks.match(BlockTable(sequence.cache_salt.encode()), sequence.tokens.tobytes())
        self._blocks.forget(np.array(blocks, np.int32))
        for lane in self.order:  # those that share a block keep it, and publish nothing that was computed with it
            table = self.lanes.tables[lane]
            num_good = next((i for i, block in enumerate(table.ids[: table.num_published]) if block in blocks), -1)
            if num_good >= 0:
                table.num_published, table.is_stuck = num_good, True
                self.lanes.publishing_changed(lane, self._block_size)

    # --- they come and go ---

    def enter(self, sequence: Sequence, budget: int, accept: Accept) -> PromptRow | None:
        """A lane for a waiting sequence and a row for the first chunk of its prompt, if there is memory for all of it.

        Args:
            budget: tokens that the row may have.
            accept: is asked last, with the number of its blocks that others hold already.
        """
        has_tail = sequence.tail is not None and sequence.tail.origin == self._origin and sequence.doubt is None
        table = BlockTable(sequence.cache_salt.encode(), tail=sequence.tail if has_tail else None)
        table.is_stuck = sequence.doubt is not None  # what is computed without the cache is not put into it either
        raw = sequence.tokens.tobytes()
        wanted_from = sequence.wanted_from(0)
        grant = self._blocks.reserve(table, raw, 0, budget, accept, wanted_from)
        if grant is None:
            return None
        lane = self.lanes.enter(sequence, table)
        sequence.state, sequence.epoch, sequence.lane, sequence.tail = State.RUNNING, self._epoch, lane, None
        self._num_prompts += 1
        self.num_yielding += sequence.yields
        self._cost += sequence.cost
        if self.order and sequence.rank < self.lanes.sequence(self.order[-1]).rank:
            insort(self.order, lane, key=lambda lane: self.lanes.sequence(lane).rank)
        else:
            self.order.append(lane)  # the usual case, and much cheaper
        return self._prompt_row(sequence, raw, grant, wanted_from)

    def leave(self, sequence: Sequence) -> None:
        """Take a lane and its blocks back. Plans in flight may still write both: they run before any plan that hands
        them to another sequence."""
        lane = sequence.lane
        self.order.remove(lane)
        self.num_yielding -= sequence.yields
        self._cost -= sequence.cost
        self._num_prompts -= self.lanes.phases[lane] is LanePhase.PROMPT
        sequence.num_inflight = int(self.lanes.inflight[lane])
        self.lanes.leave(lane)
        self._blocks.release(self.lanes.tables[lane])
        sequence.epoch, sequence.lane = 0, -1
        self._decode_rows = None

    def completed(self, planned: IntArray) -> list[Sequence]:
        """The sequences among those of these lanes whose last token, or pooled result, is in flight."""
        lanes = self.lanes
        done = lanes.known[planned] + lanes.inflight[planned] >= lanes.limit[planned]
        return [lanes.sequence(lane) for lane in planned[done].tolist()] if done.any() else []

    def check(self) -> None:
        """Assert the invariants that can be seen from here."""
        lanes, size = self.lanes, self._block_size
        self._blocks.check(lanes.tables[lane] for lane in self.order)
        assert sorted(self.order + lanes.free) == list(range(len(lanes.known))), "a lane is lost or held twice"
        ranks = [sequence.rank for sequence in self]
        assert ranks == sorted(ranks), "running sequences are out of order"
        assert self.num_yielding == sum(sequence.yields for sequence in self)
        assert self._cost == sum(sequence.cost for sequence in self)
        assert self._num_prompts == len([s for s in self if self.has_prompt(s)])
        for lane, sequence in zip(self.order, self, strict=True):
            table = lanes.tables[lane]
            known, computed, inflight = int(lanes.known[lane]), int(lanes.computed[lane]), int(lanes.inflight[lane])
            assert (sequence.state, sequence.epoch, sequence.lane) == (State.RUNNING, self._epoch, lane)
            assert computed <= known + inflight < sequence.max_length + sequence.is_pooled
            assert len(table.ids) == self._blocks.blocks_for(computed), "the table does not follow the count"
            assert lanes.room[lane] == len(table.ids) * size
            assert lanes.last_block[lane] == table.ids[-1]
            assert table.is_stuck or lanes.publish_at[lane] == (table.num_published + 1) * size
            if self.has_prompt(sequence):
                assert computed < known
            else:
                assert computed == known + inflight - 1

    def _prompt_row(self, sequence: Sequence, raw: bytes, grant: Grant, wanted_from: int) -> PromptRow:
        """The row for what was granted to a sequence's prompt; counts it as computed.

        Args:
            wanted_from: the sequence's, before the row.
        """
        lane, end = sequence.lane, grant.start + grant.count
        is_last = end == len(sequence.tokens)
        self.lanes.computed[lane] = end
        self.lanes.table_changed(lane, self._block_size)
        self.lanes.inflight[lane] += is_last
        wanted = range(max(grant.start, wanted_from), min(end, sequence.num_prompt - 1))
        return PromptRow(lane, sequence, self.lanes.tables[lane], raw, grant, is_last, wanted)
