"""Paged attention for decode rows and prompt chunks: planned on the host once a step, launched in every layer.

    attention = PagedAttention(shape, num_sms, device)
    plan = attention.plan(query_lens, context_lens)          # numpy, no GPU
    step = attention.stage(plan, work, block_tables)         # plan.work, brought to the device with all else
    caches = [attention.view_cache(cache) for cache in ...]  # once
    for cache in caches:
        attention.attend(query, cache, step, scale, out)

One kernel does both. Rows of few queries take tiles of 16 lines, where memory is all that matters; longer ones tiles of
64 or 128, big enough for Hopper's warp-group products. A step that has both is two launches. Where a tile is cut into
pieces (`work.py`), the last of its programs merges them.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.arguments import AttentionRows, KVCache
from kernels.gpu.attention.kernels import attention_kernel
from kernels.gpu.attention.plan import (
    AttentionPlan,
    AttentionPlanner,
    AttentionShape,
    ChooseTiles,
    GraphBounds,
    StagedPlan,
    choose_tiles,
)
from kernels.gpu.checks import check_contiguous, check_last_stride, check_rank, check_tensor


class PagedAttention:
    """Attention of one shape on one device, with the memory for results of pieces. Steps must not overlap.

    Args:
        shape: of the model and its cache.
        num_sms: multiprocessors to fill.
        device: where the caches are.
        choose: picks configurations; another function is for measuring others.
        max_partials: partial results to have room for, each a float32 vector for every head of a token. As many as
            plans without a `piece_len` need at most, if None: 54 MB for an H200.
    """

    def __init__(
        self,
        shape: AttentionShape,
        num_sms: int,
        device: torch.device,
        choose: ChooseTiles = choose_tiles,
        max_partials: int | None = None,
    ) -> None:
        self._shape = shape
        self._planner = AttentionPlanner(shape, num_sms, choose)
        self._max_partials = self._planner.max_partials if max_partials is None else max_partials
        heads = (self._max_partials, shape.num_heads)
        self._partial_out = torch.empty((*heads, shape.head_dim), dtype=torch.float32, device=device)
        self._partial_lse = torch.empty(heads, dtype=torch.float32, device=device)
        # Zero between launches: a program that fails ends the process, and a step that cannot start adds nothing.
        self._arrived = torch.zeros((self._max_partials, shape.num_kv_heads), dtype=torch.int32, device=device)

    def plan(
        self,
        query_lens: NDArray[np.integer],
        context_lens: NDArray[np.integer],
        graph: GraphBounds | None = None,
        piece_len: int | None = None,
        one_launch: bool = False,
    ) -> AttentionPlan:
        """Cut a step's rows into work.

        Args:
            query_lens, context_lens: [rows], `1 <= query_len <= context_len`. Tokens follow each other in the order of
                the rows; a row's last query stands at position `context_len - 1`.
            graph: make the plan fit a CUDA graph: plans for the same bounds have the same launches and length of
                `work`. Rows have so few queries then that they fit a tile of 16 lines.
            piece_len: cut contexts into pieces of up to so many positions, a multiple of each `block_n`, instead of
                what fills the GPU. A token's result then depends on its own context and tile alone.
            one_launch: take the tiles of the row with most queries for all rows.

        Raises:
            ValueError: a length is out of its bounds, the step does not fit the graph, or it has more partial results
                than there is room for.
        """
        return self._planner.plan(query_lens, context_lens, graph, piece_len, one_launch, self._max_partials)

    def stage(self, plan: AttentionPlan, work: Tensor, block_tables: Tensor) -> StagedPlan:
        """A plan that was brought to the device: what all layers of the step have in common, checked once.

        Args:
            plan: of the step.
            work: `plan.work` on the device, int32, dense.
            block_tables: [rows, max blocks of a sequence] int32, last stride 1, padded with anything.

        Raises:
            ValueError: a shape, dtype, device or stride does not fit.
        """
        device = self._partial_out.device
        check_rank("block_tables", block_tables, 2)
        check_tensor("block_tables", block_tables, tuple(block_tables.shape), torch.int32, device)
        check_last_stride("block_tables", block_tables)
        check_tensor("work", work, (len(plan.work),), torch.int32, device)
        check_contiguous("work", work)
        return StagedPlan(plan, work, block_tables)

    def view_cache(self, cache: KVCache) -> KVCache:
        """A layer's cache as `attend` takes it: checked, and else as it is.

        Args:
            cache: keys and values with the same strides, the last 1.

        Raises:
            ValueError: a shape, dtype, device or stride does not fit.
        """
        shape, device = self._shape, self._partial_out.device
        check_rank("key_cache", cache.keys, 4)
        sizes = (len(cache.keys), shape.num_kv_heads, shape.block_size, shape.head_dim)
        check_tensor("key_cache", cache.keys, sizes, shape.dtype, device)
        check_tensor("value_cache", cache.values, sizes, shape.dtype, device)
        strides = cache.keys.stride()
        check_last_stride("key_cache", cache.keys)
        if cache.values.stride() != strides:
            raise ValueError(f"value_cache has strides {cache.values.stride()}, expected {strides} as K")
        if shape.block_size * strides[2] >= 2**31:
            raise ValueError(f"key_cache has strides {strides}, expected a block within 2**31 values")
        return cache

    def attend(self, query: Tensor, cache: KVCache, step: StagedPlan, scale: float, out: Tensor) -> Tensor:
        """Attention of one layer; see `kernels.reference.paged_attention`.

        Block tables are trusted: within a row's context, an id beyond the cache reads foreign memory.

        Args:
            query: [tokens, heads, head_dim]; tokens may lie apart, each must be dense.
            cache: see `view_cache`.
            step: see `stage`.
            scale: of the scores, positive.
            out: as `query`; the tokens of the plan's rows are written, others are left as they are.

        Returns:
            out.

        Raises:
            ValueError: a shape, dtype, device or stride does not fit.
        """
        self._check(query, scale, out)
        shape, plan = self._shape, step.plan
        for launch in plan.launches:
            attention_kernel.launch(
                (launch.num_items * shape.num_kv_heads,),
                query,
                cache.keys,
                cache.values,
                step.block_tables,
                step.work,
                out,
                self._partial_out,
                self._partial_lse,
                self._arrived,
                scale * math.log2(math.e),
                launch.first_item,
                launch.num_items,
                launch.heads_at_once,
                query.stride(0),
                out.stride(0),
                step.block_tables.stride(0),
                *cache.keys.stride()[:3],
                NUM_KV_HEADS=shape.num_kv_heads,
                GROUP=shape.group,
                HEAD_DIM=shape.head_dim,
                BLOCK_SIZE=shape.block_size,
                BLOCK_M=launch.config.block_m,
                BLOCK_N=launch.config.block_n,
                num_warps=launch.config.num_warps,
                num_stages=launch.config.num_stages,
                maxnreg=launch.config.max_registers,
            )
        return out

    def _check(self, query: Tensor, scale: float, out: Tensor) -> None:
        shape = self._shape
        sizes = (len(query), shape.num_heads, shape.head_dim)
        for name, tensor in (("query", query), ("out", out)):
            check_tensor(name, tensor, sizes, shape.dtype, self._partial_out.device)
            if tensor.stride()[1:] != (shape.head_dim, 1):
                raise ValueError(f"{name} has strides {tensor.stride()}, expected {shape.head_dim} and 1 for the last")
        if not scale > 0:
            raise ValueError(f"scale is {scale}, expected a positive one")


def paged_attention(query: Tensor, cache: KVCache, rows: AttentionRows, scale: float, out: Tensor) -> None:
    """Plan, bring the work to the device and attend, all at once: for tests and debugging, since it waits for the GPU.

    See `kernels.reference.paged_attention`. Integers are int32.
    """
    _, num_kv_heads, block_size, head_dim = cache.keys.shape
    shape = AttentionShape(query.shape[1], num_kv_heads, head_dim, block_size, query.dtype)
    is_cuda = query.device.type == "cuda"
    num_sms = torch.cuda.get_device_properties(query.device).multi_processor_count if is_cuda else 1
    attention = PagedAttention(shape, num_sms, query.device)
    plan = attention.plan(rows.query_starts.diff().cpu().numpy(), rows.context_lens.cpu().numpy())
    step = attention.stage(plan, torch.from_numpy(plan.work).to(query.device), rows.block_tables)
    attention.attend(query, attention.view_cache(cache), step, scale, out)
