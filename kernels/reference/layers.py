"""Everything in a Qwen3 layer that is neither a matrix product nor attention.

Roundings follow transformers' Qwen3 (norms are rounded before their weight is applied), so that in bfloat16 the
two stay as close as two implementations can.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / rms(x) * weight` over the last dimension (Zhang & Sennrich 2019, arXiv:1910.07467).

    Args:
        x: [..., size], any float dtype.
        weight: [size], dtype of `x`.
        eps: added to the mean square.

    Returns:
        [..., size], dtype of `x`; the normalized value is rounded to it before `weight` is applied.
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add a layer's output to the residual stream and normalize the sum, in one pass over memory on a GPU.

    Args:
        x, residual: [tokens, size], same dtype.
        weight: [size], same dtype.
        eps: added to the mean square.

    Returns:
        `(rms_norm(x + residual), x + residual)`, both [tokens, size] in the dtype of `x`.
    """
    total = residual + x
    return rms_norm(total, weight, eps), total


def qk_norm_rope(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split a fused projection, normalize each head of q and k, and rotate them to their positions.

    Args:
        qkv: [tokens, (num_heads + 2 * num_kv_heads) * head_dim].
        q_weight, k_weight: [head_dim], of the head norms.
        cos_sin: [max positions, head_dim] float32, cosines in the first half and sines in the second.
        positions: [tokens] int64.
        num_heads, num_kv_heads: query heads; key and value heads.
        eps: of the norms.

    Returns:
        q [tokens, num_heads, head_dim], k and v [tokens, num_kv_heads, head_dim], dtype of `qkv`; v is a view.
    """
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, -1)
    q, k, v = heads.split_with_sizes([num_heads, num_kv_heads, num_kv_heads], dim=1)
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    return _rotate(rms_norm(q, q_weight, eps), cos, sin), _rotate(rms_norm(k, k_weight, eps), cos, sin), v


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` of a fused projection (SwiGLU, Shazeer 2020, arXiv:2002.05202).

    Args:
        gate_up: [tokens, 2 * size], gate in the first half.

    Returns:
        [tokens, size], dtype of `gate_up`; silu is rounded to it before the product, as in transformers.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def embed_tokens(token_ids: Tensor, token_lanes: Tensor, last_tokens: Tensor, table: Tensor) -> Tensor:
    """Embeddings of a plan's tokens, some of which the host does not know yet.

    Args:
        token_ids: [tokens] int64; -1 stands for the last token sampled in the token's lane.
        token_lanes: [tokens] int64, lane of the row each token belongs to.
        last_tokens: [lanes] int64, the token last sampled in each lane.
        table: [vocab, size].

    Returns:
        [tokens, size], dtype of `table`.
    """
    known = torch.where(token_ids < 0, last_tokens.index_select(0, token_lanes), token_ids)
    return F.embedding(known, table)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021, arXiv:2104.09864) of x [tokens, heads, dim]; cos, sin [tokens, 1, dim / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
