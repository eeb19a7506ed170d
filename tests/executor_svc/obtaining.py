"""How tests obtain weights, with a keeper or without one."""

import os
from pathlib import Path
from typing import Any

import torch

from executor_svc.devices.memfd_weights import MemfdWeights
from executor_svc.model.checkpoint import Checkpoint
from executor_svc.model.families import read_config
from executor_svc.model.kept_weights import LoadedWeights, WeightKeeper, WeightStore, obtain_weights
from executor_svc.model.prepared import WeightLayout
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup
from executor_svc.model.sharding import Shard
from executor_svc.model.weight_memory import WeightMemories

CPU = torch.device("cpu")
MEMFDS = MemfdWeights()


def obtain(
    folder: Path,
    keeper: WeightKeeper | None,
    group: RankGroup = SINGLE_RANK,
    memories: WeightMemories = MEMFDS,
    device: torch.device = CPU,
    checkpoint: type[Checkpoint] = Checkpoint,
    **options: Any,
) -> LoadedWeights:
    config = read_config(folder)
    layout = WeightLayout(config, Shard.of(config, group.rank, group.size), torch.float32)
    with checkpoint(folder) as opened:
        store = None if keeper is None else WeightStore(keeper, memories)
        return obtain_weights(opened, layout, device, group, store, **options)


def assert_equal(one: LoadedWeights, other: LoadedWeights) -> None:
    assert one.fingerprint == other.fingerprint
    assert list(one.weights.tensors) == list(other.weights.tensors)
    assert all(torch.equal(tensor, other.weights.tensors[name]) for name, tensor in one.weights.tensors.items())


def file_of(loaded: LoadedWeights) -> int:
    assert loaded.held is not None
    return os.fstat(loaded.held.memory_fd).st_ino
