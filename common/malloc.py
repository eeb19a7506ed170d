"""Tell glibc's allocator to give freed memory back to the system. Any other allocator is left alone."""

import ctypes
import sys
from typing import Any

LARGE_BLOCK = 2**20  # bytes
_M_MMAP_THRESHOLD = -3  # of malloc.h


def give_large_blocks_back() -> None:
    """Have each block of `LARGE_BLOCK` or more go back to the system when it is freed, from now on.

    Otherwise the first such block that is freed makes glibc keep those that follow, up to 32 MiB each, between smaller
    ones that are still in use: a process that has held many long requests once would keep their memory.
    """
    if (set_option := _function("mallopt")) is not None:
        set_option(_M_MMAP_THRESHOLD, LARGE_BLOCK)


def trim() -> None:
    """Give back what is free among smaller blocks. By itself glibc keeps what a thread once needed."""
    if (trim_heap := _function("malloc_trim")) is not None:
        trim_heap(0)


def _function(name: str) -> Any:
    """A function of glibc; None where there is none."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
