"""CUDA's driver as Python's bindings give it, over the host's memory: an allocation is a memfd.

Of the stand-ins for a GPU this is the small one, which every machine runs, refuses any call on demand, and whose memory
Triton's interpreter computes in; it has no streams, kernels or graphs (docs/gpu.md, "Five stand-ins for a GPU").

So an allocation lives while a descriptor or a mapping of it is left in some process, as CUDA documents of its own. The
driver keeps books of what this process has, and refuses what CUDA refuses: sizes that are no multiple of the
granularity, addresses that are not reserved or already mapped, parts of a mapping, handles that are gone.
"""

import ctypes
import enum
import functools
import mmap
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import torch

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NO_ACCESS, _FIXED, _NO_RESERVE = 0, 0x10, 0x4000
TOTAL_BYTES = 2**36


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_UNKNOWN = 999


class CUdevice_attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103


class CUmemAllocationType(enum.IntEnum):
    CU_MEM_ALLOCATION_TYPE_PINNED = 1


class CUmemLocationType(enum.IntEnum):
    CU_MEM_LOCATION_TYPE_DEVICE = 1


class CUmemAllocationHandleType(enum.IntEnum):
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1


class CUmemAllocationGranularity_flags(enum.IntEnum):
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1


class CUmemAccess_flags(enum.IntEnum):
    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3


READ = CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
READ_WRITE = CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


class Refused(Exception):
    def __init__(self, result=CUresult.CUDA_ERROR_INVALID_VALUE):
        super().__init__(result)
        self.result = result


def call(function):
    """A call as the bindings have it: returns the result and the values, and fails once if it is to."""
    name = function.__name__

    @functools.wraps(function)
    def called(self, *arguments):
        self.calls.append(name)
        place = f"{name}:{sum(each == name for each in self.calls)}"
        if self.fail in (name, place):
            self.fail = ""
            return (CUresult.CUDA_ERROR_UNKNOWN, None)
        try:
            values = function(self, *arguments)
        except Refused as refused:
            return (refused.result, None)
        return (CUresult.CUDA_SUCCESS, *(() if values is None else values))

    return called


class FakeCuda:
    """Stands in for `cuda.bindings.driver`.

    Args:
        granularity: in bytes.
        fail: the call that fails once: its name, or its name and how often it was called with it (`cuMemMap:2`).
        loses: memory does not outlive the process that made it: what is imported later is empty.
        supported: what the GPU says of memory that can be handed on, 1 or 0.
        name: of the memfds; processes whose drivers have the same name share a GPU.
    """

    CUresult = CUresult
    CUdevice_attribute = CUdevice_attribute
    CUmemAllocationType = CUmemAllocationType
    CUmemLocationType = CUmemLocationType
    CUmemAllocationHandleType = CUmemAllocationHandleType
    CUmemAllocationGranularity_flags = CUmemAllocationGranularity_flags
    CUmemAccess_flags = CUmemAccess_flags

    def __init__(self, granularity=2**21, fail="", loses=False, supported=1, name="fake_cuda"):
        self.granularity = granularity
        self.fail = fail
        self.loses = loses
        self.supported = supported
        self.name = name
        self.calls: list[str] = []
        self.contexts = 0
        self.has_current = False
        self.handles: dict[int, int] = {}  # the memfd of each
        self.reserved: dict[int, int] = {}  # bytes, by the first address
        self.mapped: dict[int, tuple[int, CUmemAccess_flags]] = {}  # bytes, and the access that is allowed
        self._next_handle = 1

    def CUmemAllocationProp(self):
        return SimpleNamespace(location=SimpleNamespace())

    def CUmemAccessDesc(self):
        return SimpleNamespace(location=SimpleNamespace())

    @property
    def books(self):
        """What has not been given back."""
        kinds = {"context": self.contexts, "handle": len(self.handles), "reservation": len(self.reserved)}
        return +Counter(kinds | {"mapping": len(self.mapped)})

    def bytes_at(self, address, num_bytes, access=READ_WRITE):
        """Memory as the GPU may touch it: all of it is mapped, with this access."""
        at = address
        while at < address + num_bytes:
            start = max((start for start in self.mapped if start <= at), default=None)
            if start is None or at >= start + self.mapped[start][0] or self.mapped[start][1] < access:
                raise AssertionError(f"{at - address} bytes from the start there is nothing that may be touched")
            at = start + self.mapped[start][0]
        return (ctypes.c_ubyte * num_bytes).from_address(address)

    def as_tensor(self, view, device=None):
        """A tensor of mapped memory, in place of torch.as_tensor: it is the host's, and keeps the view."""
        interface = view.__cuda_array_interface__
        address, (num_bytes,) = interface["data"][0], interface["shape"]
        kept = type("Kept", (ctypes.c_ubyte * num_bytes,), {}).from_address(address)
        kept.view = view
        return torch.frombuffer(kept, dtype=torch.uint8)

    @call
    def cuInit(self, flags):
        assert flags == 0

    @call
    def cuDeviceGet(self, ordinal):
        if ordinal != 0:
            raise Refused(CUresult.CUDA_ERROR_INVALID_DEVICE)
        return (ordinal,)

    @call
    def cuDeviceGetAttribute(self, attribute, device):
        return (self.supported if CUdevice_attribute(attribute) else 0,)

    @call
    def cuDeviceGetUuid(self, device):
        return (SimpleNamespace(bytes=bytes(range(16))),)

    @call
    def cuDevicePrimaryCtxRetain(self, device):
        self.contexts += 1
        return ("context",)

    @call
    def cuDevicePrimaryCtxRelease(self, device):
        if not self.contexts:
            raise Refused(CUresult.CUDA_ERROR_INVALID_CONTEXT)
        self.contexts -= 1

    @call
    def cuCtxSetCurrent(self, context):
        self.has_current = True

    @call
    def cuCtxSynchronize(self):
        self._want_context()

    @call
    def cuMemGetInfo(self):
        return (TOTAL_BYTES - bytes_of_all_processes(self.name), TOTAL_BYTES)

    @call
    def cuMemGetAllocationGranularity(self, properties, option):
        self._check_properties(properties)
        assert option == CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        return (self.granularity,)

    @call
    def cuMemCreate(self, num_bytes, properties, flags):
        self._check_properties(properties)
        assert flags == 0
        self._check_multiple(num_bytes)
        if num_bytes > TOTAL_BYTES:
            raise Refused(CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        fd = os.memfd_create(f"{self.name}.{os.getpid()}")
        os.ftruncate(fd, num_bytes)
        return (self._new_handle(fd),)

    @call
    def cuMemExportToShareableHandle(self, handle, kind, flags):
        assert (kind, flags) == (CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
        return (os.dup(self._memfd(handle)),)

    @call
    def cuMemImportFromShareableHandle(self, fd, kind):
        assert kind == CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        link = os.readlink(f"/proc/self/fd/{fd}")
        if f"memfd:{self.name}." not in link:
            raise Refused
        maker = link.split()[0].rsplit(".", 1)[1]
        is_lost = self.loses and not _read(Path("/proc", maker, "maps"))
        own = os.memfd_create(f"{self.name}.{maker}") if is_lost else os.dup(fd)
        os.ftruncate(own, os.fstat(fd).st_size)
        return (self._new_handle(own),)

    @call
    def cuMemRelease(self, handle):
        os.close(self._memfd(handle))
        del self.handles[handle]

    @call
    def cuMemAddressReserve(self, num_bytes, alignment, address, flags):
        assert (address, flags) == (0, 0)
        self._check_multiple(num_bytes)
        # More than is asked for, so that the start can be aligned; what is too much stays with the process.
        found = _map(None, num_bytes + alignment, _NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, -1)
        start = -(-found // alignment) * alignment
        self.reserved[start] = num_bytes
        return (start,)

    @call
    def cuMemAddressFree(self, address, num_bytes):
        if self.reserved.get(address) != num_bytes or any(
            address <= start < address + num_bytes for start in self.mapped
        ):
            raise Refused
        del self.reserved[address]
        _LIBC.munmap(address, num_bytes)

    @call
    def cuMemMap(self, address, num_bytes, offset, handle, flags):
        assert (offset, flags) == (0, 0)
        self._want_context()
        self._check_multiple(num_bytes)
        self._check_multiple(address)
        fd = self._memfd(handle)
        end = address + num_bytes
        inside = any(start <= address and end <= start + size for start, size in self.reserved.items())
        taken = any(start < end and address < start + size for start, (size, _) in self.mapped.items())
        if not inside or taken or num_bytes > os.fstat(fd).st_size:
            raise Refused
        _map(address, num_bytes, _NO_ACCESS, mmap.MAP_SHARED | _FIXED, fd)
        self.mapped[address] = (num_bytes, CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE)

    @call
    def cuMemSetAccess(self, address, num_bytes, descriptions, count):
        (access,) = descriptions
        assert count == 1
        assert access.flags in (READ, READ_WRITE)
        assert access.location.id == 0
        assert access.location.type == CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        if self.mapped.get(address, (0, False))[0] != num_bytes:
            raise Refused
        _LIBC.mprotect(address, num_bytes, mmap.PROT_READ | (mmap.PROT_WRITE if access.flags == READ_WRITE else 0))
        self.mapped[address] = (num_bytes, access.flags)

    @call
    def cuMemUnmap(self, address, num_bytes):
        self._want_context()
        if self.mapped.get(address, (0, False))[0] != num_bytes:
            raise Refused
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE | _FIXED
        _map(address, num_bytes, _NO_ACCESS, flags, -1)
        del self.mapped[address]

    @call
    def cuMemsetD8(self, address, value, num_bytes):
        ctypes.memset(self.bytes_at(address, num_bytes), value, num_bytes)

    @call
    def cuMemcpyHtoD(self, address, source, num_bytes):
        try:
            target = self.bytes_at(address, num_bytes)
        except AssertionError as error:
            raise Refused from error
        ctypes.memmove(target, source, num_bytes)

    @call
    def cuMemcpyDtoH(self, target, address, num_bytes):
        ctypes.memmove(target, self.bytes_at(address, num_bytes, READ), num_bytes)

    def _new_handle(self, fd):
        handle = self._next_handle
        self._next_handle += 1
        self.handles[handle] = fd
        return handle

    def _memfd(self, handle):
        if handle not in self.handles:
            raise Refused
        return self.handles[handle]

    def _check_multiple(self, number):
        if number <= 0 or number % self.granularity:
            raise Refused

    def _want_context(self):
        if not (self.contexts and self.has_current):
            raise Refused(CUresult.CUDA_ERROR_INVALID_CONTEXT)

    def _check_properties(self, properties):
        assert properties.type == CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        assert properties.location.type == CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        assert properties.location.id == 0
        assert properties.requestedHandleTypes == CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _map(address, num_bytes, access, flags, fd):
    found = _LIBC.mmap(address, num_bytes, access, flags, fd, 0)
    assert found != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return found


def bytes_of_all_processes(name):
    """Of allocations that some process can still reach, by a descriptor or a mapping."""
    found: dict[str, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        for descriptor in _listed(process / "fd"):
            try:
                if f"memfd:{name}." in str(descriptor.readlink()):
                    stat = descriptor.stat()
                    found[str(stat.st_ino)] = stat.st_size
            except OSError:
                continue  # it was closed meanwhile
        for line in _read(process / "maps").splitlines():
            if f"memfd:{name}." in line:
                place, _, _, _, inode, *_ = line.split()
                start, end = (int(part, 16) for part in place.split("-"))
                found[inode] = max(found.get(inode, 0), end - start)
    return sum(found.values())


def _listed(folder):
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read(file):
    try:
        return file.read_text()
    except OSError:
        return ""
