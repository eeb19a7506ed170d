"""Does GPU memory outlive the process that made it, if another process holds a file descriptor of it?

    python tools/vmm_probe.py

A child makes memory with cuMemCreate, exports it as a POSIX file descriptor (cuMemExportToShareableHandle), writes a
pattern, passes the descriptor to its parent (SCM_RIGHTS) and is ended with SIGKILL. The parent, which has not called
CUDA so far, imports the descriptor in another child, maps the memory and compares the pattern. The driver's library is
called through ctypes: nothing but Python and the driver is needed. Prints one JSON line:

    outcome     "kept", "lost" (mapped, with another content), "unsupported" (the driver refuses a call), or "failed"
    call        the driver's call that was refused, with its error's name, if there was one
    freed       whether the GPU's free memory came back when the last descriptor was closed; null if not measured
    ...         times in milliseconds, and sizes in bytes

Exits with 0 if the memory was kept, with 2 if the driver refuses a call, with 3 if the content was lost, and with 1 if
the probe failed. No part of the services.
"""

import ctypes
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

ASKED_BYTES = 64 * 2**20
SEED = 0x9E3779B97F4A7C15  # of the pattern
TIMEOUT_S = 10.0  # of a child

# cuda.h
PINNED, ON_DEVICE, POSIX_FILE_DESCRIPTOR, READ_WRITE = 1, 1, 1, 3
VMM_SUPPORTED, FD_SUPPORTED = 102, 103


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Flags(ctypes.Structure):
    """The last member of CUmemAllocationProp."""

    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", Flags),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class Refused(Exception):
    """The driver refused a call."""

    def __init__(self, call: str, error: str) -> None:
        super().__init__(f"{call}: {error}")
        self.call = call
        self.error = error


class Driver:
    """The driver's library, with a context on the first GPU.

    Raises:
        Refused: the library is missing, or a call failed.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Refused("dlopen", str(error)) from error
        self("cuInit", ctypes.c_uint(0))
        self.device = ctypes.c_int()
        self("cuDeviceGet", ctypes.byref(self.device), ctypes.c_int(0))
        self.context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self("cuCtxSetCurrent", self.context)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a CUresult."""
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise Refused(name, "the library has no such function") from error
        code = function(*arguments)
        if code:
            text = ctypes.c_char_p()
            known = self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) == 0 and text.value
            raise Refused(name, text.value.decode() if known and text.value else f"error {code}")

    def attribute(self, number: int) -> int:
        """A device attribute."""
        value = ctypes.c_int()
        self("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), self.device)
        return value.value

    def free_bytes(self) -> int:
        """Free memory of the GPU."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def properties(self) -> Properties:
        """Of memory on the GPU that can be exported as a file descriptor."""
        return Properties(PINNED, POSIX_FILE_DESCRIPTOR, Location(ON_DEVICE, self.device.value), None, Flags())

    def rounded(self, num_bytes: int) -> int:
        """A size that the driver can allocate."""
        granularity = ctypes.c_size_t()
        properties = self.properties()
        self("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(properties), ctypes.c_int(0))
        return -(-num_bytes // granularity.value) * granularity.value

    def mapped(self, handle: ctypes.c_ulonglong, num_bytes: int) -> ctypes.c_ulonglong:
        """The address of an allocation."""
        address, size, zero = ctypes.c_ulonglong(), ctypes.c_size_t(num_bytes), ctypes.c_ulonglong(0)
        self("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero)
        self("cuMemMap", address, size, ctypes.c_size_t(0), handle, zero)
        access = Access(Location(ON_DEVICE, self.device.value), READ_WRITE)
        self("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
        return address


def pattern(num_bytes: int) -> bytes:
    """What is written: different in each page of 2 MiB."""
    page = 2**21
    parts = [struct.pack("<Q", (SEED * (number + 1)) % 2**64) * (page // 8) for number in range(-(-num_bytes // page))]
    return b"".join(parts)[:num_bytes]


def create(sock: socket.socket) -> dict[str, Any]:
    """In the first child: make the memory, fill it and send its descriptor; then wait to be killed."""
    driver = Driver()
    supports = {"vmm": driver.attribute(VMM_SUPPORTED), "fd": driver.attribute(FD_SUPPORTED)}
    if not all(supports.values()):
        raise Refused("cuDeviceGetAttribute", f"the device says that it supports {supports}")
    free = driver.free_bytes()
    num_bytes, properties = driver.rounded(ASKED_BYTES), driver.properties()
    handle, fd = ctypes.c_ulonglong(), ctypes.c_int(-1)
    size, none = ctypes.c_size_t(num_bytes), ctypes.c_ulonglong(0)
    driver("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), none)
    driver("cuMemExportToShareableHandle", ctypes.byref(fd), handle, ctypes.c_int(POSIX_FILE_DESCRIPTOR), none)
    address = driver.mapped(handle, num_bytes)
    driver("cuMemcpyHtoD_v2", address, ctypes.c_char_p(pattern(num_bytes)), size)
    driver("cuCtxSynchronize")
    told = {"bytes": num_bytes, "free_before": free}
    socket.send_fds(sock, [json.dumps(told).encode()], [fd.value])
    signal.pause()
    return told


def check(fd: int, num_bytes: int) -> dict[str, Any]:
    """In the second child: import the descriptor and compare what is there; then close all and see what is free."""
    start_s = time.monotonic()
    driver = Driver()
    handle, size = ctypes.c_ulonglong(), ctypes.c_size_t(num_bytes)
    began_s = time.monotonic()
    driver(
        "cuMemImportFromShareableHandle",
        ctypes.byref(handle),
        ctypes.c_void_p(fd),
        ctypes.c_int(POSIX_FILE_DESCRIPTOR),
    )
    address = driver.mapped(handle, num_bytes)
    mapped_s = time.monotonic()
    content = ctypes.create_string_buffer(num_bytes)
    driver("cuMemcpyDtoH_v2", content, address, size)
    held = driver.free_bytes()
    driver("cuMemUnmap", address, size)
    driver("cuMemRelease", handle)
    return {
        "outcome": "kept" if content.raw == pattern(num_bytes) else "lost",
        "context_ms": round(1000 * (began_s - start_s), 1),
        "import_and_map_ms": round(1000 * (mapped_s - began_s), 2),
        "free_while_held": held,
    }


def free_now() -> dict[str, Any]:
    """In the third child, when no descriptor is left."""
    return {"free_after": Driver().free_bytes()}


def in_child(work: Callable[[], dict[str, Any]], sock: socket.socket) -> int:
    """Fork, and send what `work` returns or why it failed. Returns the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        told = work()
    except Refused as refused:
        told = {"outcome": "unsupported", "call": refused.call, "error": refused.error}
    except Exception as error:  # whatever it is, the parent waits for a word
        told = {"outcome": "failed", "error": f"{type(error).__name__}: {error}"}
    sock.sendall(json.dumps(told).encode())
    os._exit(0)


def heard(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A child's message, and the descriptors that came with it."""
    data, fds, _, _ = socket.recv_fds(sock, 65536, 4)
    if not data:
        return {"outcome": "failed", "error": "the child ended without a word"}, []
    return json.loads(data), list(fds)


def probe() -> dict[str, Any]:
    """Run the three children; see the head of the file."""
    pids: list[int] = []

    def ask(work: Callable[[socket.socket], dict[str, Any]]) -> tuple[dict[str, Any], list[int]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(TIMEOUT_S)
        pids.append(in_child(lambda: work(theirs), theirs))
        theirs.close()
        try:
            return heard(ours)
        except TimeoutError:
            return {"outcome": "failed", "error": f"a child said nothing for {TIMEOUT_S:.0f} s"}, []

    def end() -> None:
        """End the child that was asked last, with its context."""
        os.kill(pids[-1], signal.SIGKILL)
        os.waitpid(pids.pop(), 0)

    try:
        told, fds = ask(create)
        if not fds:
            return {"step": "create", **told}
        killed_s = time.monotonic()
        end()
        figures = {**told, "killed_ms": round(1000 * (time.monotonic() - killed_s), 1)}
        found, _ = ask(lambda _: check(fds[0], told["bytes"]))
        figures |= {"step": "check", **found}
        os.close(fds[0])
        end()
        last, _ = ask(lambda _: free_now())
        if "free_while_held" in found and "free_after" in last:
            freed = last["free_after"] - found["free_while_held"] >= told["bytes"] // 2
            figures |= {"freed": freed, "free_after": last["free_after"]}
        return figures
    finally:
        while pids:
            end()


def main() -> int:
    """The command."""
    figures = {"outcome": "failed", "call": None, "freed": None, **probe()}
    print(json.dumps(figures), flush=True)
    return {"kept": 0, "unsupported": 2, "lost": 3}.get(str(figures["outcome"]), 1)


if __name__ == "__main__":
    sys.exit(main())
