"""What children of `gpu_keeper_proof.py` and `gpu_kill_facts.py` do: they make, inherit, write and watch GPU memory.

They use the code that executors have (`executor_svc/devices/cuda_memory.py`, `cuda_mapping.py`). Where kernels write
nothing, on the pretended GPU or without one, copies write in their place, and the figures say so.
"""

import ctypes
import functools
import itertools
import json
import os
import select
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.errors import BatonError
from executor_svc.devices.cuda_mapping import CudaMapping
from executor_svc.devices.cuda_memory import CudaError, CudaMemory
from executor_svc.keeper.pool_memory import Span
from tools.gpu_children import DEVICE_FILES, Figures, MakeDriver, Role, links

PAGE_BYTES = 2**21
MOST_MARKS = 32  # pages of a pool that have a content
COUNTER_BYTES = 32 * PAGE_BYTES  # a kernel takes some 40 us to add to them, and as many kernels as may be are queued
SEED = 0x9E3779B97F4A7C15
QUEUED_KERNELS = 4096
HIGH = 900  # a descriptor above any that CUDA opens
STABLE_S, STEP_S = 0.1, 0.005  # so long free memory must not change, and how often it is read
SETTLE_S = 0.5  # in which a killed writer must write no more
PF_EXITING = 0x4  # of the kernel's flags of a task


class Stage:
    """What every role has: the socket to the keeper, descriptors, and the GPU, which the first use opens.

    Args:
        sock: to the keeper.
        make_driver: makes bindings of CUDA's driver; None for NVIDIA's.
        fds: descriptors of memory that the keeper has.
    """

    def __init__(self, sock: socket.socket, make_driver: MakeDriver | None, fds: tuple[int, ...]) -> None:
        self.sock = sock
        self.fds = fds
        self._make_driver = make_driver

    def tell(self, *fds: int, **told: Any) -> None:
        """Say something to the keeper."""
        socket.send_fds(self.sock, [json.dumps(told).encode()], list(fds))

    def hear(self) -> Figures:
        """What the keeper says."""
        heard: Figures = json.loads(self.sock.recv(4096))
        return heard

    def has_been_asked(self) -> bool:
        """Whether the keeper has said something that was not heard yet."""
        return bool(select.select([self.sock], [], [], 0)[0])

    @functools.cached_property
    def memory(self) -> CudaMemory:
        """The GPU's, in a context that torch has made if it can."""
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
        return CudaMemory(0, self._make_driver() if self._make_driver else None)

    @functools.cached_property
    def writes(self) -> str:
        """Name what writes: kernels, or copies where kernels write nothing."""
        assert self.memory
        if not torch.cuda.is_available():
            return "copies"
        number = torch.zeros(1, dtype=torch.int64, device="cuda")
        return "kernels" if int(number.add_(1).item()) == 1 else "copies"

    def free(self) -> int:
        """Free bytes of the GPU."""
        return int(self.memory.call("cuMemGetInfo")[0])

    def pool(self, num_bytes: int, fd: int | None = None) -> CudaMapping:
        """Addresses, with the memory of a descriptor behind them, or with new memory."""
        pool = CudaMapping(self.memory, num_bytes)
        pool.create() if fd is None else pool.map(fd)
        return pool

    def write(self, address: int, content: bytes) -> None:
        """Write memory by a copy, and wait for the copy."""
        self.memory.call("cuMemcpyHtoD", address, content, len(content))
        self.memory.synchronize()

    def read(self, address: int, num_bytes: int) -> bytes:
        """Read memory by a copy."""
        content = ctypes.create_string_buffer(num_bytes)
        self.memory.call("cuMemcpyDtoH", ctypes.addressof(content), address, num_bytes)
        return content.raw

    def mark(self, address: int, num_bytes: int, *, inverted: bool = False) -> None:
        """Write the marks of a pool: pages that differ, the first and the last one among them."""
        for at, page in marks(num_bytes):
            self.write(address + at, bytes(byte ^ 255 for byte in page) if inverted else page)

    def is_marked(self, address: int, num_bytes: int) -> bool:
        """Whether all marks of a pool are as `mark` writes them."""
        return all(self.read(address + at, PAGE_BYTES) == page for at, page in marks(num_bytes))


def play(
    role: Role, sock: socket.socket, make_driver: MakeDriver | None, fds: tuple[int, ...], arguments: Figures
) -> None:
    """Play a role until the keeper ends this process."""
    stage = Stage(sock, make_driver, fds)
    try:
        role(stage, **arguments)
        signal.pause()
    except BatonError as error:
        call = error.call if isinstance(error, CudaError) else None
        stage.tell(outcome="unsupported", call=call, error=str(error))
        signal.pause()


def maker(stage: Stage, num_bytes: int) -> None:
    """Make memory, mark it, and give the keeper its descriptor."""
    assert stage.memory
    began = time.monotonic_ns()
    pool = stage.pool(num_bytes)
    create_ms = ms_since(began)
    stage.mark(address_of(pool), pool.num_bytes)
    assert pool.descriptor is not None
    told = {"device": pool.device, "pool_bytes": pool.num_bytes, "granularity": stage.memory.granularity}
    stage.tell(pool.descriptor, create_ms=create_ms, **told)


def heir(stage: Stage, num_bytes: int) -> None:
    """Make a context. When the keeper says so, map what it has, call by call, and look for the marks."""
    began = time.monotonic_ns()
    memory = stage.memory
    stage.tell(start_ms=ms_since(began))
    stage.hear()
    began = time.monotonic_ns()
    handle = memory.import_(stage.fds[0])
    import_ms = ms_since(began)
    began = time.monotonic_ns()
    size = memory.rounded(num_bytes)
    address = memory.reserve(size)
    memory.map(address, size, handle)
    memory.allow_access(address, size)
    map_ms = ms_since(began)
    memory.release(handle)
    stage.read(address, 8)
    seen = time.monotonic_ns()
    stage.tell(import_ms=import_ms, map_ms=map_ms, seen=seen, same=stage.is_marked(address, size))


def anchor(stage: Stage) -> None:
    """Import what the keeper has, and map nothing."""
    stage.memory.import_(stage.fds[0])
    stage.tell()


def scale(stage: Stage) -> None:
    """Say how much of the GPU's memory is free: once that is stable, or as soon as it is so much as the keeper asks.

    Its own context is there before the first answer, so it takes part in all or none of what is compared.
    """
    stage.tell(free=stage.free())
    while True:
        asked = stage.hear()
        until_s = time.monotonic() + float(asked["seconds"])
        free, since_s = stage.free(), time.monotonic()
        while time.monotonic() < until_s:
            if "least" in asked and free >= asked["least"]:
                break
            if "least" not in asked and time.monotonic() - since_s >= STABLE_S:
                break
            time.sleep(0.001 if "least" in asked else STEP_S)
            if (now := stage.free()) != free:
                free, since_s = now, time.monotonic()
        stage.tell(free=free, at=time.monotonic_ns())


def victim(stage: Stage, num_bytes: int, how: str, pinned_bytes: int) -> None:
    """Take memory, and write without an end into more memory, whose first eight bytes count: to be killed.

    The keeper gets descriptors of the pool (unless torch has it), of the memory that is written, and of two sockets.
    The other end of the first one has a number above the files that CUDA opens when it is initialized and below those
    that it opens for a context; that of the second one has the highest number of all. The socket to the keeper has a
    lower one than all of CUDA's files.

    Args:
        how: "vmm" for memory that was exported, "malloc" for torch's own, "pinned" for exported memory and pages of
            the host besides.
    """
    began = time.monotonic_ns()
    if not torch.cuda.is_available() and how != "vmm":  # the question initializes CUDA
        stage.tell(outcome="skipped", error="torch has no GPU")
        return
    middle, _middle = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert stage.memory
    told: Figures = {"context_ms": ms_since(began), "writes": stage.writes}
    taken: list[Any] = []
    given: list[int] = []
    began = time.monotonic_ns()
    if how == "malloc":
        taken.append(torch.empty(num_bytes, dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()
    else:
        pool = stage.pool(num_bytes)
        taken.append(pool)
        assert pool.descriptor is not None
        given.append(pool.descriptor)
    told["create_ms"] = ms_since(began)
    if how == "pinned":
        began = time.monotonic_ns()
        taken.append(torch.empty(pinned_bytes, dtype=torch.uint8, pin_memory=True))
        told["pin_ms"] = ms_since(began)
    if how != "malloc":
        stage.mark(address_of(pool), pool.num_bytes)
    counter = stage.pool(COUNTER_BYTES)
    assert counter.descriptor is not None
    high, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.dup2(own.fileno(), HIGH, inheritable=False)
    own.close()
    stage.tell(*given, counter.descriptor, middle.fileno(), high.fileno(), **told)
    middle.close()
    high.close()
    _count(stage, counter)


def _count(stage: Stage, counter: CudaMapping) -> None:
    """Add to all numbers without an end: by kernels, of which many are always queued. Or count by copies of a page."""
    if stage.writes == "kernels":
        numbers = counter.tensor().view(torch.int64)
        while True:
            for _ in range(QUEUED_KERNELS):
                numbers.add_(1)
            torch.cuda.synchronize()
    address, words = address_of(counter), PAGE_BYTES // 8
    for number in itertools.count(1):
        stage.write(address, struct.pack("<Q", number) * words)


def watcher(stage: Stage) -> None:
    """Look at a victim's counter as often as possible, until the keeper asks: when did it change for the last time?

    Then look whether any byte beside it changes any more.
    """
    memory = stage.pool(COUNTER_BYTES, stage.fds[0])
    address, room = address_of(memory), ctypes.create_string_buffer(8)
    value, before, seen, last, looks = b"", 0, 0, 0, 0
    stage.tell()
    first = began = time.monotonic_ns()
    while not stage.has_been_asked():
        began = time.monotonic_ns()
        stage.memory.call("cuMemcpyDtoH", ctypes.addressof(room), address, 8)
        looks += 1
        if room.raw != value:
            value, before, seen = room.raw, last, time.monotonic_ns()
        last = began
    stage.hear()
    now = stage.read(address, COUNTER_BYTES)
    time.sleep(SETTLE_S)
    changed = np.frombuffer(now, np.uint8) != np.frombuffer(stage.read(address, COUNTER_BYTES), np.uint8)
    stage.tell(
        count=struct.unpack("<Q", value)[0],
        written_after=before,  # the look before the one that saw the last write began then
        written_before=seen,
        look_us=round((began - first) / 1000 / looks, 1),
        changed_bytes=int(np.count_nonzero(changed)),
    )


def witness(stage: Stage, pid: int) -> None:
    """Watch a process by /proc, without a GPU, until the keeper asks: when did each sign of its end show?

    `exiting`: its first thread has the kernel's flag PF_EXITING. `files_gone`: none of its threads lists a device file
    any more. `zombie`: its first thread has ended. `threads_gone`: all others have ended, too.
    """
    process, tasks = Path("/proc", str(pid)), Path("/proc", str(pid), "task")
    found: dict[str, int] = {}
    files: dict[str, list[int]] = {}
    for fd, link in sorted(links(process / "fd").items()):
        if DEVICE_FILES in link:
            files.setdefault(Path(link).name, []).append(fd)
    stage.tell(device_files=files, threads=len(os.listdir(tasks)))
    looks, first = 0, time.monotonic_ns()
    while not stage.has_been_asked():
        state, flags = _state(process / "stat")
        signs = {"exiting": bool(flags & PF_EXITING), "zombie": state in "ZX"}
        names = _names(tasks)
        if files and "files_gone" not in found:
            listed = [link for name in names for link in links(tasks / name / "fd").values()]
            signs["files_gone"] = not any(DEVICE_FILES in link for link in listed)
        signs["threads_gone"] = all(_state(tasks / name / "stat")[0] in "ZX" for name in names)
        now = time.monotonic_ns()
        found |= {sign: now for sign, shows in signs.items() if shows and sign not in found}
        looks += 1
    stage.hear()
    stage.tell(look_us=round((time.monotonic_ns() - first) / 1000 / looks, 1), **found)


def _state(stat: Path) -> tuple[str, int]:
    """State and flags of a task; X if it is gone."""
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return "X", PF_EXITING
    return fields[0], int(fields[6])


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def reader(stage: Stage, num_bytes: int) -> None:
    """Write a pool, restore it, map it for reading alone, read it, and try to write it again."""
    pool = stage.pool(num_bytes, stage.fds[0])
    address = address_of(pool)
    _invert(stage, pool)
    if stage.is_marked(address, pool.num_bytes):
        stage.tell(outcome="failed", error=f"{stage.writes} write nothing, so a refusal says nothing")
        return
    stage.mark(address, pool.num_bytes)
    pool.protect()
    told: Figures = {"reads": stage.is_marked(address, pool.num_bytes), "writes": stage.writes}
    try:
        _invert(stage, pool)
        told["refused"] = False
    # A kernel's fault is torch's error, and the end of CUDA in this process.
    except (BatonError, RuntimeError) as error:
        told |= {"refused": True, "error": str(error).splitlines()[0]}
    stage.tell(**told)


def _invert(stage: Stage, pool: CudaMapping) -> None:
    """Change all marks."""
    if stage.writes == "kernels":
        pool.tensor().bitwise_not_()
        torch.cuda.synchronize()
    else:
        stage.mark(address_of(pool), pool.num_bytes, inverted=True)


def grapher(stage: Stage, num_bytes: int) -> None:
    """Capture a graph over scratch memory, and replay it on the pool that comes to the same addresses."""
    if not torch.cuda.is_available():
        stage.tell(outcome="skipped", error="torch has no GPU")
        return
    pool = CudaMapping(stage.memory, num_bytes)
    free = stage.free()
    pool.map_scratch([Span(pool.num_bytes - 8, 8)])
    scratch_bytes = free - stage.free()
    graph = torch.cuda.CUDAGraph()
    last = pool.tensor().view(torch.int64)[-1:]
    last.zero_()
    last.add_(1)  # what a first launch sets up, before the capture
    with torch.cuda.graph(graph):
        last.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    on_scratch = int(last.item())
    began = time.monotonic_ns()
    pool.create()
    remap_ms = ms_since(began)
    whole = pool.tensor().view(torch.int64)
    whole.zero_()
    graph.replay()
    torch.cuda.synchronize()
    told: Figures = {
        "on_scratch": on_scratch,
        "on_the_pool": int(last.item()) == 1,
        "elsewhere_untouched": int(whole.count_nonzero()) == 1,
        "scratch_bytes": scratch_bytes,
        "create_and_remap_ms": remap_ms,
    }
    if stage.writes != "kernels":
        told = {"outcome": "skipped", "error": "kernels write nothing here"} | told
    stage.tell(**told)


def marks(num_bytes: int) -> list[tuple[int, bytes]]:
    """Pages of a pool, evenly spread, and the content that `Stage.mark` gives each of them."""
    pages = num_bytes // PAGE_BYTES
    count = min(MOST_MARKS, pages)
    numbers = [number * (pages - 1) // max(1, count - 1) for number in range(count)]
    return [(n * PAGE_BYTES, struct.pack("<Q", SEED * (n + 1) % 2**64) * (PAGE_BYTES // 8)) for n in numbers]


def address_of(pool: CudaMapping) -> int:
    """The first address of a pool that has memory."""
    return int(pool.view().__cuda_array_interface__["data"][0])


def ms_since(began: int) -> float:
    """Milliseconds since a time in nanoseconds of the monotonic clock."""
    return round((time.monotonic_ns() - began) / 1e6, 2)
