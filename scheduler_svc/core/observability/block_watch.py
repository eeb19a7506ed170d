"""Which blocks of a pool have changed, for a map of it. Pure.

Nothing is written down while no map is shown, and little while one is: a block's number where its count changes. A map
begins with a walk over all blocks, a slice at a time, so that a pool of a million holds nothing up.
"""

from itertools import islice

import numpy as np

from common.messages import BLOCK_FACTOR, BlockChanges
from common.wire import IntArray
from scheduler_svc.core.executor.block_manager import BlockManager

BLOCKS_AT_ONCE = 2**15  # that one View tells of all pools: a few milliseconds of work


class BlockWatch:
    """Watches the blocks of one epoch.

    Args:
        epoch, blocks: of the executor.
    """

    def __init__(self, epoch: int, blocks: BlockManager) -> None:
        self._epoch = epoch
        self._blocks = blocks
        self._next = 0  # where the walk goes on
        blocks.touched = {}

    def begin_anew(self) -> None:
        """Tell of all blocks again."""
        self._next = 0

    def stop(self) -> None:
        """Nothing is watched any more."""
        self._blocks.touched = None

    def changes(self, limit: int = BLOCKS_AT_ONCE) -> BlockChanges | None:
        """What has changed since the last call, of so many blocks at most; None for nothing."""
        changed = self._changed(limit)
        found = self._found(limit - len(changed) // 4)
        return BlockChanges(epoch=self._epoch, changed=changed, found=found) if changed or found else None

    def _changed(self, limit: int) -> bytes:
        touched = self._blocks.touched
        if not touched:
            return b""
        some = list(islice(touched, limit))
        if len(some) == len(touched):
            touched.clear()
        else:
            for block in some:
                del touched[block]
        return _encoded(np.array(some, np.int32), self._blocks.states(some).astype(np.int32))

    def _found(self, limit: int) -> bytes:
        first, end = self._next, min(self._next + limit, len(self._blocks.ref_counts))
        if first >= end:
            return b""
        self._next = end
        states = self._blocks.states(range(first, end)).astype(np.int32)
        found = np.flatnonzero(states).astype(np.int32)
        return _encoded(found + first, states[found])


def _encoded(blocks: IntArray, states: IntArray) -> bytes:
    return (blocks * BLOCK_FACTOR + states).astype("<i4").tobytes()
