"""Norms, activation, rotary embedding and token embedding, against their twins."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.arguments import KVCache, RopeStoreLayer
from kernels.cpu import CpuKernels
from tests.kernels.cpu.helpers import ROUNDED_ONCE, distance, few_roundings_differ, noise, poisoned, with_strides
from tests.support.effort import examples

EPS = 1e-6
SHAPES = st.tuples(st.integers(1, 70), st.one_of(st.integers(1, 90), st.sampled_from([1024, 1027])))


@settings(max_examples=examples(25))
@given(shape=SHAPES)
def test_rms_norm(kernels: CpuKernels, shape: tuple[int, int]) -> None:
    x, weight = noise(*shape, scale=30), noise(shape[1], seed=1)
    expected, out = poisoned(*shape), with_strides(poisoned(*shape), 3)
    reference.rms_norm(x, weight, EPS, expected)
    kernels.rms_norm(with_strides(x, 7), weight, EPS, out)
    assert few_roundings_differ(out, expected)
    wide = x.double()
    exact = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.double()
    assert distance(out, exact) < 3 * ROUNDED_ONCE


@settings(max_examples=examples(25))
@given(shape=SHAPES)
def test_add_rms_norm(kernels: CpuKernels, shape: tuple[int, int]) -> None:
    x, residual, weight = noise(*shape), noise(*shape, seed=1), noise(shape[1], seed=2)
    ours, theirs = with_strides(residual, 1), residual.clone()
    expected, out = poisoned(*shape), poisoned(*shape)
    reference.add_rms_norm(x, theirs, weight, EPS, expected)
    kernels.add_rms_norm(with_strides(x, 2), ours, weight, EPS, out)
    assert torch.equal(ours, theirs)
    assert few_roundings_differ(out, expected)


@settings(max_examples=examples(25))
@given(shape=SHAPES)
def test_silu_and_mul(kernels: CpuKernels, shape: tuple[int, int]) -> None:
    rows, size = shape
    gate_up = noise(rows, 2 * size, scale=20)
    expected, out = poisoned(rows, size), with_strides(poisoned(rows, size), 5)
    reference.silu_and_mul(gate_up, expected)
    kernels.silu_and_mul(with_strides(gate_up, 1), out)
    assert few_roundings_differ(out, expected)


def test_silu_of_extremes(kernels: CpuKernels) -> None:
    gate = torch.tensor([[-1e30, -200.0, -89.0, -0.0, 0.0, 89.0, 1e30, torch.inf, torch.nan]]).bfloat16()
    out, up = poisoned(1, 9), torch.ones(1, 9).bfloat16()
    kernels.silu_and_mul(torch.cat((gate, up), 1), out)
    assert out[0, :8].tolist() == pytest.approx([0, 0, 0, 0, 0, *gate[0, 5:8].tolist()], abs=1e-6)
    assert out[0, 8].isnan()


@settings(max_examples=examples(25))
@given(
    tokens=st.integers(1, 40),
    group=st.integers(1, 5),
    kv_heads=st.integers(1, 3),
    block_size=st.sampled_from([1, 16, 32, 256]),
    head_dim=st.sampled_from([64, 128]),
    is_normed=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_qk_norm_rope_store(
    kernels: CpuKernels,
    tokens: int,
    group: int,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    is_normed: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    heads, num_blocks, num_positions = group * kv_heads, tokens // block_size + 2, 50
    qkv = noise(tokens, (heads + 2 * kv_heads) * head_dim, seed=seed)
    norms = (noise(head_dim, seed=1), noise(head_dim, seed=2)) if is_normed else None
    cos_sin = torch.randn(num_positions, head_dim, generator=generator)
    positions = torch.randint(0, num_positions, (tokens,), generator=generator, dtype=torch.int32)
    slots = torch.randperm(num_blocks * block_size, generator=generator)[:tokens].int()
    slots[torch.rand(tokens, generator=generator) < 0.2] = -1
    caches = [torch.full((num_blocks, kv_heads, block_size, head_dim), 7.0).bfloat16() for _ in range(4)]
    expected, out = poisoned(tokens, heads, head_dim), poisoned(tokens, heads, head_dim)

    of_twin, of_kernel = (RopeStoreLayer(norms, EPS, cos_sin, KVCache(*pair)) for pair in (caches[:2], caches[2:]))
    reference.qk_norm_rope_store(qkv, of_twin, positions, slots, expected)
    kernels.qk_norm_rope_store(with_strides(qkv, 3), of_kernel, positions, slots, out)

    assert few_roundings_differ(out, expected)
    assert few_roundings_differ(caches[2], caches[0])
    assert torch.equal(caches[3], caches[1])
    assert torch.equal(caches[2] == 7.0, caches[0] == 7.0)  # nothing else was written


def test_a_token_does_not_depend_on_its_batch(kernels: CpuKernels) -> None:
    x, weight = noise(300, 1024), noise(1024, seed=1)
    together, alone = poisoned(300, 1024), poisoned(1, 1024)
    kernels.rms_norm(x, weight, EPS, together)
    kernels.rms_norm(x[299:], weight, EPS, alone)
    assert torch.equal(alone[0], together[299])


def test_embed_tokens(kernels: CpuKernels) -> None:
    table, out = noise(100, 33), poisoned(500, 33)
    token_ids = torch.arange(500, dtype=torch.int32) % 100
    token_ids[::3] = -1
    lanes = torch.arange(500, dtype=torch.int32) % 7
    last_tokens = torch.tensor([90, 91, 92, 93, 94, 95, 99], dtype=torch.int32)
    kernels.embed_tokens(token_ids, lanes, last_tokens, table, out)
    expected = torch.empty_like(out)
    reference.embed_tokens(token_ids, lanes, last_tokens, table, expected)
    assert torch.equal(out, expected)


def test_what_does_not_fit_is_refused(kernels: CpuKernels) -> None:
    with pytest.raises(ValueError, match=r"weight is .*\(63,\).*expected torch\.bfloat16 \(64,\)"):
        kernels.rms_norm(noise(2, 64), noise(63), EPS, noise(2, 64))
    numbers = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"token_ids is torch\.int64"):
        kernels.embed_tokens(numbers, numbers, numbers, noise(4, 8), noise(2, 8))
    cache = noise(2, 1, 4, 32)
    slots = torch.zeros(1, dtype=torch.int32)
    layer = RopeStoreLayer((noise(32), noise(32)), EPS, torch.ones(4, 32), KVCache(cache, cache))
    with pytest.raises(ValueError, match="head_dim is 32"):
        kernels.qk_norm_rope_store(noise(1, 96), layer, slots, slots, noise(1, 1, 32))
