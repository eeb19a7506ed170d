"""A pool's tag page: under which epoch its blocks were written last, and for how many huge pages were asked for.

It travels with the pool's memory. A successor that is told by the scheduler to continue the blocks of an epoch finds
here whether the pool was written under another one since. The pools of a group of ranks have one page together: what
one rank writes there counts for all, and pools with different pages do not belong together.
"""

import ctypes
import mmap
import secrets

from common.errors import KeeperError
from executor_svc.keeper.memory import check_memory, create_memory

TAG_BYTES = 4096

MAX_RANKS = 256

_MAGIC = int.from_bytes(b"batontag", "little")
_SET_BITS = 62  # ranks tell each other sets in signed words


class _Page(ctypes.LittleEndianStructure):
    """Aligned words: each is stored in one instruction, so a process that is killed leaves the old or the new."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("epoch", ctypes.c_uint64),
        ("set_id", ctypes.c_uint64),
        ("is_spoiled", ctypes.c_uint64),
        ("num_asked_blocks", ctypes.c_uint64 * MAX_RANKS),
    )


class PoolTag:
    """The page, mapped.

    Args:
        fd: of the page's file, which stays the caller's.
        rank: of this process in its group.

    Raises:
        KeeperError: it is no tag page.
    """

    def __init__(self, fd: int, rank: int = 0) -> None:
        assert rank < MAX_RANKS
        self._rank = rank
        check_memory(fd, TAG_BYTES, read_only=False)
        self._mapped = mmap.mmap(fd, TAG_BYTES)
        self._page = _Page.from_buffer(self._mapped)
        if self._page.magic != _MAGIC:
            raise KeeperError(f"a pool's tag page begins with {self._page.magic:#x}, not with {_MAGIC:#x}")

    @staticmethod
    def create() -> int:
        """The descriptor of a new page, for a pool that was never written."""
        fd = create_memory("baton-pool-tag", TAG_BYTES)
        with mmap.mmap(fd, TAG_BYTES) as mapped:
            mapped[:8] = _MAGIC.to_bytes(8, "little")
            mapped[16:24] = (1 + secrets.randbits(_SET_BITS)).to_bytes(8, "little")
        return fd

    def close(self) -> None:
        """Unmap the page. No other method may be called after this."""
        del self._page
        self._mapped.close()

    @property
    def set_id(self) -> int:
        """Of the pools that have this page: a random number, which no other page has."""
        return int(self._page.set_id)

    @property
    def epoch(self) -> int:
        """The last one; 0 if the pool was never written, or a step in it failed, or it is spoiled."""
        return 0 if self._page.is_spoiled else int(self._page.epoch)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        """Set it before a plan of this epoch may write the pool."""
        self._page.epoch = epoch

    def spoil(self) -> None:
        """The epoch is 0 from now on, whatever another thread or rank sets, until the pool's next holder calls `begin`:
        this process ends after a failed step."""
        self._page.is_spoiled = 1

    def begin(self) -> None:
        """The pool has a new holder, and no process of an earlier one is left: what is spoiled can be written anew."""
        if self._page.is_spoiled:
            self._page.epoch = 0  # before: a process that is killed in between leaves it spoiled
            self._page.is_spoiled = 0

    @property
    def num_asked_blocks(self) -> int:
        """Of this rank's memory: for so many blocks, from the first one on, huge pages were asked for, or will not be
        any more: they belong to the memory, and what has been written in small pages would have to be copied."""
        return int(self._page.num_asked_blocks[self._rank])

    @num_asked_blocks.setter
    def num_asked_blocks(self, count: int) -> None:
        self._page.num_asked_blocks[self._rank] = count
