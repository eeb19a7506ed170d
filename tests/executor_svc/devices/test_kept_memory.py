"""A pool's memory in huge pages, as far as plans have come."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from executor_svc.devices.kept_memory import KeptMemory
from executor_svc.devices.memfd_pool import MemfdPool
from executor_svc.keeper.memory import HUGE_PAGE_BYTES, Mapping
from executor_svc.keeper.tag import PoolTag
from executor_svc.model.attention import new_cache
from tests.executor_svc.pools import GEOMETRY

NUM_BLOCKS = 1000
NUM_BYTES = (NUM_BLOCKS + 1) * GEOMETRY.block_bytes


@dataclass
class Kept:
    """A pool without a keeper."""

    memory: MemfdPool
    tag: PoolTag

    def cache(self, **limits: float) -> KeptMemory:
        return KeptMemory(self, self.memory, GEOMETRY, NUM_BLOCKS, **limits)  # type: ignore[arg-type]


def kept_in(memory: MemfdPool) -> Kept:
    memory.create()
    return Kept(memory, PoolTag(PoolTag.create()))


def huge_kb(mapping: Mapping) -> int:
    """KiB of the mapping that are in huge pages."""
    smaps = Path("/proc/self/smaps").read_text()
    (found,) = re.findall(rf"^{mapping.address:x}-.*?^ShmemPmdMapped: +(\d+) kB", smaps, re.DOTALL | re.MULTILINE)
    return int(found)


def test_huge_pages_reach_as_far_as_blocks_are_used() -> None:
    kept = kept_in(MemfdPool(NUM_BYTES))
    mapping = kept.memory.mapping
    if not mapping.collapse(0, HUGE_PAGE_BYTES):
        pytest.skip("this kernel makes no huge pages of memory files (MADV_COLLAPSE, Linux 6.1)")
    memory = kept.cache()
    shape = (2, 2, NUM_BLOCKS + 1, 2, 16, 64)
    cache = new_cache(shape, torch.float32, torch.device("cpu"), memory)
    assert cache.data_ptr() == mapping.address
    memory.reach(NUM_BLOCKS)  # the padding block, of trial steps
    assert huge_kb(mapping) == HUGE_PAGE_BYTES // 1024
    memory.reach(0)
    first = huge_kb(mapping)
    assert 4 * 2048 <= first <= 8 * 2048, "one or two for each of four parts"
    memory.reach(255)
    assert huge_kb(mapping) == first, "of 256 blocks' 2 MiB"
    memory.reach(NUM_BLOCKS - 1)
    whole = mapping.num_bytes // HUGE_PAGE_BYTES * 2048
    assert huge_kb(mapping) == whole
    assert kept.tag.num_asked_blocks == NUM_BLOCKS, "the next holder need not ask"
    cache.fill_(1.0)
    assert cache.sum().item() == cache.numel()


@pytest.mark.parametrize("fault", ["refused", "slow"])
def test_it_stops_asking_where_the_kernel_makes_none_or_is_slow(fault: str) -> None:
    asked: list[tuple[int, int]] = []

    class Asked(MemfdPool):
        def collapse(self, start: int, num_bytes: int) -> bool:
            asked.append((start, num_bytes))
            return fault != "refused"

    kept = kept_in(Asked(NUM_BYTES))
    memory = kept.cache(slow_s=-1.0 if fault == "slow" else 60.0)
    memory.reach(0)
    num_asked = len(asked)
    for each in (memory, kept.cache()):
        each.reach(NUM_BLOCKS - 1)
        assert 0 < len(asked) == num_asked, "a successor would have to copy what was written since"
