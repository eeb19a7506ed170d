"""What a plan consists of: columns of all decode rows at once, and of each prompt row. Pure."""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Lists
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from common.messages import LaneStart
from common.sampling_columns import SamplingColumns
from common.wire import IntArray
from scheduler_svc.core.executor.block_manager import TOKEN_BYTES, BlockTable, Grant
from scheduler_svc.core.executor.lanes import Lanes
from scheduler_svc.core.sequence import Sequence


class PromptRow(NamedTuple):
    """One sequence's part of a plan while its prompt is being computed (or computed again).

    Attributes:
        raw: all known tokens, int32 bytes.
        is_last: whether the row reaches the last of them, so that it brings the next one, or the pooled result.
        wanted: positions whose logits are to tell the log-probabilities of the prompt's next token.
    """

    lane: int
    sequence: Sequence
    table: BlockTable
    raw: bytes
    grant: Grant
    is_last: bool
    wanted: range = range(0)

    @property
    def samples(self) -> bool:
        """Whether the next token is sampled."""
        return self.is_last and not self.sequence.is_pooled

    @property
    def is_pooled(self) -> bool:
        """Whether the row gives a pooled result."""
        return self.is_last and self.sequence.is_pooled

    @property
    def end(self) -> int:
        """The position after its last one."""
        return self.grant.start + self.grant.count

    @property
    def num_recomputed(self) -> int:
        """Positions in the row that an answered plan had written."""
        return max(0, min(self.end, self.sequence.num_written) - self.grant.start)


class DecodeRows:
    """Lanes that decode together, and what stays the same from one of their steps to the next.

    Args:
        held: the lanes, in the order of their rows.
        lanes: their columns.
    """

    def __init__(self, held: Lists[int], lanes: Lanes) -> None:
        self.lanes: IntArray = np.array(held, np.int32)
        self.sequences = [lanes.sequence(lane) for lane in held]
        self.serials = lanes.serial[self.lanes]
        self.tables = [lanes.tables[lane].ids for lane in held]
        self.sampling = sampling_columns(self.lanes, lanes)
        self.asked = asked_columns(self.lanes, lanes)
        self._lanes_bytes = self.lanes.tobytes()
        self._ones = np.ones(len(held), np.int32).tobytes()
        self._unknown = np.full(len(held), -1, np.int32).tobytes()
        self._sample_rows = np.arange(len(held), dtype=np.int32).tobytes()

    def __len__(self) -> int:
        return len(self.sequences)

    def take_step(self, lanes: Lanes, block_size: int) -> dict[str, bytes]:
        """Columns of the next step of these lanes, all of which have room for it; counts it as computed."""
        held = self.lanes
        positions = lanes.computed[held]
        inflight = lanes.inflight[held]
        if inflight.all():
            token_ids = self._unknown
        else:
            last = lanes.tokens[held, lanes.known[held] - 1]
            token_ids = np.where(inflight > 0, -1, last).astype(np.int32).tobytes()
        slots = lanes.last_block[held] * block_size + positions % block_size
        context_lens = positions + 1
        lanes.computed[held] = context_lens
        lanes.inflight[held] = inflight + 1
        return {
            "lanes": self._lanes_bytes,
            "query_lens": self._ones,
            "context_lens": context_lens.tobytes(),
            "token_ids": token_ids,
            "slot_mapping": slots.tobytes(),
            "block_counts": (-(-context_lens // block_size)).tobytes(),
            "block_ids": b"".join(self.tables),
            "sample_rows": self._sample_rows,
        }


@dataclass(frozen=True, slots=True)
class AskedColumns:
    """What sampled rows ask for beside a token.

    Attributes:
        constrained: int32, ascending, those with constraints.
        logprob_counts: int32 [rows], log-probabilities that each wants.
    """

    constrained: IntArray
    logprob_counts: IntArray

    @property
    def wants_logprobs(self) -> bool:
        """Whether any row does."""
        return bool(self.logprob_counts.any())

    def columns(self) -> dict[str, bytes]:
        """As a plan has them."""
        counts = self.logprob_counts.tobytes() if self.wants_logprobs else b""
        return {"constrained": self.constrained.tobytes(), "logprob_counts": counts}


def prompt_columns(rows: Lists[PromptRow], first_row: int, block_size: int) -> dict[str, bytes]:
    """Columns of prompt rows that stand in a plan from row `first_row` on."""
    ends = [row.end for row in rows]
    tokens = [row.raw[row.grant.start * TOKEN_BYTES : end * TOKEN_BYTES] for row, end in zip(rows, ends, strict=True)]
    return {
        "lanes": _ints(row.lane for row in rows),
        "query_lens": _ints(row.grant.count for row in rows),
        "context_lens": _ints(ends),
        "token_ids": b"".join(tokens),
        "slot_mapping": b"".join([_slots(row.table, row.grant, block_size) for row in rows]),
        "block_counts": _ints(len(row.table.ids) for row in rows),
        "block_ids": b"".join([row.table.ids for row in rows]),
        "sample_rows": _ints(first_row + i for i, row in enumerate(rows) if row.samples),
    }


def join_columns(
    parts: Lists[dict[str, bytes]], sampling: Lists[dict[str, bytes]], samples: Lists[int]
) -> dict[str, bytes]:
    """A plan's columns: parts one after the other.

    Args:
        sampling: sampling columns of each part; empty where all of its rows are greedy.
        samples: sampled rows of each part.
    """
    if len(parts) == 1:
        return parts[0] | sampling[0]
    columns = {name: b"".join([part[name] for part in parts]) for name in parts[0]}
    if any(sampling):
        filled = [part or _greedy(count) for part, count in zip(sampling, samples, strict=True)]
        columns |= {name: b"".join([part[name] for part in filled]) for name in filled[0]}
    return columns


def sampling_columns(held: IntArray, lanes: Lanes) -> dict[str, bytes]:
    """The sampling columns of the held lanes, or none if all are greedy."""
    if not lanes.sampling.temperatures[held].any():
        return {}
    return {name: column[held].tobytes() for name, column in vars(lanes.sampling).items()}


def asked_columns(held: IntArray, lanes: Lanes) -> AskedColumns | None:
    """What the held lanes ask for beside a token; None if nothing."""
    constrained = np.flatnonzero(lanes.is_constrained[held]).astype(np.int32)
    counts = lanes.num_logprobs[held]
    return AskedColumns(constrained, counts) if len(constrained) or counts.any() else None


def join_asked(parts: Lists[AskedColumns | None], samples: Lists[int]) -> AskedColumns | None:
    """What the rows of several parts ask for; `samples` are the sampled rows of each."""
    if not any(parts):
        return None
    nothing = np.zeros(0, np.int32)
    starts = accumulate(samples[:-1], initial=0)
    constrained = [
        (nothing if part is None else part.constrained + np.int32(start))
        for part, start in zip(parts, starts, strict=True)
    ]
    counts = [
        np.zeros(count, np.int32) if part is None else part.logprob_counts
        for part, count in zip(parts, samples, strict=True)
    ]
    return AskedColumns(np.concatenate(constrained), np.concatenate(counts))


def lane_start(row: PromptRow) -> LaneStart | None:
    """What the executor has to know of a row's lane before it samples there for the first time; None if nothing."""
    params = row.sequence.params
    if params.constraints is None:
        return None
    needs_stops = params.constraints.min_tokens or params.constraints.grammar
    stops = params.stop_token_ids if needs_stops else ()
    return LaneStart(
        lane=row.lane,
        num_prompt=row.sequence.num_prompt,
        tokens=row.raw,
        constraints=params.constraints,
        stop_token_ids=_ints(stops),
    )


def _greedy(count: int) -> dict[str, bytes]:
    """Sampling columns of greedy rows in a plan where others are not."""
    return {name: column.tobytes() for name, column in vars(SamplingColumns.greedy(count)).items()}


def _slots(table: BlockTable, grant: Grant, block_size: int) -> bytes:
    """Slot of each granted position, int32 bytes [grant.count]; -1 where the position is cached already."""
    first = grant.start // block_size
    blocks = np.frombuffer(table.ids, np.int32)[first:]
    skipped = grant.start - first * block_size
    slots = (blocks[:, None] * np.int32(block_size) + np.arange(block_size, dtype=np.int32)).ravel()
    slots = slots[skipped : skipped + grant.count]
    slots[: max(0, grant.store_from - grant.start)] = -1
    return slots.tobytes()


def _ints(values: Iterable[int]) -> bytes:
    return array("i", values).tobytes()
