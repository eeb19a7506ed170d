"""A keeper without a process, and an executor's link to it."""

import contextlib
import itertools
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import KeeperError
from common.messages import PoolKind, WeightsKind
from executor_svc.keeper.held import HeldPool, HeldWeights

_numbers = itertools.count()


@dataclass
class KeptWeights:
    """Weights that were brought, and the sources that they are known by."""

    kind: WeightsKind
    fingerprint: str
    num_bytes: int
    memory: int
    sources: set[str]


@dataclass
class FakeKeeper:
    """What is kept. It answers about weights itself, as a `KeeperLink` does; a `FakeLink` answers about pools, too.

    It does not find out whether a pool's holder lives: the last pool that was brought is leased to each that asks. It
    has no limit, drops nothing of itself, and checks neither who asks nor what is brought.

    Attributes:
        refuses: whether no pool may be brought.
        fails: whether each call about weights fails.
        room: what giving back unused memory brings, in bytes.
        calls: about weights, room and ends of leases, in words.
        num_readers: how many wanted to read weights that are not kept.
        released: of each lease that was released, how often this process had the pool's and the tag's memory mapped,
            and open.
    """

    weights: list[KeptWeights] = field(default_factory=list)
    pools: list[HeldPool] = field(default_factory=list)
    refuses: bool = False
    fails: bool = False
    room: int = 0
    calls: list[str] = field(default_factory=list)
    num_readers: int = 0
    released: list[list[tuple[int, int]]] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def find_weights(
        self,
        kind: WeightsKind,
        *,
        fingerprint: str = "",
        source: str = "",
        reads: bool = False,
        wait_s: float = 0.0,
    ) -> HeldWeights | None:
        self._called(f"find {'source' if source else 'fingerprint'}")
        self.num_readers += reads
        for kept in self.weights:
            if kept.kind == kind and (source in kept.sources if source else fingerprint == kept.fingerprint):
                return HeldWeights(kind, kept.fingerprint, source, kept.num_bytes, self._duplicate(kept.memory))
        return None

    def deposit_weights(
        self, kind: WeightsKind, fingerprint: str, num_bytes: int, memory_fd: int, source: str = ""
    ) -> HeldWeights:
        self._called("deposit")
        assert num_bytes == os.fstat(memory_fd).st_size
        held = HeldWeights(kind, fingerprint, source, num_bytes, self._duplicate(memory_fd))
        for kept in self.weights:
            kept.sources.discard(source)
        for kept in self.weights:
            if (kept.kind, kept.fingerprint) == (kind, fingerprint):
                kept.sources |= {source} - {""}
                return held
        self.weights.append(KeptWeights(kind, fingerprint, num_bytes, held.memory_fd, {source} - {""}))
        return held

    def make_room(self, device: str, *, pools: bool = True) -> int:
        self._called(f"drop {'pools' if pools else 'weights'} on {device}")
        return self.room

    def reads_for_itself(self) -> None:
        self._called("reads for itself")

    def close(self) -> None:
        """Close what it and executors have of weights."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def _duplicate(self, descriptor: int) -> int:
        self.descriptors.append(os.dup(descriptor))
        return self.descriptors[-1]

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if self.fails:
            raise KeeperError("the keeper is gone")


@dataclass
class FakeLink:
    """What a `KeeperLink` says about pools to the one executor, or rank, that has it. It never waits.

    Attributes:
        keeper: what is kept.
        pool: what the executor holds.
        tries: how often there is no pool before there is one, because its holder lives.
        found: number of blocks of the pool that is found, if not of the one that is there.
        has_stopped: whether it waits no more.
    """

    keeper: FakeKeeper
    pool: HeldPool | None = None
    tries: int = 0
    found: int | None = None
    has_stopped: bool = False

    def lease_pool(self, kind: PoolKind, num_blocks: int) -> HeldPool | None:
        self.tries -= 1
        if self.tries >= 0 or not self.keeper.pools:
            return None
        last = self.keeper.pools[-1]
        assert (last.kind, last.num_blocks) == (kind, num_blocks)
        fds = os.dup(last.memory_fd), os.dup(last.tag_fd)
        self.pool = HeldPool(kind, last.pool, last.lease + 1, num_blocks, last.num_bytes, *fds)
        return self.pool

    def wait_for_pool(
        self,
        kind: PoolKind,
        num_blocks: int,
        interrupt_fd: int | None = None,
        waiting: object = None,
        until: float = 0.0,
    ) -> HeldPool | None:
        return self.lease_pool(kind, num_blocks)

    def stop_waiting(self) -> None:
        self.has_stopped = True

    def deposit_pool(self, kind: PoolKind, num_blocks: int, num_bytes: int, memory_fd: int, tag_fd: int) -> HeldPool:
        if self.keeper.refuses:
            raise KeeperError("the keeper refuses: it is full")
        name = f"{next(_numbers):032}"
        self.pool = HeldPool(kind, name, 1, num_blocks, num_bytes, os.dup(memory_fd), os.dup(tag_fd))
        self.keeper.pools.append(self.pool)
        return self.pool

    def give_pool_up(self) -> None:
        if self.pool is not None:
            self.keeper.pools = [kept for kept in self.keeper.pools if kept.pool != self.pool.pool]
            self.pool = None

    def release_lease(self) -> None:
        assert self.pool is not None
        os.close(self.pool.memory_fd)
        os.close(self.pool.tag_fd)
        last = self.keeper.pools[-1]
        self.keeper.released.append([uses(fd) for fd in (last.memory_fd, last.tag_fd)])
        self.keeper.calls.append("release the lease")
        self.pool = None

    def find_pool(self, kind: PoolKind, num_blocks: int = 0) -> int:
        if self.found is not None:
            return self.found
        return num_blocks if self.keeper.pools else 0

    def make_room(self, device: str, *, pools: bool = True) -> int:
        return self.keeper.make_room(device, pools=pools)

    def receive(self) -> list[Any]:
        return []

    def tick(self, now: float, state: str) -> None:
        pass

    def next_tick(self) -> float:
        return time.monotonic() + 1.0

    def fileno(self) -> int:
        return -1


def uses(fd: int) -> tuple[int, int]:
    """How often this process has the file of a descriptor mapped, and open."""
    file = os.fstat(fd)
    mapped = [int(line.split()[4]) for line in Path("/proc/self/maps").read_text().splitlines()]
    opened = []
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the folder itself
            opened.append(os.stat(f"/proc/self/fd/{each}"))
    return mapped.count(file.st_ino), sum(os.path.samestat(file, each) for each in opened)
