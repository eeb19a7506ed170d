"""Which blocks of a pool have changed, for a map of it. Pure.

Nothing is written down while no map is shown, and little while one is: a block's number where its count changes. A map
begins with a walk over all blocks, a slice at a time, so that a pool of a million holds nothing up.
"""

import numpy as np

from common.messages import BlockChanges
from common.wire import IntArray
from scheduler_svc.core.executor.block_books import BlockBooks

BLOCKS_AT_ONCE = 2**15  # that one View tells of a pool: two milliseconds of work for those that are walked over
STATES = 8  # a change is `8 * block + state`


class BlockWatch:
    """Watches the blocks of one epoch.

    Args:
        epoch, blocks: of the executor.
    """

    def __init__(self, epoch: int, blocks: BlockBooks) -> None:
        self._epoch = epoch
        self._blocks = blocks
        self._next = 0  # where the walk goes on
        blocks.touched = []

    def begin_anew(self) -> None:
        """Tell of all blocks again."""
        self._next = 0

    def stop(self) -> None:
        """Nothing is watched any more."""
        self._blocks.touched = None

    def changes(self) -> BlockChanges | None:
        """What has changed since the last call, as far as it is told at once; None for nothing."""
        changed, found = self._changed(), self._found()
        return BlockChanges(epoch=self._epoch, changed=changed, found=found) if changed or found else None

    def _changed(self) -> bytes:
        touched = self._blocks.touched
        if not touched:
            return b""
        some = list(dict.fromkeys(touched[:BLOCKS_AT_ONCE]))
        del touched[:BLOCKS_AT_ONCE]
        states = np.fromiter(map(self._blocks.state, some), np.int32, len(some))
        return _encoded(np.array(some, np.int32), states)

    def _found(self) -> bytes:
        first, end = self._next, min(self._next + BLOCKS_AT_ONCE, len(self._blocks.ref_counts))
        if first >= end:
            return b""
        self._next = end
        states = self._blocks.states(first, end).astype(np.int32)
        found = np.flatnonzero(states).astype(np.int32)
        return _encoded(found + first, states[found])


def _encoded(blocks: IntArray, states: IntArray) -> bytes:
    return (blocks * STATES + states).astype("<i4").tobytes()
