"""The kernel of `rope_store.py`.

A head is loaded once, as two halves in the same threads: its norm, if it has one, is a sum over a few threads of one
warp, and rotating it needs no exchange at all. Two kinds of programs run side by side: one takes query heads, the other
takes key heads and the value heads beside them. Neither uses shared memory.
"""

import triton
import triton.language as tl

from kernels.gpu.launching import LaunchableKernel


# Token counts and the alignment of a step's staged inputs change all the time: compiling anew would stall serving.
@LaunchableKernel
@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["positions", "slot_mapping"])
def qk_norm_rope_store_kernel(
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
    qkv_stride,
    key_block_stride,
    key_head_stride,
    key_offset_stride,
    value_block_stride,
    value_head_stride,
    value_offset_stride,
    out_token_stride,
    out_head_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERY_GROUPS: tl.constexpr,
    QUERY_HEADS: tl.constexpr,
    QUERY_TOKENS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    KV_TOKENS: tl.constexpr,
    NORMED: tl.constexpr,
):
    """Arguments as of `qk_norm_rope_store`, and how `RopeStoreTiles` cuts them; one program for each tile.

    Without norms (NORMED false) the weights are not read.
    """
    query_tiles: tl.constexpr = (NUM_HEADS + QUERY_GROUPS * QUERY_HEADS - 1) // (QUERY_GROUPS * QUERY_HEADS)
    kv_tiles: tl.constexpr = (NUM_KV_HEADS + KV_HEADS - 1) // KV_HEADS
    query_programs = tl.cdiv(num_tokens, QUERY_TOKENS) * query_tiles
    program = tl.program_id(0)
    norm_rope = (cos_sin, positions, eps)
    if program < query_programs:
        _rope_queries(
            (program // query_tiles, program % query_tiles),
            (qkv, qkv_stride),
            norm_rope,
            num_tokens,
            (out, out_token_stride, out_head_stride),
            q_weight,
            NUM_HEADS,
            HEAD_DIM,
            QUERY_GROUPS,
            QUERY_HEADS,
            QUERY_TOKENS,
            NORMED,
        )
    else:
        _store_keys_values(
            ((program - query_programs) // kv_tiles, (program - query_programs) % kv_tiles),
            (qkv + NUM_HEADS * HEAD_DIM, qkv_stride),
            norm_rope,
            num_tokens,
            slot_mapping,
            (key_cache, key_block_stride, key_head_stride, key_offset_stride),
            (value_cache, value_block_stride, value_head_stride, value_offset_stride),
            k_weight,
            NUM_KV_HEADS,
            HEAD_DIM,
            BLOCK_SIZE,
            KV_HEADS,
            KV_TOKENS,
            NORMED,
        )


@triton.jit
def _rope_queries(
    tile,
    source,
    norm_rope,
    num_tokens,
    target,
    weight,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    NORMED: tl.constexpr,
):
    queries, qkv_stride = source
    out, out_token_stride, out_head_stride = target
    cos_sin, positions, eps = norm_rope
    tokens, heads, dims = _tile(tile, GROUPS, HEADS, TOKENS, HEAD_DIM)
    inside = (tokens < num_tokens) & (heads < NUM_HEADS)  # several groups are all inside, or `RopeStoreTiles` takes one
    places = tl.load(positions + tokens, mask=tokens < num_tokens, other=0)
    source = queries + tokens * qkv_stride + heads * HEAD_DIM + dims
    target = out + tokens * out_token_stride + heads * out_head_stride + dims
    # All groups are on their way before the first is looked at.
    firsts, seconds = tl.tuple(()), tl.tuple(())
    for group in tl.static_range(GROUPS):
        first, second = _load_halves(source + group * HEADS * HEAD_DIM, inside, HEAD_DIM)
        firsts += (first,)
        seconds += (second,)
    cos, sin, first_weight, second_weight = _load_rotation(cos_sin, places, weight, HEADS, TOKENS, HEAD_DIM, NORMED)
    for group in tl.static_range(GROUPS):
        first, second = _norm_rope(
            firsts[group], seconds[group], cos, sin, first_weight, second_weight, eps, HEAD_DIM, NORMED
        )
        _store_halves(target + group * HEADS * out_head_stride, first, second, inside, HEAD_DIM)


@triton.jit
def _store_keys_values(
    tile,
    source,
    norm_rope,
    num_tokens,
    slot_mapping,
    key_target,
    value_target,
    weight,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    NORMED: tl.constexpr,
):
    keys, qkv_stride = source
    cos_sin, positions, eps = norm_rope
    tokens, heads, dims = _tile(tile, 1, HEADS, TOKENS, HEAD_DIM)
    inside = (tokens < num_tokens) & (heads < NUM_HEADS)
    places = tl.load(positions + tokens, mask=tokens < num_tokens, other=0)
    slots = tl.load(slot_mapping + tokens, mask=tokens < num_tokens, other=-1)
    # Heads that are not stored are loaded too: a load that waited for its slot would cost all the others more.
    source = keys + tokens * qkv_stride + heads * HEAD_DIM + dims
    first, second = _load_halves(source, inside, HEAD_DIM)
    first_value, second_value = _load_halves(source + NUM_HEADS * HEAD_DIM, inside, HEAD_DIM)
    cos, sin, first_weight, second_weight = _load_rotation(cos_sin, places, weight, HEADS, TOKENS, HEAD_DIM, NORMED)
    first, second = _norm_rope(first, second, cos, sin, first_weight, second_weight, eps, HEAD_DIM, NORMED)
    stored = (slots >= 0) & (heads < NUM_HEADS)
    # int64: a pool of 100 GB has more than 2**31 values.
    blocks, offsets = (slots // BLOCK_SIZE).to(tl.int64), (slots % BLOCK_SIZE).to(tl.int64)
    target = _cache_places(key_target, blocks, heads, offsets) + dims
    _store_halves(target, first, second, stored, HEAD_DIM)
    target = _cache_places(value_target, blocks, heads, offsets) + dims
    _store_halves(target, first_value, second_value, stored, HEAD_DIM)


@triton.jit
def _cache_places(target, blocks, heads, offsets):
    cache, block_stride, head_stride, offset_stride = target
    return cache + blocks * block_stride + heads * head_stride + offsets * offset_stride


@triton.jit
def _tile(tile, GROUPS: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Indices of a tile [TOKENS, HEADS, HEAD_DIM / 2]: tokens and first group of heads, both int64, and dimensions."""
    token_tile, head_tile = tile
    tokens = token_tile.to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    heads = head_tile.to(tl.int64) * (GROUPS * HEADS) + tl.arange(0, HEADS)[None, :, None]
    return tokens, heads, tl.arange(0, HEAD_DIM // 2)[None, None, :]


@triton.jit
def _load_halves(source, inside, HEAD_DIM: tl.constexpr):
    return tl.load(source, mask=inside, other=0.0), tl.load(source + HEAD_DIM // 2, mask=inside, other=0.0)


@triton.jit
def _store_halves(target, first, second, inside, HEAD_DIM: tl.constexpr):
    tl.store(target, first, mask=inside)
    tl.store(target + HEAD_DIM // 2, second, mask=inside)


@triton.jit
def _load_rotation(
    cos_sin,
    places,
    weight,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NORMED: tl.constexpr,
):
    """Cosines, sines and both halves of the weight, which are anything where heads are not normalized.

    They are loaded for every head of the tile, and so arrive in the layout of the heads: loaded once, they would have
    to be brought there through shared memory.
    """
    dims = tl.arange(0, HEAD_DIM // 2)[None, None, :]
    row = tl.broadcast_to(cos_sin + places.to(tl.int64) * HEAD_DIM + dims, [TOKENS, HEADS, HEAD_DIM // 2])
    cos, sin = tl.load(row), tl.load(row + HEAD_DIM // 2)
    first_weight, second_weight = cos, sin
    if NORMED:
        scale = tl.broadcast_to(weight + dims, [TOKENS, HEADS, HEAD_DIM // 2])
        first_weight, second_weight = tl.load(scale), tl.load(scale + HEAD_DIM // 2)
    return cos, sin, first_weight, second_weight


@triton.jit
def _norm_rope(first, second, cos, sin, first_weight, second_weight, eps, HEAD_DIM: tl.constexpr, NORMED: tl.constexpr):
    """Heads in two halves, normalized and rotated; every step is rounded as the twin rounds it."""
    if NORMED:
        squares = _sum_of_squares(first) + _sum_of_squares(second)
        inverse = tl.rsqrt(squares / HEAD_DIM + eps)
        x = _scale(first, inverse, first_weight)
        y = _scale(second, inverse, second_weight)
    else:
        x, y = first.to(tl.float32), second.to(tl.float32)
    return (x * cos - y * sin).to(first.dtype), (y * cos + x * sin).to(first.dtype)


@triton.jit
def _sum_of_squares(half):
    wide = half.to(tl.float32)
    return tl.sum(wide * wide, axis=2, keep_dims=True)


@triton.jit
def _scale(half, inverse, weight):
    """A normalized half, times its weight, in float32 but with the roundings of its dtype."""
    normed = (half.to(tl.float32) * inverse).to(half.dtype)
    return (normed.to(tl.float32) * weight.to(tl.float32)).to(half.dtype).to(tl.float32)
