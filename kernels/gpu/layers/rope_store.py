"""Head norms of q and k, rotary embedding and the store into the KV cache, in one pass over the fused projection.

Rotary embedding: Su et al. 2021, arXiv:2104.09864. Head norms: Qwen3, arXiv:2505.09388. The paged cache:
PagedAttention, Kwon et al. 2023, arXiv:2309.06180.

This is the launcher; how it is done stands in `rope_store_kernel.py`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.arguments import RopeStoreLayer
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
_CONSTANTS = ("query_groups", "query_heads", "query_tokens", "kv_heads", "kv_tokens")


@dataclass(frozen=True)
class RopeStoreTiles:
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

    def constants(self) -> dict[str, int]:
        """What the kernel is compiled for."""
        tiles = {name.upper(): getattr(self, name) for name in _CONSTANTS}
        return {**tiles, "num_warps": self.num_warps, "maxnreg": self.max_registers}


def choose_rope_store_tiles(num_heads: int, num_kv_heads: int, head_dim: int) -> RopeStoreTiles:
    """One configuration for each model. Where a token has few heads, a program takes several tokens.

    Args:
        num_heads, num_kv_heads, head_dim: of the layer, or of a rank's part of it.
    """
    heads_per_tile = _TILE_VALUES // head_dim
    query_heads = min(heads_per_tile, next_power_of_two(num_heads))
    kv_heads = min(heads_per_tile, next_power_of_two(num_kv_heads))
    query_groups = _MAX_GROUPS if num_heads % (_MAX_GROUPS * query_heads) == 0 else 1
    return RopeStoreTiles(
        query_groups=query_groups,
        query_heads=query_heads,
        query_tokens=heads_per_tile // query_heads,
        kv_heads=kv_heads,
        kv_tokens=heads_per_tile // kv_heads,
        num_warps=2,
        max_registers=96,
    )


def qk_norm_rope_store(
    qkv: Tensor, layer: RopeStoreLayer, positions: Tensor, slot_mapping: Tensor, out: Tensor
) -> None:
    """Normalize each head of q and k, rotate them to their positions, and store k and v.

    Positions and slots are trusted: one beyond its tensor reads or writes foreign memory, and two tokens must not
    have the same slot.

    Args:
        qkv: [tokens, (heads + 2 * kv_heads) * head_dim], bfloat16, float16 or float32; the rows may lie apart, each
            must be dense. head_dim is a power of two from 16 to 256.
        layer: parameters in the dtype of `qkv`, `cos_sin` dense; keys and values each with strides of their own, the
            last 1.
        positions: [tokens] int32.
        slot_mapping: [tokens] int32, `block * block_size + offset`; K and V of a token with slot -1 are not stored.
        out: [tokens, heads, head_dim], dtype of `qkv`, last stride 1; becomes q, also where the slot is -1.

    Raises:
        ValueError: a shape, dtype, device or stride does not fit.
    """
    _check(qkv, layer, positions, slot_mapping, out)
    num_tokens, num_heads, head_dim = out.shape
    keys, values = layer.cache.keys, layer.cache.values
    num_kv_heads, block_size = keys.shape[1:3]
    if num_tokens == 0:
        return
    tiles = choose_rope_store_tiles(num_heads, num_kv_heads, head_dim)
    query_tiles = ceil_div(num_heads, tiles.query_groups * tiles.query_heads)
    query_programs = ceil_div(num_tokens, tiles.query_tokens) * query_tiles
    kv_programs = ceil_div(num_tokens, tiles.kv_tokens) * ceil_div(num_kv_heads, tiles.kv_heads)
    qk_norm_rope_store_kernel.launch(
        (query_programs + kv_programs,),
        qkv,
        *((qkv, qkv) if layer.norms is None else layer.norms),
        layer.cos_sin,
        positions,
        slot_mapping,
        keys,
        values,
        out,
        num_tokens,
        qkv.stride(0),
        *keys.stride()[:3],
        *values.stride()[:3],
        *out.stride()[:2],
        layer.eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        NORMED=layer.norms is not None,
        **tiles.constants(),
    )


def _check(qkv: Tensor, layer: RopeStoreLayer, positions: Tensor, slot_mapping: Tensor, out: Tensor) -> None:
    keys, values = layer.cache.keys, layer.cache.values
    check_rank("out", out, 3)
    check_dtype("out", out)
    check_rank("key_cache", keys, 4)
    check_rank("cos_sin", layer.cos_sin, 2)
    num_tokens, num_heads, head_dim = out.shape
    dtype, device = out.dtype, out.device
    num_blocks, num_kv_heads, block_size, _ = keys.shape
    check_power_of_two("head_dim", head_dim, 16, 256)
    cache = (num_blocks, num_kv_heads, block_size, head_dim)
    for name, tensor, shape in (
        ("qkv", qkv, (num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)),
        *(
            (name, weight, (head_dim,))
            for name, weight in zip(("q_weight", "k_weight"), layer.norms or (), strict=False)
        ),
        ("key_cache", keys, cache),
        ("value_cache", values, cache),
        ("out", out, out.shape),
    ):
        check_tensor(name, tensor, shape, dtype, device)
        check_last_stride(name, tensor)
    for name, tensor in (("positions", positions), ("slot_mapping", slot_mapping)):
        check_tensor(name, tensor, (num_tokens,), torch.int32, device)
        check_last_stride(name, tensor)
    check_tensor("cos_sin", layer.cos_sin, (len(layer.cos_sin), head_dim), torch.float32, device)
    check_contiguous("cos_sin", layer.cos_sin)
