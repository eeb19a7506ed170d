"""A plan's columns: one part for all decode rows at once, and one for each prompt row. Pure."""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Lists
from typing import NamedTuple

import numpy as np

from common.messages import Plan
from common.wire import IntArray
from scheduler_svc.core.executor.block_manager import TOKEN_BYTES, BlockTable, Grant
from scheduler_svc.core.executor.lanes import Lanes
from scheduler_svc.core.sequence import Sequence


class PromptRow(NamedTuple):
    """One sequence's part of a plan while its prompt is being computed (or computed again).

    Attributes:
        raw: all known tokens, int32 bytes.
        samples: whether the row reaches the last of them, so that the next one is sampled.
    """

    lane: int
    sequence: Sequence
    table: BlockTable
    raw: bytes
    grant: Grant
    samples: bool


class DecodeRows:
    """Lanes that decode together, and what stays the same from one of their steps to the next.

    Args:
        lanes: in the order of their rows.
    """

    def __init__(self, lanes: Lists[int], hot: Lanes) -> None:
        self.lanes: IntArray = np.array(lanes, np.int32)
        self.sequences = [sequence for lane in lanes if (sequence := hot.sequences[lane]) is not None]
        self.serials = hot.serial[self.lanes]
        self.tables = [hot.tables[lane].ids for lane in lanes]
        self.sampling = sampling_columns(self.lanes, hot)
        self._lanes_bytes = self.lanes.tobytes()
        self._ones = np.ones(len(lanes), np.int32).tobytes()
        self._unknown = np.full(len(lanes), -1, np.int32).tobytes()
        self._sample_rows = np.arange(len(lanes), dtype=np.int32).tobytes()

    def __len__(self) -> int:
        return len(self.sequences)

    def take_step(self, hot: Lanes, block_size: int) -> dict[str, bytes]:
        """Columns of the next step of these lanes, all of which have room for it; counts it as computed."""
        lanes = self.lanes
        positions = hot.computed[lanes]
        inflight = hot.inflight[lanes]
        if inflight.all():
            token_ids = self._unknown
        else:
            last = hot.tokens[lanes, hot.known[lanes] - 1]
            token_ids = np.where(inflight > 0, -1, last).astype(np.int32).tobytes()
        slots = hot.last_block[lanes] * block_size + positions % block_size
        context_lens = positions + 1
        hot.computed[lanes] = context_lens
        hot.inflight[lanes] = inflight + 1
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


def prompt_columns(rows: Lists[PromptRow], first_row: int, block_size: int) -> dict[str, bytes]:
    """Columns of prompt rows that stand in a plan from row `first_row` on."""
    ends = [row.grant.start + row.grant.count for row in rows]
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


def build_plan(
    epoch: int, step: int, parts: Lists[dict[str, bytes]], sampling: Lists[dict[str, bytes]], samples: Lists[int]
) -> Plan:
    """Parts one after the other.

    Args:
        sampling: sampling columns of each part; empty where all of its rows are greedy.
        samples: sampled rows of each part.
    """
    columns = {name: b"".join([part[name] for part in parts]) for name in parts[0]}
    if any(sampling):
        filled = [part or _greedy(count) for part, count in zip(sampling, samples, strict=True)]
        columns |= {name: b"".join([part[name] for part in filled]) for name in filled[0]}
    return Plan(epoch=epoch, step=step, **columns)


def sampling_columns(lanes: IntArray, hot: Lanes) -> dict[str, bytes]:
    """The five sampling columns of these lanes, or none if all are greedy."""
    temperatures = hot.temperature[lanes]
    if not temperatures.any():
        return {}
    return {
        "temperatures": temperatures.tobytes(),
        "top_ks": hot.top_k[lanes].tobytes(),
        "top_ps": hot.top_p[lanes].tobytes(),
        "min_ps": hot.min_p[lanes].tobytes(),
        "seeds": hot.seed[lanes].tobytes(),
    }


def _greedy(count: int) -> dict[str, bytes]:
    """Sampling columns of greedy rows in a plan where others are not."""
    zeros = bytes(4 * count)
    ones = np.ones(count, np.float32).tobytes()
    return {"temperatures": zeros, "top_ks": zeros, "top_ps": ones, "min_ps": zeros, "seeds": bytes(8 * count)}


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
