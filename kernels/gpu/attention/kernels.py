"""The Triton kernel of paged attention: a tile of queries over a piece of its context, and the merge of all pieces.

Online softmax as in FlashAttention-2 (Dao 2023, arXiv:2307.08691), over K and V that are gathered through a block table
(PagedAttention, Kwon et al. 2023, arXiv:2309.06180). The query heads of a KV head are lines of one tile, so its K and V
are read once for all of them. Work items are laid out in `work.py`.
"""

import triton
import triton.language as tl

from kernels.gpu.attention.work import ITEM_FIELDS
from kernels.gpu.launching import LaunchableKernel
from kernels.gpu.loops import loop_bound

_ITEM_FIELDS = tl.constexpr(ITEM_FIELDS)
_PIECES = tl.constexpr(32)  # of which a merge looks for the maximum at once


# What changes from step to step must not compile anew: counts, and where in a staging buffer the integers lie.
@LaunchableKernel
@triton.jit(
    do_not_specialize=["first_item", "num_items", "heads_at_once", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "work"],
)
def attention_kernel(
    query,
    key_cache,
    value_cache,
    block_tables,
    work,
    out,
    partial_out,
    partial_lse,
    arrived,
    scale,  # of the scores, times log2(e): powers of two are what the GPU has
    first_item,
    num_items,
    heads_at_once,
    query_stride,
    out_stride,
    table_stride,
    block_stride,
    head_stride,
    position_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One item for one KV head: a tile of BLOCK_M lines, each a query and one of the GROUP heads, BLOCK_N positions at
    a time. With a partial result goes the base-2 logarithm of the sum of its weights, -inf where it saw nothing.

    Each program of a tile in pieces adds one to the tile's counter in `arrived` when it has stored its partial result.
    The one that finds all others there merges them, in their order, and leaves a zero for the next launch.
    """
    num_heads: tl.constexpr = NUM_KV_HEADS * GROUP
    head, item = _assigned(num_items, heads_at_once)
    item = work + (first_item + item) * _ITEM_FIELDS
    row = tl.load(item)
    if row < 0:
        return
    token = tl.load(item + 1).to(tl.int64)
    num_queries = tl.load(item + 2)
    first_position = tl.load(item + 3)
    start = tl.load(item + 4)
    end = tl.load(item + 5)

    dims = tl.arange(0, HEAD_DIM)
    queries, heads, valid = _lines(0, head, num_queries, GROUP, BLOCK_M)
    q_lines = token * query_stride + queries * query_stride + heads * HEAD_DIM
    q = tl.load(query + q_lines[:, None] + dims[None, :], mask=valid[:, None], other=0.0)

    table = block_tables + row.to(tl.int64) * table_stride
    head_offset = head.to(tl.int64) * head_stride
    cache = (key_cache, value_cache, table, block_stride, head_offset, position_stride)
    positions = first_position + queries
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    softmax = (acc, row_max, row_sum)
    diagonal = start
    if BLOCK_M > 16:
        # All queries see all of these. Memory is what a narrow tile waits for, and a second loop would be one more
        # start of the pipeline.
        diagonal += tl.maximum(tl.minimum(first_position + 1, end) - start, 0) // BLOCK_N * BLOCK_N
        seen = (start, diagonal, end)
        softmax = _attend(softmax, q, cache, positions, seen, scale, HEAD_DIM, BLOCK_SIZE, BLOCK_N, MASKED=False)
    seen = (diagonal, end, end)
    softmax = _attend(softmax, q, cache, positions, seen, scale, HEAD_DIM, BLOCK_SIZE, BLOCK_N, MASKED=True)
    acc, row_max, row_sum = softmax
    first_partial = tl.load(item + 6).to(tl.int64)
    # Worked out once more, from a zero that the compiler cannot know for one: kept over the loops, it would cost a
    # thread some 20 registers, and wide tiles have none to spare.
    queries, heads, valid = _lines(tl.load(item + 9), head, num_queries, GROUP, BLOCK_M)
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)  # a query that sees nothing of this piece
    acc = acc / row_sum[:, None]
    if first_partial < 0:
        target = token * out_stride + queries * out_stride + heads * HEAD_DIM
        tl.store(out + target[:, None] + dims[None, :], acc.to(out.dtype.element_ty), mask=valid[:, None])
        return
    target = (first_partial + tl.load(item + 7) * num_queries + queries) * num_heads + heads
    tl.store(partial_out + target[:, None] * HEAD_DIM + dims[None, :], acc, mask=valid[:, None])
    tl.store(partial_lse + target, row_max + tl.log2(row_sum), mask=valid)

    # Why the last program sees all partial results, by PTX's memory model (causality order): a barrier (bar.sync)
    # orders the stores of all threads before what any thread does after the barrier. One thread adds, which releases
    # all these stores to the GPU (atom.acq_rel.gpu). The additions to a counter are a chain of reads and writes, in
    # which each acquires what those before it have released. The second barrier orders the reads of all threads after
    # that. In machine code these are a fence (MEMBAR.ALL.GPU) before the addition and an emptied L1 cache (CCTL.IVALL)
    # after it; the reads pass the L1 cache by all the same (.cg). No other program uses the counter once the last one
    # has added, and the end of the kernel brings its zero to the next launch.
    num_pieces = tl.load(item + 8)
    counter = arrived + first_partial * NUM_KV_HEADS + head
    tl.debug_barrier()
    num_before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    if num_before == num_pieces - 1:
        tile = (first_partial, num_pieces, num_queries, token * out_stride, head)
        _merge(partial_out, partial_lse, out, tile, out_stride, NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_M)
        tl.store(counter, 0)


@triton.jit
def _merge(
    partial_out,
    partial_lse,
    out,
    tile,
    out_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write a tile's results, from those of its pieces in their order: the lines of one query at a time, or 32 of a
    wide tile. The maximum of all pieces is known first, so the loads of several pieces need not wait for each other.
    """
    first_partial, num_pieces, num_queries, target, head = tile
    num_heads: tl.constexpr = NUM_KV_HEADS * GROUP
    lines_of_query: tl.constexpr = 2 if GROUP <= 2 else 4 if GROUP <= 4 else 8 if GROUP <= 8 else 16
    LINES: tl.constexpr = lines_of_query if BLOCK_M == 16 else 32
    UNROLLED: tl.constexpr = 8 if LINES <= 4 else 32 // LINES
    partial_lse += first_partial * num_heads
    partial_out += first_partial * num_heads * HEAD_DIM
    dims = tl.arange(0, HEAD_DIM)
    num_lines = num_queries * GROUP
    piece_stride = num_queries * num_heads
    for first_line in tl.range(0, loop_bound(num_lines), LINES):
        lines = first_line + tl.arange(0, LINES)
        valid = lines < num_lines
        queries = lines // GROUP
        heads = head * GROUP + lines % GROUP
        source = tl.where(valid, queries * num_heads + heads, head * GROUP)  # something that is there
        largest = tl.full([LINES], float("-inf"), tl.float32)
        for first in tl.range(0, loop_bound(num_pieces), _PIECES):
            pieces = tl.minimum(first + tl.arange(0, _PIECES), num_pieces - 1)
            lse = tl.load(partial_lse + (pieces[:, None] * piece_stride + source[None, :]), cache_modifier=".cg")
            largest = tl.maximum(largest, tl.max(lse, 0))
        # A line's sum of weights stands beside each of its values, and so does its maximum: as vectors of lines they
        # would pass through shared memory, and each piece would wait at a barrier.
        acc = tl.zeros([LINES, HEAD_DIM], tl.float32)
        total = tl.zeros([LINES, HEAD_DIM], tl.float32)
        shift = tl.broadcast_to(largest[:, None], [LINES, HEAD_DIM])
        for piece in tl.range(0, loop_bound(num_pieces), loop_unroll_factor=UNROLLED):
            place = piece * piece_stride + source
            lse = tl.load(partial_lse + place, cache_modifier=".cg")
            part = tl.load(partial_out + (place[:, None] * HEAD_DIM + dims[None, :]), cache_modifier=".cg")
            weight = tl.exp2(lse[:, None] - shift)
            acc += part * weight
            total += weight
        place = target + queries * out_stride + heads * HEAD_DIM
        result = (acc / total).to(out.dtype.element_ty)
        tl.store(out + place[:, None] + dims[None, :], result, mask=valid[:, None])


@triton.jit
def _assigned(num_items, heads_at_once):
    """Which KV head and which item is this program's: all items of some heads, then all items of the next heads.

    Within such a section the heads of an item run side by side, so that the longest items come first for all of them.
    A section is what the L2 cache can hold of a long context.
    """
    program = tl.program_id(0)
    section = num_items * heads_at_once
    rest = program % section
    return program // section * heads_at_once + rest % heads_at_once, rest // heads_at_once


@triton.jit
def _lines(first, head, num_queries, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Query and query head of each line of a tile, and whether it is one."""
    lines = first + tl.arange(0, BLOCK_M)
    queries = lines // GROUP
    return queries, head * GROUP + lines % GROUP, queries < num_queries


@triton.jit
def _attend(
    softmax,
    q,
    cache,
    query_positions,
    seen,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Online softmax over positions from `start` to `stop`. The last tile may pass `end`, and only if MASKED.

    `softmax` is the weighted sum of V, the maximum and the sum of weights of each line so far; returns the new ones.
    """
    acc, row_max, row_sum = softmax
    key_cache, value_cache, table, block_stride, head_offset, position_stride = cache
    start, stop, end = seen
    blocks = _load_blocks(table, start, end, BLOCK_SIZE, BLOCK_N)
    for first in tl.range(loop_bound(start), loop_bound(stop), BLOCK_N):
        base, within = _cache_offsets(
            blocks, first, end, block_stride, position_stride, HEAD_DIM, BLOCK_SIZE, BLOCK_N, MASKED
        )
        base += head_offset
        # One iteration ahead: a load that waits for another load in the same iteration is not pipelined well.
        blocks = _load_blocks(table, first + BLOCK_N, end, BLOCK_SIZE, BLOCK_N)
        k = tl.load(key_cache + base + within)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if MASKED:
            visible = (first + tl.arange(0, BLOCK_N))[None, :] <= query_positions[:, None]
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
        shift = new_max
        if MASKED:
            shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # nothing seen so far, and -inf - -inf is NaN
        weights = tl.exp2(scores * scale - shift[:, None])
        keep = tl.exp2(row_max - shift)
        row_sum = row_sum * keep + tl.sum(weights, 1)
        acc = acc * keep[:, None]
        v = tl.load(value_cache + base + within)
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit
def _load_blocks(table, first, end, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The block of the BLOCK_N positions from `first` on, or that of each where they are in several."""
    positions = first
    if BLOCK_SIZE < BLOCK_N:
        positions += tl.arange(0, BLOCK_N)
    return tl.load(table + tl.minimum(positions, end - 1) // BLOCK_SIZE)


@triton.jit
def _cache_offsets(
    blocks,
    first,
    end,
    block_stride,
    position_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Where the vectors of positions from `first` on lie, in values: int64 base plus offsets [BLOCK_N, HEAD_DIM].

    The base is one for all where they are in one block: a scalar, and then the offsets fit int32. A block's own place
    may not: a cache of 100 GB has more than 2**31 values.

    Positions from `end` on are taken for the last one before it: what lies there need not have been written, and a NaN
    would get through a weight of zero.
    """
    places = first % BLOCK_SIZE + tl.arange(0, BLOCK_N)
    if MASKED:
        places = tl.minimum(places, end - 1 - (first - first % BLOCK_SIZE))
    base = blocks.to(tl.int64) * block_stride
    if BLOCK_SIZE < BLOCK_N:
        base = base[:, None]
        places = places % BLOCK_SIZE
    return base, (places * position_stride)[:, None] + tl.arange(0, HEAD_DIM)[None, :]
