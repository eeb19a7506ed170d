"""A pool's tag page: under which epoch its blocks were written last, and for how many huge pages were asked for.

It travels with the pool's memory. A successor that is told by the scheduler to continue the blocks of an epoch finds
here whether the pool was written under another one since.
"""

import ctypes
import mmap

from common.errors import KeeperError
from executor_svc.keeper.memory import check_memory, create_memory

TAG_BYTES = 4096

_MAGIC = int.from_bytes(b"batontag", "little")


class _Page(ctypes.LittleEndianStructure):
    """Aligned words: each is stored in one instruction, so a process that is killed leaves the old or the new."""

    _fields_ = (("magic", ctypes.c_uint64), ("epoch", ctypes.c_uint64), ("num_asked_blocks", ctypes.c_uint64))


class PoolTag:
    """The page, mapped.

    Args:
        fd: of the page's file, which stays the caller's.

    Raises:
        KeeperError: it is no tag page.
    """

    def __init__(self, fd: int) -> None:
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
        return fd

    @property
    def epoch(self) -> int:
        """The last one; 0 if the pool was never written, or a step in it failed."""
        return int(self._page.epoch)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        """Set it before a plan of this epoch may write the pool."""
        self._page.epoch = epoch

    @property
    def num_asked_blocks(self) -> int:
        """For so many blocks, from the first one on, huge pages were asked for, or will not be any more: they belong to
        the memory, and what has been written in small pages would have to be copied."""
        return int(self._page.num_asked_blocks)

    @num_asked_blocks.setter
    def num_asked_blocks(self, count: int) -> None:
        self._page.num_asked_blocks = count
