"""Memory that is a file: several processes can map it, and it can be sealed, so that none of them can change it."""

import ctypes
import fcntl
import os

HUGE_PAGE_BYTES = 2 * 2**20
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 1, 2, 0x10, 0x20, 0x4000
_MADV_COLLAPSE = 25
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def create_memory(name: str, num_bytes: int) -> int:
    """A new file of zeros, which takes memory where it is written. Raises OSError if the system has not so much."""
    memory = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(memory, num_bytes)
    except OSError:
        os.close(memory)
        raise
    return memory


def seal_read_only(memory: int) -> None:
    """Nobody can change the file any more. Raises OSError while a process has a writable mapping."""
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, SEALS)


def is_sealed(memory: int) -> bool:
    """Whether a file is one whose content and size cannot change."""
    try:
        return fcntl.fcntl(memory, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:  # no memory file at all
        return False


class Mapping:
    """The first bytes of a file in this process's memory, at an address that suits huge pages.

    It is gone with the last reference to it or to its buffer.

    Args:
        memory: the file, which may be closed afterwards.
        num_bytes: of it.
        writable: until `make_read_only`.

    Raises:
        OSError: it cannot be mapped, such as a sealed file for writing.
    """

    def __init__(self, memory: int, num_bytes: int, *, writable: bool) -> None:
        self.num_bytes = num_bytes
        self._room = num_bytes + HUGE_PAGE_BYTES
        self._base = 0
        self._base = _map(0, self._room, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE, -1)
        self.address = -(-self._base // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        self._place(memory, writable)

    def make_read_only(self, memory: int) -> None:
        """Map the same file in the same place, only for reading: what points into the mapping stays right."""
        self._place(memory, writable=False)

    def use_huge_pages(self, start: int, end: int) -> None:
        """Put huge pages under what lies from `start` to `end`, if there are any; nothing of it changes.

        Advising them is not enough: by default Linux gives files none. Collapsing a range gives a huge page, if one
        small page is there already, and is cheap while the others are missing.
        """
        for offset in range(start, end, HUGE_PAGE_BYTES):
            first = ctypes.c_ubyte.from_address(self.address + offset)
            first.value = int(first.value)  # written, with the same value: now there is a page
            _libc.madvise(self.address + offset, HUGE_PAGE_BYTES, _MADV_COLLAPSE)

    def buffer(self) -> "ctypes.Array[ctypes.c_char]":
        """All bytes, as an object that others can have views of."""
        buffer = (ctypes.c_char * self.num_bytes).from_address(self.address)
        buffer.mapping = self  # type: ignore[attr-defined]  # lives as long as the views
        return buffer

    def __del__(self) -> None:
        if self._base:
            _libc.munmap(self._base, self._room)

    def _place(self, memory: int, writable: bool) -> None:
        # Linux before 6.7 takes no shared mapping of a sealed file, not even for reading. A private one has the same
        # pages as long as none is written, and none can be.
        kind = (_PROT_READ | _PROT_WRITE, _MAP_SHARED) if writable else (_PROT_READ, _MAP_PRIVATE)
        _map(self.address, self.num_bytes, kind[0], kind[1] | _MAP_FIXED, memory)


def _map(address: int, num_bytes: int, protection: int, flags: int, memory: int) -> int:
    mapped: int | None = _libc.mmap(address, num_bytes, protection, flags, memory, 0)
    if mapped is None or mapped == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"{num_bytes} bytes cannot be mapped: {os.strerror(error)}")
    return mapped
