"""Paged attention of each kind of model: shapes for each of which a kernel is compiled, up to real sizes on a GPU."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.gpu.attention.paged_attention import PagedAttention
from kernels.gpu.attention.plan import AttentionShape
from tests.kernels.gpu.attention_cases import SMALL, Batch, Case, attend, check, run
from tests.support.effort import covering


@pytest.mark.parametrize(
    ("piece_len", "group"),
    [(None, 5), (128, 2), (128, 16)]
    + [
        pytest.param(piece_len, group, marks=pytest.mark.slow)
        for piece_len, group in itertools.product([None, 128], [1, 2, 4, 5, 8, 16])
        if (piece_len, group) not in [(None, 5), (128, 2), (128, 16)]
    ],
)
def test_groups_of_query_heads(device: torch.device, group: int, piece_len: int | None) -> None:
    kv_heads = 1 if group > 4 else 2
    shape = AttentionShape(kv_heads * group, kv_heads, 64, 32, torch.float32)
    batch = Batch(Case([(1, 300), (2, 129), (3, 3), (20, 260)], shape), device)
    check(batch, attend(batch, piece_len=piece_len))


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256, 512, 1024])
def test_block_sizes(device: torch.device, block_size: int) -> None:
    edges = [block_size * count + off for count in (1, 2) for off in (-1, 0, 1)]
    lens = [(1, edge) for edge in edges] + [(edges[0] - 8, edges[0])] * (block_size <= 256)
    batch = Batch(Case(lens, replace(SMALL, num_heads=2, num_kv_heads=1, block_size=block_size)), device)
    check(batch, attend(batch))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", [16, 32, 128])
def test_head_dims(device: torch.device, head_dim: int, dtype: torch.dtype) -> None:
    batch = Batch(Case([(1, 300), (3, 129), (20, 40)], AttentionShape(4, 2, head_dim, 16, dtype)), device)
    check(batch, attend(batch, piece_len=128))


QWEN3 = [(16, 8), (32, 8), (40, 8), (64, 8), (4, 1)]
STEPS = {
    "256 x 1k": [(1, 1024)] * 256,
    "32 x 8k": [(1, 8192)] * 32,
    "1 x 128k": [(1, 131072)],
    "ragged": [(1, 1 + 37 * i * i % 5000) for i in range(200)],
    "one long among short": [(1, 150)] * 100 + [(1, 100_000)],
    "prefill 1 x 8k": [(8192, 8192)],
    "prefill 8 x 1k": [(1024, 1024)] * 8,
    "end of 100k": [(200, 100_000)],
    "mixed": [(1, 900)] * 60 + [(5, 1000), (40, 40), (700, 1900), (1500, 1500)],
}


SHAPES = [
    *(AttentionShape(*heads, 128, size, torch.bfloat16) for heads in QWEN3 for size in (16, 64, 256)),
    AttentionShape(16, 8, 128, 32, torch.float16),
    AttentionShape(32, 8, 128, 1024, torch.float16),
    AttentionShape(14, 2, 64, 16, torch.bfloat16),
    AttentionShape(14, 2, 64, 256, torch.bfloat16),
    AttentionShape(4, 2, 16, 16, torch.bfloat16),
    AttentionShape(8, 2, 32, 256, torch.bfloat16),
]


def real_sizes() -> list[Any]:
    """Some of all steps with all shapes, about one in five: a GPU is lent for minutes, and each test takes a second.

    Kinds of tile, groups of heads, block sizes, dtypes, head_dims and layouts meet pair by pair, each step meets blocks
    that are smaller than a tile, as long as one and longer, and each shape is there.
    """
    every = list(itertools.product(STEPS, SHAPES))
    chosen = covering([meetings(combination) for combination in every])
    return [pytest.param(*every[i], id=f"{every[i][0]}-{every[i][1]}") for i in sorted(chosen)]


def meetings(combination: tuple[str, AttentionShape]) -> set[Any]:
    """List the pairs of properties that a step with a shape tests together."""
    step, shape = combination
    is_narrow = {queries == 1 for queries, _ in STEPS[step]}
    kind = (str(is_narrow), shape.group, shape.block_size, shape.dtype, shape.head_dim, flash_layout(shape))
    longer = (shape.block_size > 64) - (shape.block_size < 64)
    return {*itertools.combinations(enumerate(kind), 2), (step, longer), shape}


def flash_layout(shape: AttentionShape) -> bool:
    return shape.num_kv_heads == 8


@pytest.mark.gpu
@pytest.mark.parametrize(("step", "shape"), real_sizes())
def test_real_sizes(device: torch.device, step: str, shape: AttentionShape) -> None:
    case = Case(STEPS[step], shape, flash_layout=flash_layout(shape))
    batch = Batch(case, device)
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    attention = PagedAttention(case.shape, num_sms, device)
    for one_launch in (False, True):
        out = run(attention, attention.plan(batch.query_lens, batch.context_lens, one_launch=one_launch), batch)
        error = (out.double() - batch.expected).norm() / batch.expected.norm()
        assert error < (4e-3 if case.shape.dtype == torch.bfloat16 else 6e-4)
