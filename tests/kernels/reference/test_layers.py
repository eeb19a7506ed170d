"""The small operations, against transformers' own modules, bit for bit where the arithmetic is the same."""

import pytest
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from kernels import reference
from kernels.arguments import KVCache, RopeStoreLayer

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def hf_norm(weight: torch.Tensor, eps: float = 1e-6) -> Qwen3RMSNorm:
    norm = Qwen3RMSNorm(len(weight), eps).to(weight.dtype)
    norm.weight.data.copy_(weight)
    return norm


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = noise(5, 64, dtype=dtype) * 30, noise(64, dtype=dtype)
    out = torch.full_like(x, torch.nan)
    reference.rms_norm(x, weight, 1e-6, out)
    torch.testing.assert_close(out, hf_norm(weight)(x), atol=0, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm(dtype: torch.dtype) -> None:
    x, residual, weight = noise(5, 64, dtype=dtype), noise(6, 64, dtype=dtype)[:5], noise(64, dtype=dtype)
    total, out = residual + x, torch.full_like(x, torch.nan)
    reference.add_rms_norm(x, residual, weight, 1e-6, out)
    torch.testing.assert_close(residual, total, atol=0, rtol=0)
    torch.testing.assert_close(out, hf_norm(weight)(total), atol=0, rtol=0)


@pytest.mark.parametrize("is_normed", [True, False])
@pytest.mark.parametrize("layout", ["heads apart", "heads side by side"])
def test_qk_norm_rope_store(layout: str, is_normed: bool) -> None:
    heads, kv_heads, dim, tokens = 6, 2, 16, 9
    qkv = noise(tokens, (heads + 2 * kv_heads) * dim)
    q_weight, k_weight = noise(dim), noise(dim + 1)[:dim]
    positions = torch.tensor([0, 5, 5, 31, 2, 30, 1, 7, 16])
    angles = torch.arange(32)[:, None] * (1.0 / 10_000 ** (torch.arange(0, dim, 2) / dim))
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    slots = torch.tensor([7, 3, -1, 0, 11, 10, 9, -1, 2])
    shape = (4, kv_heads, 3, dim) if layout == "heads apart" else (4, 3, kv_heads, dim)
    caches = [torch.zeros(shape), torch.zeros(shape)]
    keys, values = caches if layout == "heads apart" else [cache.transpose(1, 2) for cache in caches]
    q = torch.full((tokens, heads, dim), torch.nan)
    layer = RopeStoreLayer((q_weight, k_weight) if is_normed else None, 1e-6, cos_sin, KVCache(keys, values))
    reference.qk_norm_rope_store(qkv, layer, positions, slots, q)

    parts = qkv.view(tokens, -1, dim)
    hf_q, hf_k = parts[:, :heads], parts[:, heads : heads + kv_heads]
    if is_normed:
        hf_q, hf_k = hf_norm(q_weight)(hf_q), hf_norm(k_weight)(hf_k)
    cos, sin = (half[positions].repeat(1, 2) for half in cos_sin.chunk(2, -1))
    hf_q, hf_k = apply_rotary_pos_emb(hf_q[None].transpose(1, 2), hf_k[None].transpose(1, 2), cos[None], sin[None])
    torch.testing.assert_close(q, hf_q[0].transpose(0, 1), atol=1e-6, rtol=1e-6)
    expected_k, expected_v = torch.zeros(12, kv_heads, dim), torch.zeros(12, kv_heads, dim)
    stored = slots >= 0
    expected_k[slots[stored]] = hf_k[0].transpose(0, 1)[stored]
    expected_v[slots[stored]] = parts[stored, heads + kv_heads :]
    for view, expected, atol in zip((keys, values), (expected_k, expected_v), (1e-6, 0), strict=True):
        torch.testing.assert_close(view.transpose(1, 2).reshape(12, kv_heads, dim), expected, atol=atol, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul(dtype: torch.dtype) -> None:
    gate, up = noise(4, 48, dtype=dtype), noise(5, 48, dtype=dtype)[:4]
    expected = torch.nn.functional.silu(gate) * up
    out = torch.full_like(gate, torch.nan)
    reference.silu_and_mul(torch.cat((gate, up), -1), out)
    torch.testing.assert_close(out, expected, atol=0, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool) -> None:
    x, weight, added = noise(5, 12), noise(7, 12), noise(7) if bias else None
    out = torch.full((5, 7), torch.nan)
    reference.linear(x, weight, added, out)
    torch.testing.assert_close(out, torch.nn.functional.linear(x, weight, added))


@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_embed_tokens_reads_unknown_ids_from_the_lanes(integers: torch.dtype) -> None:
    table = noise(10, 4)
    token_ids, lanes, last_tokens = (
        torch.tensor(values, dtype=integers) for values in ([3, -1, 9, -1], [0, 2, 2, 1], [5, 6, 7])
    )
    out = torch.full((4, 4), torch.nan)
    reference.embed_tokens(token_ids, lanes, last_tokens, table, out)
    assert (out == table[[3, 7, 9, 6]]).all()
