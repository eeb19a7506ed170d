"""Memory that is a file without a name (memfd), so that it can be passed on: made, sealed, checked, mapped.

Pages are paid for by the memory cgroup of the process that touches them first. Huge pages of such files are off on most
systems (`shmem_enabled` is `never`), but can be asked for piece by piece (MADV_COLLAPSE, Linux 6.1).
"""

import ctypes
import fcntl
import mmap
import os
import stat
import sys
from typing import Any

from common.errors import KeeperError

HUGE_PAGE_BYTES = 2**21

_MFD_NOEXEC_SEAL = 0x8  # Linux 6.3; before, the kernel says EINVAL
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MADV_HUGEPAGE = 14
_MADV_POPULATE_READ = 22  # Linux 5.14
_MADV_POPULATE_WRITE = 23
_MADV_COLLAPSE = 25  # Linux 6.1
_MAP_FAILED = ctypes.c_void_p(-1).value


def create_memory(name: str, num_bytes: int, *, to_be_read_only: bool = False) -> int:
    """The descriptor of a new file of zeros, which can neither shrink nor grow: no mapping of it ever loses its pages.

    Args:
        name: for people: it stands in `/proc/PID/maps`.
        to_be_read_only: `seal_read_only` will be called; otherwise the file stays writable for good.

    Raises:
        KeeperError: this is not Linux, or there is no memory.
    """
    if sys.platform != "linux":
        raise KeeperError(f"memory that outlives a process needs Linux, this is {sys.platform}")
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        try:
            fd = os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
        except OSError:
            fd = os.memfd_create(name, flags)
        os.ftruncate(fd, num_bytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals if to_be_read_only else seals | fcntl.F_SEAL_SEAL)
    except OSError as error:
        raise KeeperError(f"no memory file of {num_bytes} bytes: {error.strerror}") from error
    return fd


def seal_read_only(fd: int) -> None:
    """Nobody, this process included, can write this memory any more.

    Raises:
        KeeperError: some process has mapped it for writing.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    except OSError as error:
        raise KeeperError(f"memory cannot be sealed: {error.strerror}") from error


def check_memory(fd: int, num_bytes: int, *, read_only: bool) -> None:
    """Check memory that came from a keeper before it is mapped.

    Raises:
        KeeperError: it has another size, or could be cut short under a mapping; or it is writable although it is to be
            `read_only`, or the other way round.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size != num_bytes:
        raise KeeperError(f"memory of {status.st_size} bytes came from the keeper, it has to have {num_bytes}")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise KeeperError(f"a file that came from the keeper is no memory: {error.strerror}") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise KeeperError("memory came from the keeper that can be cut short")
    if read_only != bool(seals & fcntl.F_SEAL_WRITE):
        raise KeeperError(f"memory came from the keeper that {'can' if read_only else 'cannot'} be written")


class Mapping:
    """A range of addresses, and the file that is mapped there just now.

    Another file can be mapped over the same addresses, so what is bound to them (tensors, compiled kernels, graphs)
    stays valid: a standby swaps its scratch memory for the pool that it is given.

    Args:
        num_bytes: of the range; rounded up to pages. Nothing is there before the first `map`.

    Attributes:
        address: of the first byte, a multiple of a huge page.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._libc = _libc()
        self._reserved_bytes = self.num_bytes + HUGE_PAGE_BYTES
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._reserved = self._mmap(None, self._reserved_bytes, 0, anonymous, -1)
        self.address = -(-self._reserved // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES

    def map(self, fd: int, *, read_only: bool = False) -> None:
        """Map a file over the whole range, in place of what was there. The descriptor may be closed afterwards.

        Raises:
            KeeperError: it is shorter than the range, or it is sealed and not mapped `read_only`.
        """
        if (size := os.fstat(fd).st_size) < self.num_bytes:
            raise KeeperError(f"a file of {size} bytes cannot be mapped over {self.num_bytes}")
        protection = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
        # Linux before 6.7 takes no shared mapping of a sealed file, not even for reading, and seals no file that has
        # one. A private mapping has the same pages as long as none is written, and with this protection none can be.
        sharing = mmap.MAP_PRIVATE if read_only else mmap.MAP_SHARED
        self._mmap(self.address, self.num_bytes, protection, sharing | _MAP_FIXED, fd)

    def map_scratch(self) -> None:
        """Map zeros that are this process's alone, in place of what was there."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        self._mmap(self.address, self.num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1)

    def buffer(self) -> "ctypes.Array[ctypes.c_ubyte]":
        """The range as an object for `torch.frombuffer` and the like. It is invalid after `unmap`."""
        return (ctypes.c_ubyte * self.num_bytes).from_address(self.address)

    def advise_huge_pages(self) -> bool:
        """Ask for huge pages where a page is first touched; memory files get them where `shmem_enabled` allows it."""
        return self._madvise(0, self.num_bytes, _MADV_HUGEPAGE)

    def collapse(self, offset: int = 0, num_bytes: int | None = None) -> bool:
        """Make huge pages of all memory in a part of the range, whatever the system's settings say.

        The kernel takes the memory for it. It is 20 times faster while the file is empty: pages that have been touched
        are copied. Only whole huge pages inside the part are made.

        Returns:
            Whether all of it is in huge pages now: not on an old kernel, or where memory is too fragmented.
        """
        end = offset + (self.num_bytes - offset if num_bytes is None else num_bytes)
        first = -(-offset // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        whole = (end - first) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if whole <= 0:
            return False
        for start in range(first, first + whole, HUGE_PAGE_BYTES):
            ctypes.c_ubyte.from_address(self.address + start).value  # noqa: B018  (the kernel makes none of no page)
        return self._madvise(first, whole, _MADV_COLLAPSE)

    def populate(self, *, writable: bool) -> bool:
        """Touch all pages now, so that no later access waits for the kernel. False on an old kernel."""
        return self._madvise(0, self.num_bytes, _MADV_POPULATE_WRITE if writable else _MADV_POPULATE_READ)

    def unmap(self) -> None:
        """Give the range back. Whatever still points into it is invalid."""
        self._libc.munmap(self._reserved, self._reserved_bytes)

    def _mmap(self, address: int | None, num_bytes: int, protection: int, flags: int, fd: int) -> int:
        mapped = self._libc.mmap(address, num_bytes, protection, flags, fd, 0)
        if mapped is None or mapped == _MAP_FAILED:
            raise KeeperError(f"{num_bytes} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}")
        return int(mapped)

    def _madvise(self, offset: int, num_bytes: int, advice: int) -> bool:
        return bool(self._libc.madvise(self.address + offset, num_bytes, advice) == 0)


def _libc() -> Any:
    if sys.platform != "linux":
        raise KeeperError(f"memory that outlives a process needs Linux, this is {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)
    integer, pointer, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.argtypes, libc.mmap.restype = (pointer, size, integer, integer, integer, ctypes.c_long), pointer
    libc.munmap.argtypes = (pointer, size)
    libc.madvise.argtypes = (pointer, size, integer)
    return libc
