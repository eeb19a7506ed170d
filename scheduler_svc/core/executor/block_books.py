"""What is known of each block of one executor, and which are free. Pure.

A block is an index into parallel lists: with a few dozen blocks to a prompt and a prompt in every other step, one
object a block would cost more than all the hashing.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NO_PARENT = -1
BOOKS_AT_ONCE = 1024  # blocks that books are made for when they run out: an executor's Hello may promise a million


class BlockBooks:
    """Hands out free blocks and takes them back.

    Args:
        num_blocks: ids run from 0 to num_blocks - 1.
        block_size: positions in a block.

    Attributes:
        ref_counts: tables each block stands in; 0 means free.
        keys: each block's entry in the index, None while it is not published.
        uids: name the content that a block has now, and are never used again; 0 where no name is needed. A published
            block has one, and so has a free block that is a waiting sequence's tail (`Tail`).
        contents: token ids of a published block as int32 bytes, behind the salt in the first block of a sequence;
            whatever was there last in one that is not published.
        parents, parent_uids: the block before it when it was published (NO_PARENT for a first block), and what that
            one held. A parent that was handed out anew is told from the one the child was built on.
        touched: blocks whose state may have changed, for who shows them; None while it is not shown.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ref_counts: list[int] = []
        self.keys: list[int | None] = []
        self.uids: list[int] = []
        self.contents: list[bytes] = []
        self.parents: list[int] = []
        self.parent_uids: list[int] = []
        self._index: dict[int, int] = {}
        # Free blocks, those to hand out first: blank, the last one freed; never used; named, the least recently freed.
        self._blank: list[int] = []
        self._first_unused = 0
        self._named: OrderedDict[int, None] = OrderedDict()
        self._last_uid = 0
        self.touched: dict[int, None] | None = None

    @property
    def num_free(self) -> int:
        """Blocks that stand in no table."""
        return len(self._blank) + self.num_blocks - self._first_unused + len(self._named)

    @property
    def num_cached(self) -> int:
        """Blocks that the index leads to, free or not."""
        return len(self._index)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` positions take."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` free blocks, which there must be, for a table whose tokens need no look into the cache."""
        blank = self._blank
        blocks = [blank.pop() for _ in range(min(count, len(blank)))]
        if (missing := count - len(blocks)) and (num_unused := min(missing, self.num_blocks - self._first_unused)):
            blocks += self._take_unused(num_unused)
            missing -= num_unused
        ref_counts = self.ref_counts
        for block in blocks:
            ref_counts[block] = 1
        if missing:
            popitem, keys, uids, index = self._named.popitem, self.keys, self.uids, self._index
            for _ in range(missing):
                block = popitem(last=False)[0]
                blocks.append(block)
                ref_counts[block] = 1
                key = keys[block]
                uids[block] = 0
                if key is not None:  # `_unpublish`, without the price of a call for each block
                    del index[key]
                    keys[block] = None
        if self.touched is not None:
            self.touched.update(dict.fromkeys(blocks))
        return blocks

    def _take_unused(self, count: int) -> range:
        first, end = self._first_unused, self._first_unused + count
        self._first_unused = end
        if end > len(self.keys):
            more = min(max(end - len(self.keys), BOOKS_AT_ONCE), self.num_blocks - len(self.keys))
            for book in (self.ref_counts, self.uids, self.parent_uids):
                book.extend([0] * more)
            self.parents += [NO_PARENT] * more
            self.keys += [None] * more
            self.contents += [b""] * more
        return range(first, end)

    def _pin(self, block: int) -> None:
        if self.ref_counts[block] == 0:
            del self._named[block]
        self.ref_counts[block] += 1
        if self.touched is not None:
            self.touched[block] = None

    def _drop(self, block: int) -> None:
        if self.touched is not None:
            self.touched[block] = None
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            if self.uids[block]:
                self._named[block] = None
            else:
                self._blank.append(block)

    def _unpublish(self, block: int) -> None:
        key = self.keys[block]
        assert key is not None
        if self.touched is not None:
            self.touched[block] = None
        del self._index[key]
        self.keys[block] = None
        self.uids[block] = 0
        if self.ref_counts[block] == 0:
            del self._named[block]
            self._blank.append(block)

    def states(self, blocks: Sequence[int]) -> npt.NDArray[np.uint8]:
        """What these blocks are, each as its index in `BLOCK_STATES`. All of them have been used."""
        if isinstance(blocks, range):
            refs, uids = self.ref_counts[blocks.start : blocks.stop], self.uids[blocks.start : blocks.stop]
        else:
            refs = list(map(self.ref_counts.__getitem__, blocks))
            uids = list(map(self.uids.__getitem__, blocks))
        counts, named = np.array(refs, np.int64), np.array(uids, np.int64) != 0
        states: npt.NDArray[np.uint8] = np.where(counts > 0, np.minimum(counts, 2) + 1, named).astype(np.uint8)
        return states
