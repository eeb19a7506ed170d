"""A keeper of weights without a process, and how tests obtain weights from one."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from common.errors import KeeperError
from common.messages import WeightsKind
from executor_svc.devices.memfd_weights import MemfdWeights
from executor_svc.keeper.held import HeldWeights
from executor_svc.model.checkpoint import Checkpoint
from executor_svc.model.families import read_config
from executor_svc.model.kept_weights import LoadedWeights, WeightKeeper, WeightStore, obtain_weights
from executor_svc.model.prepared import WeightLayout
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup
from executor_svc.model.sharding import Shard
from executor_svc.model.weight_memory import WeightMemories

CPU = torch.device("cpu")
MEMFDS = MemfdWeights()


@dataclass
class Kept:
    kind: WeightsKind
    fingerprint: str
    num_bytes: int
    memory: int
    sources: set[str]


@dataclass
class Keeper:
    """What `executor_svc.model.kept_weights.WeightKeeper` says."""

    kept: list[Kept] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fails: bool = False
    num_readers: int = 0
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
        for kept in self.kept:
            if kept.kind == kind and (source in kept.sources if source else fingerprint == kept.fingerprint):
                return HeldWeights(kind, kept.fingerprint, source, kept.num_bytes, self._duplicate(kept.memory))
        return None

    def deposit_weights(
        self, kind: WeightsKind, fingerprint: str, num_bytes: int, memory_fd: int, source: str = ""
    ) -> HeldWeights:
        self._called("deposit")
        assert num_bytes == os.fstat(memory_fd).st_size
        held = HeldWeights(kind, fingerprint, source, num_bytes, self._duplicate(memory_fd))
        for kept in self.kept:
            kept.sources.discard(source)
        for kept in self.kept:
            if (kept.kind, kept.fingerprint) == (kind, fingerprint):
                kept.sources |= {source} - {""}
                return held
        self.kept.append(Kept(kind, fingerprint, num_bytes, held.memory_fd, {source} - {""}))
        return held

    def make_room(self, device: str, *, pools: bool = True) -> int:
        self._called(f"drop {'pools' if pools else 'weights'} on {device}")
        return 0

    def reads_for_itself(self) -> None:
        self._called("reads for itself")

    def close(self) -> None:
        """Close what it and executors have."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def _duplicate(self, descriptor: int) -> int:
        self.descriptors.append(os.dup(descriptor))
        return self.descriptors[-1]

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if self.fails:
            raise KeeperError("the keeper is gone")


class Log:
    """Takes what is logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    warning = info


def obtain(
    folder: Path,
    keeper: WeightKeeper | None,
    group: RankGroup = SINGLE_RANK,
    memories: WeightMemories = MEMFDS,
    device: torch.device = CPU,
    **options: Any,
) -> LoadedWeights:
    config = read_config(folder)
    layout = WeightLayout(config, Shard.of(config, group.rank, group.size), torch.float32)
    with Checkpoint(folder) as checkpoint:
        store = None if keeper is None else WeightStore(keeper, memories)
        return obtain_weights(checkpoint, layout, device, group, store, **options)


def assert_equal(one: LoadedWeights, other: LoadedWeights) -> None:
    assert one.fingerprint == other.fingerprint
    assert list(one.weights.tensors) == list(other.weights.tensors)
    assert all(torch.equal(tensor, other.weights.tensors[name]) for name, tensor in one.weights.tensors.items())


def file_of(loaded: LoadedWeights) -> int:
    assert loaded.held is not None
    return os.fstat(loaded.held.memory_fd).st_ino
