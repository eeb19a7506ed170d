"""The blocks of one executor's pool as pages are shown them: what each is, and when it changed last."""

import base64
import zlib

import numpy as np

from common.messages import BLOCK_FACTOR, BlockChanges
from common.wire import int32_array
from scheduler_svc.frontend.live.page_events import Events, page_event

OLDEST = 31  # of the ages of a map: each is twice the one before, in seconds
NEVER = float("-inf")


class BlockMap:
    """Takes in changes, and gives the whole map to pages that come later.

    Args:
        num_blocks: of the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        self._states = np.zeros(num_blocks, np.uint8)
        self._changed_at = np.full(num_blocks, NEVER, np.float32)

    def apply(self, changes: BlockChanges, now: float) -> None:
        """Take in what is told of these blocks. Raises WireError if it makes no sense."""
        for told, is_change in ((changes.found, False), (changes.changed, True)):
            values = int32_array("blocks", told)
            blocks, states = values // BLOCK_FACTOR, values % BLOCK_FACTOR
            known = (blocks >= 0) & (blocks < len(self._states))
            self._states[blocks[known]] = states[known]
            if is_change:
                self._changed_at[blocks[known]] = now

    def event(self, epoch: int, now: float) -> Events:
        """The whole map, as a page is told it: base64 of zlib of a byte for each block, `state + 8 * age`."""
        ages = np.full(len(self._states), OLDEST, np.uint8)
        changed = np.flatnonzero(self._changed_at > NEVER)
        seconds = np.maximum(now - self._changed_at[changed], 0.5)
        ages[changed] = np.clip(np.floor(np.log2(seconds)) + 1, 0, OLDEST)
        packed = base64.b64encode(zlib.compress((self._states + BLOCK_FACTOR * ages).tobytes(), 1)).decode()
        return page_event("map", {"epoch": epoch, "num_blocks": len(self._states), "states": packed})


def encoded_blocks(values: bytes) -> str:
    """Changes as pages read them."""
    return base64.b64encode(values).decode()
