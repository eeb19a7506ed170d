"""The executor starts with all options and odd limits, and serves, or says in a sentence why it does not."""

import contextlib
import ctypes
import gc
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import BatonError
from executor_svc.devices.attention_choice import FLASH_ATTN, TRITON
from executor_svc.options import ExecutorOptions
from executor_svc.startup import start_executor
from tests.executor_svc import harness
from tests.executor_svc.conftest import Make
from tests.rig.drive import random_plans, serve
from tests.rig.stand_in import StandIn

LIMITS: list[dict[str, Any]] = [
    {},
    {"max_num_seqs": 1},
    {"num_blocks": 1},
    {"max_num_seqs": 8192, "enforce_eager": True},
    {"max_batch_tokens": 100, "max_num_seqs": 256},
    {"max_batch_tokens": 1},
    {"max_num_seqs": 300, "max_batch_tokens": 64},
    {"max_num_seqs": 64, "max_batch_tokens": 64},
    {"max_model_len": 100},
    {"max_model_len": 33, "enforce_eager": True},
    {"max_batch_tokens": 64, "enforce_eager": True},
]


@pytest.mark.parametrize("attention", ["triton", "flash_attn"])
@pytest.mark.parametrize("given", LIMITS, ids=lambda given: "-".join(map(str, given.items())) or "defaults")
def test_limits(rig: StandIn, small: Path, attention: str, given: dict[str, Any]) -> None:
    options = {"kv_cache_memory_gib": 0.5, "attention": attention, **given}
    runner, limits = harness.start(small, device="cuda", dtype="bfloat16", poison=False, **options)
    with rig.schedule("lazy"), rig.serving():
        serve(runner, random_plans(limits, random.Random(1)), steps=20)


@pytest.mark.parametrize(
    ("given", "kind", "block_size"),
    [
        ({}, FLASH_ATTN, 256),
        ({"block_size": 512}, FLASH_ATTN, 512),
        ({"attention": "flash_attn"}, FLASH_ATTN, 256),
        ({"attention": "triton"}, TRITON, 16),
        ({"dtype": "float32"}, TRITON, 16),
        ({"dtype": "float16"}, FLASH_ATTN, 256),
        ({"block_size": 16}, TRITON, 16),
        ({"block_size": 128}, TRITON, 128),
    ],
    ids=lambda given: "-".join(map(str, given.items())) or "defaults" if isinstance(given, dict) else None,
)
def test_the_kernels_that_take_the_model_are_chosen(
    rig: StandIn, small: Path, given: dict[str, Any], kind: Any, block_size: int
) -> None:
    options = {"dtype": "bfloat16", "num_blocks": 16, "max_num_seqs": 2, **given}
    runner, limits = harness.start(small, device="cuda", poison=False, **options)
    assert type(runner._backend._attention).__name__ == {FLASH_ATTN: "FlashAttention", TRITON: "PagedAttention"}[kind]
    assert limits.block_size == block_size
    serve(runner, random_plans(limits, random.Random(1)), steps=5)


def test_the_demo_model(rig: StandIn) -> None:
    runner, limits = harness.start(None, device="cuda", poison=False, kv_cache_memory_gib=0.5)
    serve(runner, random_plans(limits, random.Random(1)), steps=20)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attention": "flash_attn", "dtype": "float32"}, "takes bfloat16 and float16, not float32"),
        ({"attention": "flash_attn", "block_size": 16}, "blocks of a power of two from 256 positions, not 16"),
        ({"attention": "flash_attn", "block_size": 768}, "blocks of a power of two from 256 positions, not 768"),
        ({"attention": "triton", "block_size": 48}, "block_size is 48"),
        ({"attention": "triton", "block_size": 8}, "block_size is 8"),
        ({"quantization": "int8"}, "--quantization int8 is for --device cpu"),
        ({"num_blocks": 10**7}, "cannot be allocated"),
        ({"max_model_len": 10**6}, "--max-model-len is 1000000, the model takes"),
    ],
    ids=lambda given: "-".join(map(str, given.items())) if isinstance(given, dict) else "",
)
def test_what_cannot_be_served_is_said(rig: StandIn, small: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(BatonError, match=said):
        start_executor(ExecutorOptions(**{"model": str(small), "device": "cuda", "num_blocks": 16, **given}))


@contextlib.contextmanager
def taken_by_others(share: float) -> Iterator[None]:
    """Memory of the GPU that torch knows nothing of, as that of another process."""
    runtime = ctypes.CDLL("libcudart.so.13")
    pointer = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(int(share * torch.cuda.mem_get_info()[1]))) == 0
    try:
        yield
    finally:
        assert runtime.cudaFree(pointer) == 0


@pytest.mark.parametrize(
    ("others", "utilization", "taken"),
    [(0.0, 0.9, 0.9), (0.45, 0.45, 0.45), (0.5, 0.9, 0.47), (0.0, 1.0, 0.97)],
    ids=["alone", "two shares", "more than is free", "all"],
)
def test_the_pool_takes_the_share_that_is_left(
    rig: StandIn, small: Path, others: float, utilization: float, taken: float
) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    options = ExecutorOptions(model=str(small), device="cuda", max_num_seqs=8, gpu_memory_utilization=utilization)
    with taken_by_others(others):
        started = start_executor(options)
        free, total = torch.cuda.mem_get_info()
        assert taken - 0.02 < (total - free) / total - others < taken + 0.01
        assert started
        with pytest.raises(BatonError, match=r"no memory is left for the KV pool: .* of 140\.4, its weights take"):
            start_executor(options)


@pytest.mark.parametrize("experts", [False, True])
def test_a_mixture_of_experts_and_a_dense_model_compile_nothing_later(
    rig: StandIn, checkpoint: Make, experts: bool
) -> None:
    folder = checkpoint(preset="30B-A3B", experts=experts, tied=False, dtype=torch.bfloat16, num_layers=2)
    runner, limits = harness.start(
        folder, device="cuda", dtype="bfloat16", poison=False, kv_cache_memory_gib=0.5, attention="triton"
    )
    with rig.schedule("lazy"), rig.serving():
        serve(runner, random_plans(limits, random.Random(2)), steps=100)
