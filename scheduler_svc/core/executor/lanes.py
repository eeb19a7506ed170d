"""The facts of one executor's running sequences that change with each step: one numpy column a fact, indexed by lane.

A step of hundreds of decoding sequences reads and writes whole columns and does no Python work for each of them.
Pure.
"""

from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from common.sampling_columns import SAMPLING_COLUMNS, SamplingColumns
from common.wire import IntArray
from scheduler_svc.core.executor.block_manager import BlockTable
from scheduler_svc.core.sequence import Sequence

MAX_STOPS = 8  # stop tokens that are looked for in one comparison; a sequence with more is looked at by itself
NEVER = 2**31 - 1
INITIAL_TOKENS = 512
INITIAL_LANES = 64  # more are made when sequences hold all: an executor's Hello may promise thousands
_ZERO_AT_FIRST = (
    *("num_prompt", "known", "inflight", "computed", "limit", "room", "last_block"),
    *("has_more_stops", "is_constrained", "num_logprobs"),
)

Column = TypeVar("Column", bound=npt.NDArray[Any])


class LanePhase(IntEnum):
    """What a lane's sequence needs next."""

    PROMPT = 0  # known tokens that are not computed yet
    DECODE = 1  # its last token, known or in flight
    FREE = 2  # no sequence holds the lane


class Lanes:
    """Columns of int32, an entry for each lane that was ever held. A free lane is never due for anything.

    Args:
        num_lanes: that there may be.

    Attributes:
        num_prompt: tokens of the prompt.
        known: tokens whose values are known.
        inflight: tokens that plans in flight will sample; a pooled result counts as one.
        computed: tokens whose K and V are in the sequence's blocks once the plans in flight have run.
        limit: length at which the sequence ends.
        room: positions that its blocks have room for.
        last_block: the last block of its table.
        publish_at: when `known` and `computed` have both reached this, another block can be published.
        stops: [lanes, MAX_STOPS] stop tokens, -1 where there are fewer.
        has_more_stops: bool, whether there are more stop tokens than fit.
        tokens: [lanes, longest limit so far], the known tokens.
        serial: int64, which admission holds the lane; -1 for none.
        start, weight: float64, of the sequence's share; infinite and 1 for a free lane.
        sampling: how the sequence draws.
        is_constrained: bool, whether it has constraints.
        num_logprobs: log-probabilities that come with each token.
        sequences, tables: lists; a free lane has no sequence, and its table is empty.
        phases: list of LanePhase.
        free: lanes that no sequence holds.
    """

    def __init__(self, num_lanes: int) -> None:
        self._max_lanes = num_lanes
        self.num_prompt, self.known, self.inflight, self.computed = (np.zeros(0, np.int32) for _ in range(4))
        self.limit, self.room, self.last_block = (np.zeros(0, np.int32) for _ in range(3))
        self.publish_at: IntArray = np.zeros(0, np.int32)
        self.stops: IntArray = np.zeros((0, MAX_STOPS), np.int32)
        self.has_more_stops, self.is_constrained = (np.zeros(0, np.bool_) for _ in range(2))
        self.num_logprobs: IntArray = np.zeros(0, np.int32)
        self.tokens: IntArray = np.zeros((0, INITIAL_TOKENS), np.int32)
        self.serial: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.start, self.weight = np.zeros(0), np.zeros(0)
        self.sampling = SamplingColumns.greedy(0)
        self.sequences: list[Sequence | None] = []
        self.tables: list[BlockTable] = []
        self.phases: list[LanePhase] = []
        self.free: list[int] = []
        self._next_serial = 0
        self._make_lanes(min(num_lanes, INITIAL_LANES))

    @property
    def has_free(self) -> bool:
        """Whether another sequence could hold a lane."""
        return bool(self.free) or len(self.sequences) < self._max_lanes

    @property
    def least_served(self) -> float:
        """The least that a sequence with a lane has had: its start, and its tokens over its weight."""
        return float((self.start + self.computed / self.weight).min())

    def sequence(self, lane: int) -> Sequence:
        """The sequence that holds a lane."""
        sequence = self.sequences[lane]
        assert sequence is not None, f"lane {lane} is free"
        return sequence

    def enter(self, sequence: Sequence, table: BlockTable) -> int:
        """Give a sequence a lane, with a prompt to compute, and copy its facts into the columns.

        `computed` and `table_changed` must follow.
        """
        if not self.free:
            self._make_lanes(min(len(self.sequences), self._max_lanes - len(self.sequences)))
        lane = self.free.pop()
        params, length = sequence.params, len(sequence.tokens)
        self.sequences[lane] = sequence
        self.tables[lane] = table
        self.phases[lane] = LanePhase.PROMPT
        self.serial[lane] = self._next_serial
        self._next_serial += 1
        self.start[lane], self.weight[lane] = sequence.start, sequence.share.weight
        self.num_prompt[lane] = sequence.num_prompt
        self.known[lane] = length
        self.inflight[lane] = 0
        self.limit[lane] = sequence.max_length
        if sequence.max_length > self.tokens.shape[1]:
            self._reshape_tokens(len(self.tokens), max(sequence.max_length, 2 * self.tokens.shape[1]))
        self.tokens[lane, :length] = np.frombuffer(sequence.tokens, np.int32)
        self.stops[lane] = -1
        stops = params.stop_token_ids[:MAX_STOPS]
        self.stops[lane, : len(stops)] = stops
        self.has_more_stops[lane] = len(params.stop_token_ids) > MAX_STOPS
        self.is_constrained[lane] = params.constraints is not None
        self.num_logprobs[lane] = params.logprobs
        for column, name in self._sampling_fields:
            column[lane] = getattr(params, name)
        self.sampling.seeds[lane] = sequence.seed  # its own, of a request that may have several sequences
        return lane

    def leave(self, lane: int) -> None:
        """Take the lane back. Its sequence gets all its known tokens."""
        sequence = self.sequence(lane)
        generated = self.tokens[lane, len(sequence.tokens) : self.known[lane]]
        if len(generated):
            sequence.tokens.frombytes(generated.tobytes())
            sequence.largest_token = max(sequence.largest_token, int(generated.max()))
            sequence.num_written = len(sequence.tokens) - 1  # the last token was sampled, and not computed with
        self.sequences[lane] = None
        self.phases[lane] = LanePhase.FREE
        self.serial[lane] = -1
        self.start[lane] = np.inf
        self.publish_at[lane] = NEVER
        self.free.append(lane)

    def table_changed(self, lane: int, block_size: int) -> None:
        """Derive what follows from the lane's table."""
        table = self.tables[lane]
        self.room[lane] = len(table.ids) * block_size
        self.last_block[lane] = table.ids[-1]
        self.publishing_changed(lane, block_size)

    def publishing_changed(self, lane: int, block_size: int) -> None:
        """Derive what follows from how many of the lane's blocks are published."""
        table = self.tables[lane]
        self.publish_at[lane] = NEVER if table.is_stuck else (table.num_published + 1) * block_size

    def due_for_publishing(self) -> list[tuple[int, int]]:
        """Lanes with a full block of known tokens that is not published yet, and how many tokens are known and
        computed there."""
        usable = np.minimum(self.known, self.computed)
        due = np.flatnonzero(usable >= self.publish_at)
        return list(zip(due.tolist(), usable[due].tolist(), strict=True))

    def append(self, lanes: IntArray, tokens: IntArray) -> IntArray:
        """Tokens of these lanes' sequences have arrived; returns how many each sequence had generated before."""
        known = self.known[lanes]
        self.tokens[lanes, known] = tokens
        self.known[lanes] = known + 1
        self.inflight[lanes] -= 1
        return known - self.num_prompt[lanes]

    def output_of(self, sequence: Sequence) -> bytes:
        """The tokens that a sequence with a lane has generated so far, int32."""
        tokens = self.tokens[sequence.lane, sequence.num_prompt : self.known[sequence.lane]]
        return tokens.astype("<i4").tobytes()

    def is_stop(self, lanes: IntArray, tokens: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each token is a stop token of its lane's sequence; bool [lanes]."""
        found: npt.NDArray[np.bool_] = (self.stops[lanes] == tokens[:, None]).any(axis=1)
        if self.has_more_stops.any():
            for i in np.flatnonzero(self.has_more_stops[lanes]).tolist():
                found[i] = int(tokens[i]) in self.sequence(lanes[i]).params.stop_token_ids
        return found

    def _make_lanes(self, count: int) -> None:
        """Lanes that no sequence has held before: the lowest is given away first."""
        first = len(self.sequences)
        for name in _ZERO_AT_FIRST:
            setattr(self, name, _extended(getattr(self, name), count, 0))
        self.publish_at = _extended(self.publish_at, count, NEVER)
        self.stops = _extended(self.stops, count, -1)
        self._reshape_tokens(first + count, self.tokens.shape[1])
        self.serial = _extended(self.serial, count, -1)
        self.start, self.weight = _extended(self.start, count, np.inf), _extended(self.weight, count, 1.0)
        greedy = SamplingColumns.greedy(count)
        self.sampling = SamplingColumns(
            **{name: np.concatenate([column, getattr(greedy, name)]) for name, column in vars(self.sampling).items()}
        )
        self._sampling_fields = [(getattr(self.sampling, name), of.name) for name, of in SAMPLING_COLUMNS.items()]
        self.sequences += [None] * count
        self.tables += [BlockTable() for _ in range(count)]
        self.phases += [LanePhase.FREE] * count
        self.free += range(first, first + count)[::-1]

    def _reshape_tokens(self, num_lanes: int, width: int) -> None:
        """Memory that no token was written to is not taken from the system."""
        num_written = min(int(self.known.max(initial=0)), self.tokens.shape[1])
        tokens = np.empty((num_lanes, width), np.int32)
        tokens[: len(self.tokens), :num_written] = self.tokens[:, :num_written]
        self.tokens = tokens


def _extended(column: Column, count: int, value: float) -> Column:
    """The column with entries for `count` more lanes."""
    more = np.full((count, *column.shape[1:]), value, column.dtype)
    return np.concatenate([column, more])  # type: ignore[return-value]
