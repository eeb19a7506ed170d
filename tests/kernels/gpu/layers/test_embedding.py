"""The embedding gather against its twin: known ids, unknown ids, strides, dtypes; nothing else in memory changes."""

import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.gpu.layers.embedding import embed_tokens
from tests.kernels.gpu import memory

VOCAB, LANES = 11, 5


def ints(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Token ids, about half of them unknown, and lanes."""
    num_tokens = draw(st.integers(1, 6))
    ids = draw(st.lists(st.just(-1) | st.integers(0, VOCAB - 1), min_size=num_tokens, max_size=num_tokens))
    return ids, draw(st.lists(st.integers(0, LANES - 1), min_size=num_tokens, max_size=num_tokens))


@settings(max_examples=memory.NUM_EXAMPLES)
@given(
    plan=plans(),
    size=st.integers(1, 200),
    dtype=memory.DTYPES,
    gap=memory.GAPS,
    out_gap=memory.GAPS,
    seed=st.integers(0, 99),
)
@example(plan=([3, -1], [0, 2]), size=2560, dtype=torch.bfloat16, gap=0, out_gap=0, seed=0)
@example(plan=([-1, -1], [4, 0]), size=2048, dtype=torch.float16, gap=8, out_gap=0, seed=1)
def test_embed_tokens(
    plan: tuple[list[int], list[int]],
    size: int,
    dtype: torch.dtype,
    gap: int,
    out_gap: int,
    seed: int,
    device: torch.device,
) -> None:
    token_ids, token_lanes = (ints(each, device) for each in plan)
    last_tokens = torch.randint(0, VOCAB, (LANES,), generator=torch.Generator().manual_seed(seed)).to(device).int()
    table = memory.framed(memory.noise(seed, VOCAB, size, dtype=dtype, device=device), beside=gap)
    out = memory.poison(len(token_ids), size, dtype=dtype, device=device, beside=out_gap)
    inputs = (token_ids, token_lanes, last_tokens, table)
    kept, expected = [memory.twin_of(each) for each in inputs], memory.twin_of(out)
    reference.embed_tokens(*inputs, expected)
    embed_tokens(*inputs, out)
    memory.assert_same_memory(out, expected)
    assert torch.equal(out, expected)  # copied: not a bit differs
    for tensor, before in zip(inputs, kept, strict=True):
        memory.assert_untouched(tensor, before)


def test_the_lane_of_a_known_token_is_not_read(device: torch.device) -> None:
    table, out = torch.eye(3, device=device), torch.full((2, 3), torch.nan, device=device)
    embed_tokens(ints([2, -1], device), ints([2**31 - 1, 0], device), ints([1], device), table, out)
    assert out.tolist() == [[0, 0, 1], [0, 1, 0]]


def test_ids_at_an_odd_place_of_the_staged_inputs(device: torch.device) -> None:
    staged = ints([9, 2, -1, 9, 0, 1, 9, 2, 0], device)
    out = torch.full((2, 3), torch.nan, device=device)
    embed_tokens(staged[1:3], staged[4:6], staged[7:], torch.eye(3, device=device), out)
    assert out.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_no_tokens(device: torch.device) -> None:
    none = ints([], device)
    embed_tokens(none, none, ints([1], device), torch.eye(3, device=device), torch.empty(0, 3, device=device))


def test_offsets_beyond_32_bits(host: torch.device) -> None:
    table, out = memory.far_apart(3, 16, torch.float16), memory.far_apart(3, 16, torch.float16)
    table.copy_(memory.noise(0, 3, 16, dtype=torch.float16, device=host))
    embed_tokens(ints([1, -1, 2], host), ints([0, 0, 0], host), ints([2], host), table, out)
    assert torch.equal(out, table[[1, 2, 2]])


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("token_ids", torch.zeros(4, 1).int(), "token_ids has shape (4, 1), expected 1 dimensions"),
        ("token_ids", torch.zeros(4).long(), "token_ids is torch.int64, expected torch.int32"),
        ("token_ids", torch.zeros(4, device="meta").int(), "token_ids is on meta, expected cpu"),
        ("token_ids", torch.zeros(8).int()[::2], "token_ids has strides (2,), expected 1 for the last"),
        ("token_lanes", torch.zeros(3).int(), "token_lanes has shape (3,), expected (4,)"),
        ("token_lanes", torch.zeros(4).long(), "token_lanes is torch.int64, expected torch.int32"),
        ("token_lanes", torch.zeros(8).int()[::2], "token_lanes has strides (2,), expected 1 for the last"),
        ("last_tokens", torch.zeros(4, 1).int(), "last_tokens has shape (4, 1), expected 1 dimensions"),
        ("last_tokens", torch.zeros(3).long(), "last_tokens is torch.int64, expected torch.int32"),
        ("last_tokens", torch.zeros(4).int()[::2], "last_tokens has strides (2,), expected 1 for the last"),
        ("table", torch.zeros(9), "table has shape (9,), expected 2 dimensions"),
        ("table", torch.zeros(9, 8).int(), "table is torch.int32, expected torch.bfloat16 or"),
        ("table", torch.zeros(8, 9).T, "table has strides (1, 9), expected 1 for the last"),
        ("out", torch.zeros(4, 7), "out has shape (4, 7), expected (4, 8)"),
        ("out", torch.zeros(4, 8).half(), "out is torch.float16, expected torch.float32"),
        ("out", torch.zeros(8, 4).T, "out has strides (1, 4), expected 1 for the last"),
    ],
)
def test_wrong_arguments(name: str, tensor: Tensor, message: str) -> None:
    right = {
        "token_ids": torch.zeros(4).int(),
        "token_lanes": torch.zeros(4).int(),
        "last_tokens": torch.zeros(3).int(),
        "table": torch.zeros(9, 8),
        "out": torch.zeros(4, 8),
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        embed_tokens(**right | {name: tensor})


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("num_tokens", "size"), [(1, 1024), (256, 2560), (8192, 4096), (70_001, 5120), (420_001, 5120)]
)
def test_real_sizes(num_tokens: int, size: int, device: torch.device) -> None:
    """The last writes more than 2**31 values."""
    vocab, lanes = 151_936, 1024
    table = torch.empty(vocab, size, dtype=torch.bfloat16, device=device).normal_()
    token_ids = torch.randint(-1, vocab, (num_tokens,), dtype=torch.int32, device=device)
    token_ids[::3] = -1
    token_lanes = torch.randint(0, lanes, (num_tokens,), dtype=torch.int32, device=device)
    last_tokens = torch.randint(0, vocab, (lanes,), dtype=torch.int32, device=device)
    out = torch.full((num_tokens, size), torch.nan, dtype=torch.bfloat16, device=device)
    embed_tokens(token_ids, token_lanes, last_tokens, table, out)
    known = torch.where(token_ids < 0, last_tokens[token_lanes.long()], token_ids).long()
    for done, ids in zip(out.split(8192), known.split(8192), strict=True):
        assert torch.equal(done, table[ids])
