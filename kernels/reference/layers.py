"""Everything in a decoder's layer but attention.

Roundings follow transformers' decoders (norms are rounded before their weight is applied), so that in bfloat16 the
two stay as close as two implementations can.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from kernels.arguments import RopeStoreLayer
from kernels.reference.attention import store_kv


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """`x @ weight.T + bias`.

    Args:
        x: [tokens, in].
        weight: [out, in], dtype of `x`.
        bias: [out], or None.
        out: [tokens, out], dtype of `x`.
    """
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def linear_picked(x: Tensor, weight: Tensor, channels: Tensor, out: Tensor) -> None:
    """Of each row of `x @ weight.T` one result, in float32; no other is computed.

    Args:
        x: [rows, in].
        weight: [out, in], dtype of `x`.
        channels: int32 [rows], which result.
        out: float32 [rows].
    """
    torch.sum(x.float() * weight.index_select(0, channels).float(), dim=1, out=out)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """`x / rms(x) * weight` over the last dimension (Zhang & Sennrich 2019, arXiv:1910.07467).

    Args:
        x: [tokens, size], any float dtype.
        weight: [size], dtype of `x`.
        eps: added to the mean square.
        out: [tokens, size], dtype of `x`; the normalized value is rounded to it before `weight` is applied.
    """
    torch.mul(_normalized(x, eps), weight, out=out)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """Add a layer's output to the residual stream and normalize the sum, in one pass over memory on a GPU.

    Args:
        x: [tokens, size].
        residual: [tokens, size], dtype of `x`; becomes `residual + x`.
        weight: [size], dtype of `x`.
        eps: added to the mean square.
        out: [tokens, size], dtype of `x`; becomes `rms_norm(residual + x)`.
    """
    residual += x
    rms_norm(residual, weight, eps, out)


def qk_norm_rope_store(
    qkv: Tensor, layer: RopeStoreLayer, positions: Tensor, slot_mapping: Tensor, out: Tensor
) -> None:
    """Take a fused projection apart: each head of q and k is normalized, if the layer has weights for that, and rotated
    to its position; k and v go into the KV cache.

    Args:
        qkv: [tokens, (heads + 2 * kv_heads) * head_dim].
        layer: parameters in the dtype of `qkv`; its cache may have any strides.
        positions: [tokens] integers.
        slot_mapping: [tokens] integers, `block * block_size + offset`; K and V of a token with slot -1 are cached
            already and not stored.
        out: [tokens, heads, head_dim], dtype of `qkv`; becomes q.
    """
    num_heads, num_kv_heads = out.shape[1], layer.cache.keys.shape[1]
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, -1)
    q, k, v = heads.split_with_sizes([num_heads, num_kv_heads, num_kv_heads], dim=1)
    cos, sin = layer.cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    if layer.norms is not None:
        q, k = (_normalized(x, layer.eps) * weight for x, weight in zip((q, k), layer.norms, strict=True))
    _rotate(q, cos, sin, out)
    rotated_k = torch.empty_like(k)
    _rotate(k, cos, sin, rotated_k)
    store_kv(rotated_k, v, layer.cache, slot_mapping)


def silu_and_mul(gate_up: Tensor, out: Tensor) -> None:
    """`silu(gate) * up` of a fused projection (SwiGLU, Shazeer 2020, arXiv:2002.05202).

    Args:
        gate_up: [tokens, 2 * size], gate in the first half.
        out: [tokens, size], dtype of `gate_up`; silu is rounded to it before the product, as in transformers.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    torch.mul(F.silu(gate), up, out=out)


def linear_silu_and_mul(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """`silu_and_mul` of a `linear` without a bias.

    Args:
        x: [tokens, in].
        weight: [2 * size, in], gate over up.
        out: [tokens, size], dtype of `x`.
    """
    both = x.new_empty(len(x), len(weight))
    linear(x, weight, None, both)
    silu_and_mul(both, out)


def embed_tokens(token_ids: Tensor, token_lanes: Tensor, last_tokens: Tensor, table: Tensor, out: Tensor) -> None:
    """Embeddings of a plan's tokens, some of which the host does not know yet.

    Args:
        token_ids: [tokens] integers; -1 stands for the last token sampled in the token's lane.
        token_lanes: [tokens] integers, lane of the row each token belongs to.
        last_tokens: [lanes] integers, the token last sampled in each lane.
        table: [vocab, size].
        out: [tokens, size], dtype of `table`.
    """
    known = torch.where(token_ids < 0, last_tokens.index_select(0, token_lanes), token_ids)
    torch.index_select(table, 0, known, out=out)


def _normalized(x: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Rotary embedding (Su et al. 2021, arXiv:2104.09864) of x [tokens, heads, dim]; cos, sin [tokens, 1, dim / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    half = first.shape[-1]
    out[..., :half] = first * cos - second * sin
    out[..., half:] = second * cos + first * sin
