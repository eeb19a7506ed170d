"""What the children of `gpu_keeper_proof.py` do: they play executors that make, inherit, write and watch GPU memory."""

import ctypes
import functools
import itertools
import json
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from common.errors import BatonError
from executor_svc.devices.cuda_mapping import CudaMapping
from executor_svc.devices.cuda_memory import CudaError, CudaMemory
from executor_svc.keeper.pool_memory import Span

PAGE_BYTES = 2**21
SEED = 0x9E3779B97F4A7C15  # of the pattern
QUEUED_KERNELS = 4096
WATCH_S = 0.05  # in which a writer is seen to write
SETTLE_S = 1.0  # in which a killed one must not


class Stage:
    """What every role has: the GPU, and the socket to the keeper.

    Args:
        sock: to the keeper.
        driver: bindings of CUDA's driver; None for NVIDIA's.
        num_bytes: of the pool.
        fds: descriptors of memory that the keeper has.
    """

    def __init__(self, sock: socket.socket, driver: Any, num_bytes: int, fds: tuple[int, ...]) -> None:
        self._sock = sock
        self.began_s = time.monotonic()
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
        self.memory = CudaMemory(0, driver)
        self.num_bytes = self.memory.rounded(num_bytes)
        self.fds = fds

    def tell(self, told: dict[str, Any], *fds: int) -> None:
        """Say something to the keeper."""
        socket.send_fds(self._sock, [json.dumps(told).encode()], list(fds))

    def wait(self) -> None:
        """Wait for the keeper's word."""
        self._sock.recv(64)

    def free(self) -> int:
        """Free bytes of the GPU."""
        return int(self.memory.call("cuMemGetInfo")[0])

    def pool(self) -> CudaMapping:
        """Addresses, with the keeper's memory behind them if there is one."""
        pool = CudaMapping(self.memory, self.num_bytes)
        if self.fds:
            pool.map(self.fds[0])
        return pool

    def write(self, pool: CudaMapping, content: bytes) -> None:
        """Write all of a pool."""
        self.memory.call("cuMemcpyHtoD", _address(pool), content, len(content))
        self.memory.synchronize()

    def read(self, pool: CudaMapping) -> bytes:
        """Read all of a pool."""
        return self.read_at(_address(pool))

    def read_at(self, address: int) -> bytes:
        """Read as much from an address."""
        content = ctypes.create_string_buffer(self.num_bytes)
        self.memory.call("cuMemcpyDtoH", ctypes.addressof(content), address, self.num_bytes)
        return content.raw


def play(
    role: str, sock: socket.socket, make_driver: Callable[[], Any] | None, num_bytes: int, fds: tuple[int, ...]
) -> None:
    """Play a role until the keeper ends this process."""
    try:
        stage = Stage(sock, make_driver() if make_driver else None, num_bytes, fds)
        ROLES[role](stage)
        signal.pause()
    except BatonError as error:
        call = error.call if isinstance(error, CudaError) else None
        sock.sendall(json.dumps({"outcome": "unsupported", "call": call, "error": str(error)}).encode())


def maker(stage: Stage) -> None:
    """Make memory, fill it, and give the keeper its descriptor."""
    pool = stage.pool()
    began_s = time.monotonic()
    pool.create()
    created_ms = _ms(began_s)
    stage.write(pool, pattern(stage.num_bytes))
    assert pool.descriptor is not None
    told = {"device": pool.device, "pool_bytes": pool.num_bytes, "granularity": stage.memory.granularity}
    stage.tell(told | {"create_ms": created_ms}, pool.descriptor)


def heir(stage: Stage) -> None:
    """Map what the keeper has, call by call, and compare."""
    memory = stage.memory
    times = {"start_ms": _ms(stage.began_s)}
    began_s = time.monotonic()
    handle = memory.import_(stage.fds[0])
    times["import_ms"] = _ms(began_s)
    began_s = time.monotonic()
    address = memory.reserve(stage.num_bytes)
    memory.map(address, stage.num_bytes, handle)
    memory.allow_access(address, stage.num_bytes)
    times["map_ms"] = _ms(began_s)
    memory.release(handle)
    stage.tell(times | {"same": stage.read_at(address) == pattern(stage.num_bytes)})


def anchor(stage: Stage) -> None:
    """Import what the keeper has, and map nothing."""
    stage.memory.import_(stage.fds[0])
    stage.tell({})


def scale(stage: Stage) -> None:
    """Say how much of the GPU's memory is free."""
    stage.tell({"free": stage.free()})


def writer(stage: Stage) -> None:
    """Write into the keeper's memory without an end: by kernels, of which many are always queued, or by copies."""
    pool = stage.pool()
    if torch.cuda.is_available():
        tensor = pool.tensor()
        stage.tell({"how": f"kernels, up to {QUEUED_KERNELS} queued"})
        while True:
            for _ in range(QUEUED_KERNELS):
                tensor.add_(1)
            torch.cuda.synchronize()
    stage.tell({"how": "copies"})
    for number in itertools.count():
        stage.write(pool, bytes([number % 251]) * stage.num_bytes)


def watcher(stage: Stage) -> None:
    """Watch the keeper's memory: is it written, and once the keeper says that the writer is dead, is it still?"""
    pool = stage.pool()
    before = stage.read(pool)
    time.sleep(WATCH_S)
    stage.tell({"writes": before != stage.read(pool)})
    stage.wait()
    began_s = time.monotonic()
    before = stage.read(pool)  # what is written until now is not seen: an heir takes longer to come
    looked_ms = _ms(began_s)
    time.sleep(SETTLE_S)
    after = stage.read(pool)
    changed = np.frombuffer(before, np.uint8) != np.frombuffer(after, np.uint8)
    stage.tell({"changed_bytes": int(np.count_nonzero(changed)), "look_ms": looked_ms})


def reader(stage: Stage) -> None:
    """Write the keeper's memory, restore it, map it for reading alone, read it, and try to write it again."""
    pool = stage.pool()
    how = "a kernel" if torch.cuda.is_available() else "a copy"
    _invert(stage, pool)
    if stage.read(pool) == pattern(stage.num_bytes):
        stage.tell({"outcome": "failed", "error": f"{how} writes nothing, so its refusal says nothing"})
        return
    stage.write(pool, pattern(stage.num_bytes))
    pool.protect()
    told = {"reads": stage.read(pool) == pattern(stage.num_bytes), "writes": how}
    try:
        _invert(stage, pool)
        stage.tell(told | {"refused": False})
    # A kernel's fault is torch's error, and the end of CUDA in this process.
    except (BatonError, RuntimeError) as error:
        stage.tell(told | {"refused": True, "error": str(error).splitlines()[0]})


def _invert(stage: Stage, pool: CudaMapping) -> None:
    """Change all bytes: by a kernel, or by a copy where torch has no GPU."""
    if torch.cuda.is_available():
        pool.tensor().bitwise_not_()
        torch.cuda.synchronize()
    else:
        stage.write(pool, bytes(byte ^ 255 for byte in pattern(stage.num_bytes)))


def grapher(stage: Stage) -> None:
    """Capture a graph over scratch memory, and replay it on the pool that comes to the same addresses."""
    if not torch.cuda.is_available():
        stage.tell({"outcome": "skipped", "error": "torch has no GPU"})
        return
    free = stage.free()
    pool = stage.pool()
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
    with_pool_s = time.monotonic()
    pool.create()
    remap_ms = _ms(with_pool_s)
    whole = pool.tensor().view(torch.int64)
    whole.zero_()
    graph.replay()
    torch.cuda.synchronize()
    stage.tell(
        {
            "on_scratch": on_scratch,
            "on_the_pool": int(last.item()) == 1,
            "elsewhere_untouched": int(whole.count_nonzero()) == 1,
            "scratch_bytes": scratch_bytes,
            "create_and_remap_ms": remap_ms,
        }
    )


ROLES = {role.__name__: role for role in (maker, heir, anchor, scale, writer, watcher, reader, grapher)}


@functools.cache
def pattern(num_bytes: int) -> bytes:
    """What a maker writes: different in each page."""
    numbers = range(-(-num_bytes // PAGE_BYTES))
    pages = [struct.pack("<Q", (SEED * (number + 1)) % 2**64) * (PAGE_BYTES // 8) for number in numbers]
    return b"".join(pages)[:num_bytes]


def _address(pool: CudaMapping) -> int:
    return int(pool.view().__cuda_array_interface__["data"][0])


def _ms(began_s: float) -> float:
    return round(1000 * (time.monotonic() - began_s), 2)
