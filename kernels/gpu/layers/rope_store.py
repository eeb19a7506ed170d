"""Head norms of q and k, rotary embedding and the store into the KV cache, in one pass over the fused projection.

Rotary embedding: Su et al. 2021, arXiv:2104.09864. Head norms: Qwen3, arXiv:2505.09388. The paged cache:
PagedAttention, Kwon et al. 2023, arXiv:2309.06180.

This is the launcher; how it is done stands in `rope_store_kernel.py`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.gpu.checks import (
    check_contiguous,
    check_dtype,
    check_last_stride,
    check_power_of_two,
    check_rank,
    check_tensor,
)
from kernels.gpu.integers import ceil_div, next_power_of_two
from kernels.gpu.layers.rope_store_kernel import qk_norm_rope_store_kernel

_TILE_VALUES = 1024
_MAX_GROUPS = 2


@dataclass(frozen=True)
class Config:
    """What a program takes; all powers of two.

    Attributes:
        query_groups: groups of heads that a query program takes, one after another, with the same cosines and weights.
        query_heads, query_tokens: heads of a group, and tokens of a query program.
        kv_heads, kv_tokens: key and value heads, and tokens, of a key-value program.
        max_registers: of a thread. Left to itself, ptxas saves registers by loading late, and one wait for memory
            becomes four. With so many (it takes about 80) all loads are on their way before the first is waited for.
    """

    query_groups: int
    query_heads: int
    query_tokens: int
    kv_heads: int
    kv_tokens: int
    num_warps: int
    max_registers: int


def choose_config(num_heads: int, num_kv_heads: int, head_dim: int) -> Config:
    """One configuration for each model. Where a token has few heads, a program takes several tokens.

    Args:
        num_heads, num_kv_heads, head_dim: of the layer, or of a rank's part of it.
    """
    heads_per_tile = _TILE_VALUES // head_dim
    query_heads = min(heads_per_tile, next_power_of_two(num_heads))
    kv_heads = min(heads_per_tile, next_power_of_two(num_kv_heads))
    query_groups = _MAX_GROUPS if num_heads % (_MAX_GROUPS * query_heads) == 0 else 1
    return Config(
        query_groups=query_groups,
        query_heads=query_heads,
        query_tokens=heads_per_tile // query_heads,
        kv_heads=kv_heads,
        kv_tokens=heads_per_tile // kv_heads,
        num_warps=2,
        max_registers=96,
    )


def qk_norm_rope_store(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    eps: float,
    out: Tensor,
) -> None:
    """Normalize each head of q and k, rotate them to their positions, and store k and v.

    Positions and slots are trusted: one beyond its tensor reads or writes foreign memory, and two tokens must not
    have the same slot.

    Args:
        qkv: [tokens, (heads + 2 * kv_heads) * head_dim], bfloat16, float16 or float32; the rows may lie apart, each
            must be dense. head_dim is a power of two from 16 to 256.
        q_weight, k_weight: [head_dim], dtype of `qkv`, of the head norms.
        cos_sin: [max positions, head_dim] float32, dense, cosines in the first half and sines in the second.
        positions: [tokens] int32.
        slot_mapping: [tokens] int32, `block * block_size + offset`; K and V of a token with slot -1 are not stored.
        key_cache, value_cache: [num_blocks, kv_heads, block_size, head_dim], dtype of `qkv`; each with strides of its
            own, the last 1.
        eps: of the norms.
        out: [tokens, heads, head_dim], dtype of `qkv`, last stride 1; becomes q, also where the slot is -1.

    Raises:
        ValueError: a shape, dtype, device or stride does not fit.
    """
    _check(qkv, q_weight, k_weight, cos_sin, positions, slot_mapping, key_cache, value_cache, out)
    num_tokens, num_heads, head_dim = out.shape
    num_kv_heads, block_size = key_cache.shape[1:3]
    if num_tokens == 0:
        return
    config = choose_config(num_heads, num_kv_heads, head_dim)
    query_tiles = ceil_div(num_heads, config.query_groups * config.query_heads)
    query_programs = ceil_div(num_tokens, config.query_tokens) * query_tiles
    kv_programs = ceil_div(num_tokens, config.kv_tokens) * ceil_div(num_kv_heads, config.kv_heads)
    qk_norm_rope_store_kernel[(query_programs + kv_programs,)](
        qkv,
        q_weight,
        k_weight,
        cos_sin,
        positions,
        slot_mapping,
        key_cache,
        value_cache,
        out,
        num_tokens,
        qkv.stride(0),
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        *out.stride()[:2],
        eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        QUERY_GROUPS=config.query_groups,
        QUERY_HEADS=config.query_heads,
        QUERY_TOKENS=config.query_tokens,
        KV_HEADS=config.kv_heads,
        KV_TOKENS=config.kv_tokens,
        num_warps=config.num_warps,
        maxnreg=config.max_registers,
    )


def _check(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    out: Tensor,
) -> None:
    check_rank("out", out, 3)
    check_dtype("out", out)
    check_rank("key_cache", key_cache, 4)
    check_rank("cos_sin", cos_sin, 2)
    num_tokens, num_heads, head_dim = out.shape
    dtype, device, cache_shape = out.dtype, out.device, tuple(key_cache.shape)
    num_blocks, num_kv_heads, block_size, _ = cache_shape
    check_power_of_two("head_dim", head_dim, 16, 256)
    check_tensor("qkv", qkv, (num_tokens, (num_heads + 2 * num_kv_heads) * head_dim), dtype, device)
    check_tensor("q_weight", q_weight, (head_dim,), dtype, device)
    check_tensor("k_weight", k_weight, (head_dim,), dtype, device)
    check_tensor("cos_sin", cos_sin, (len(cos_sin), head_dim), torch.float32, device)
    check_tensor("positions", positions, (num_tokens,), torch.int32, device)
    check_tensor("slot_mapping", slot_mapping, (num_tokens,), torch.int32, device)
    check_tensor("key_cache", key_cache, (num_blocks, num_kv_heads, block_size, head_dim), dtype, device)
    check_tensor("value_cache", value_cache, cache_shape, dtype, device)
    for name, tensor in (("qkv", qkv), ("key_cache", key_cache), ("value_cache", value_cache), ("out", out)):
        check_last_stride(name, tensor)
    check_contiguous("cos_sin", cos_sin)
    for name, tensor in (("q_weight", q_weight), ("k_weight", k_weight)):
        check_last_stride(name, tensor)
    for name, tensor in (("positions", positions), ("slot_mapping", slot_mapping)):
        check_last_stride(name, tensor)
