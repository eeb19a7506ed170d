"""What glibc's allocator does with memory that is free again. Elsewhere nothing is changed."""

import ctypes
import sys

LARGE_BLOCK = 2**20  # bytes
_M_MMAP_THRESHOLD = -3  # of malloc.h


def give_large_blocks_back() -> None:
    """Have each block of `LARGE_BLOCK` or more go back to the system when it is freed, from now on.

    Otherwise the first such block that is freed makes glibc keep those that follow, up to 32 MiB each, between smaller
    ones that are still in use: a process that has held many long requests once would keep their memory.
    """
    if sys.platform == "linux" and (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(_M_MMAP_THRESHOLD, LARGE_BLOCK)
