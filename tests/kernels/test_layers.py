"""The small operations, against transformers' own modules, bit for bit where the arithmetic is the same."""

import pytest
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from kernels import reference

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
    torch.testing.assert_close(reference.rms_norm(x, weight, 1e-6), hf_norm(weight)(x), atol=0, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm(dtype: torch.dtype) -> None:
    x, residual, weight = noise(5, 64, dtype=dtype), noise(6, 64, dtype=dtype)[:5], noise(64, dtype=dtype)
    kept = residual.clone()
    normed, total = reference.add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(total, residual + x, atol=0, rtol=0)
    torch.testing.assert_close(normed, hf_norm(weight)(residual + x), atol=0, rtol=0)
    assert (residual == kept).all()


def test_qk_norm_rope() -> None:
    heads, kv_heads, dim, tokens = 6, 2, 16, 9
    qkv = noise(tokens, (heads + 2 * kv_heads) * dim)
    q_weight, k_weight = noise(dim), noise(dim + 1)[:dim]
    positions = torch.tensor([0, 5, 5, 31, 2, 30, 1, 7, 16])
    angles = torch.arange(32)[:, None] * (1.0 / 10_000 ** (torch.arange(0, dim, 2) / dim))
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    q, k, v = reference.qk_norm_rope(qkv, q_weight, k_weight, cos_sin, positions, heads, kv_heads, 1e-6)

    parts = qkv.view(tokens, -1, dim)
    hf_q, hf_k = hf_norm(q_weight)(parts[:, :heads]), hf_norm(k_weight)(parts[:, heads : heads + kv_heads])
    cos, sin = (half[positions].repeat(1, 2) for half in cos_sin.chunk(2, -1))
    hf_q, hf_k = apply_rotary_pos_emb(hf_q[None].transpose(1, 2), hf_k[None].transpose(1, 2), cos[None], sin[None])
    torch.testing.assert_close(q, hf_q[0].transpose(0, 1), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(k, hf_k[0].transpose(0, 1), atol=1e-6, rtol=1e-6)
    assert (v == parts[:, heads + kv_heads :]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul(dtype: torch.dtype) -> None:
    gate, up = noise(4, 48, dtype=dtype), noise(5, 48, dtype=dtype)[:4]
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(reference.silu_and_mul(torch.cat((gate, up), -1)), expected, atol=0, rtol=0)


def test_embed_tokens_reads_unknown_ids_from_the_lanes() -> None:
    table = noise(10, 4)
    token_ids, lanes = torch.tensor([3, -1, 9, -1]), torch.tensor([0, 2, 2, 1])
    last_tokens = torch.tensor([5, 6, 7])
    embedded = reference.embed_tokens(token_ids, lanes, last_tokens, table)
    assert (embedded == table[[3, 7, 9, 6]]).all()
