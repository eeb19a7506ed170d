"""What is known of a pool's content when an epoch ends with plans that were not answered (invariant 7). Pure.

Such a plan may have run, or not, or in part, and may still run: what it writes is not known. All that other plans have
written is: it stays in the prefix cache, or with the sequence that wrote it as its tail.
"""

from array import array
from collections.abc import Iterable

import numpy as np

from common.wire import IntArray
from scheduler_svc.core.executor.block_manager import BlockManager
from scheduler_svc.core.executor.inflight_plan import InflightPlan
from scheduler_svc.core.executor.running_sequences import RunningSequences
from scheduler_svc.core.sequence import State


def keep_what_is_known(
    origin: int, blocks: BlockManager, unanswered: Iterable[InflightPlan], running: RunningSequences
) -> None:
    """Forget the blocks that unanswered plans write, and give each sequence of the epoch its tail.

    Args:
        origin: of the pool's index.
        blocks: of the pool.
        unanswered: plans in flight, in the order sent.
        running: sequences that still hold their lanes.
    """
    plans = list(unanswered)
    written, first_offsets = _written(b"".join([plan.slot_mapping for plan in plans]), blocks.block_size)
    blocks.forget(written)

    def num_valid(ids: "array[int]", num_computed: int) -> int:
        """Positions before the first one that an unanswered plan writes."""
        entries = np.frombuffer(ids, np.int32)
        places = np.flatnonzero(np.isin(entries, written))
        if not len(places):
            return num_computed
        first = int(places[0])
        offset = int(first_offsets[np.searchsorted(written, entries[first])])
        return min(num_computed, first * blocks.block_size + offset)

    for sequence in running:
        ids = running.table_of(sequence).ids
        sequence.tail = blocks.keep_tail(origin, ids, num_valid(ids, running.num_computed(sequence)))
    # Those whose last token was in flight have given their tables back. What was handed out since is written by later
    # plans, none of which is answered.
    for sequence, ids, spared in [completed for plan in plans for completed in plan.completed]:
        blocks.unspare(spared)
        if sequence.state is State.COMPLETING:
            sequence.tail = blocks.keep_tail(origin, ids, num_valid(ids, sequence.num_positions))


def _written(slot_mapping: bytes, block_size: int) -> tuple[IntArray, IntArray]:
    """Blocks that stand in a slot mapping, ascending, and in each the first offset that does."""
    slots = np.unique(np.frombuffer(slot_mapping, np.int32))
    slots = slots[slots >= 0]
    written, firsts = np.unique(slots // block_size, return_index=True)
    return written, slots[firsts] % block_size
