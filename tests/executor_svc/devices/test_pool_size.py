"""How many blocks there are, from what the operator says and what the machine has."""

from pathlib import Path
from typing import Any

import pytest
import torch

from executor_svc.devices.cpu import CpuPlatform
from executor_svc.devices.pool_size import PoolTooSmall, available_memory, choose_max_model_len, choose_num_blocks
from executor_svc.model.attention import KVGeometry

# 2 (K and V) * 4 layers * 8 heads * 128 * 16 positions * 2 bytes = 256 KiB a block
GEOMETRY = KVGeometry(num_layers=4, num_kv_heads=8, head_dim=128, block_size=16, dtype=torch.bfloat16)
GIB = 2**30


def blocks(**changes: Any) -> int:
    arguments = {"num_blocks": None, "memory_gib": None, "default_bytes": lambda: 2 * GIB}
    return choose_num_blocks(GEOMETRY, **{**arguments, **changes})


def test_block_bytes() -> None:
    assert GEOMETRY.block_bytes == 256 * 1024


def test_blocks_as_told() -> None:
    assert blocks(num_blocks=7, memory_gib=1.0) == 7
    assert blocks(memory_gib=1.0) == 4096
    assert blocks(memory_gib=0.0003) == 1


def test_blocks_by_default() -> None:
    assert blocks() == 8192


def test_cpu_takes_a_quarter_of_the_memory_but_no_more_than_is_of_use() -> None:
    available = available_memory()
    platform = CpuPlatform(threads=1)
    assert platform.default_pool_bytes(1000, pytest.fail) == 1000
    assert platform.default_pool_bytes(2**60, pytest.fail) == pytest.approx(available / 4, rel=0.1)


def test_too_little_memory() -> None:
    with pytest.raises(PoolTooSmall, match=r"hold no block of 0\.000 GiB \(16 positions\); give more with"):
        blocks(memory_gib=0.0001)
    with pytest.raises(PoolTooSmall):
        blocks(default_bytes=lambda: 0)


def test_max_model_len() -> None:
    assert choose_max_model_len(None, 2048, num_blocks=1000, block_size=16) == 2048
    assert choose_max_model_len(None, 2048, num_blocks=10, block_size=16) == 160
    assert choose_max_model_len(160, 2048, num_blocks=10, block_size=16) == 160
    with pytest.raises(PoolTooSmall, match="--max-model-len is 161, the pool holds 160 positions"):
        choose_max_model_len(161, 2048, num_blocks=10, block_size=16)
    with pytest.raises(PoolTooSmall, match="--max-model-len is 2049, the model takes 2048"):
        choose_max_model_len(2049, 2048, num_blocks=1000, block_size=16)


def test_available_memory_respects_the_container(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal:       16000000 kB\nMemAvailable:    8388608 kB\nHugePages_Total:       0\n"
    )
    assert available_memory(tmp_path) == 8 * GIB
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    for limit, expected in ((9, 8), (3, 2)):
        (group / "memory.max").write_text(f"{limit * GIB}\n")
        (group / "memory.current").write_text(f"{1 * GIB}\n")
        assert available_memory(tmp_path) == expected * GIB


def test_this_machine() -> None:
    assert available_memory() > 2**20
