"""Attention on a GPU: the backend that owns the KV cache, by Baton's Triton kernels or by flash-attn."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from common.plan import ExecutorLimits, PlanColumns
from common.wire import IntArray
from executor_svc.devices.attention_choice import FLASH_ATTN, AttentionKind
from executor_svc.model.attention import CacheMemory, KVGeometry, new_cache
from executor_svc.staging.batch import Planned
from kernels.arguments import KVCache
from kernels.gpu.attention.block_tables import expand_block_tables
from kernels.gpu.attention.flash_attention import FlashAttention
from kernels.gpu.attention.paged_attention import PagedAttention
from kernels.gpu.attention.plan import AttentionShape, GraphBounds


class HostPlan(Protocol):
    """What attention kernels plan for a step on the host."""

    @property
    def work(self) -> IntArray:
        """The part of the plan that the kernels read on the device."""
        ...


Plan = TypeVar("Plan", bound=HostPlan)


class AttentionKernels(Protocol[Plan]):
    """`kernels.gpu.attention.paged_attention.PagedAttention`, or `FlashAttention`, which has the same interface."""

    def plan(self, query_lens: IntArray, context_lens: IntArray, graph: GraphBounds | None = None) -> Plan:
        """See `PagedAttention.plan`."""
        ...

    def stage(self, plan: Plan, work: Tensor, block_tables: Tensor) -> Any:
        """See `PagedAttention.stage`."""
        ...

    def view_cache(self, cache: KVCache) -> Any:
        """See `PagedAttention.view_cache`."""
        ...

    def attend(self, query: Tensor, cache: Any, step: Any, scale: float, out: Tensor) -> Tensor:
        """See `PagedAttention.attend`: `cache` comes from `view_cache`, and `step` from `stage`."""
        ...


class GpuBackend(Generic[Plan]):
    """A KV cache on a GPU, in the layout that its kernels want.

    Args:
        attention: the kernels.
        geometry: of the cache.
        limits: of the executor; one block more is allocated, for padding rows.
        device: where the cache lives.
        heads_side_by_side: in memory, the heads of a position follow each other, as flash-attn wants it, and not the
            positions of a head.
        memory: of the cache, see `new_cache`.
    """

    def __init__(
        self,
        attention: AttentionKernels[Plan],
        geometry: KVGeometry,
        limits: ExecutorLimits,
        device: torch.device,
        *,
        heads_side_by_side: bool,
        memory: CacheMemory | None = None,
    ) -> None:
        self._attention = attention
        self._scale = geometry.head_dim**-0.5
        self._max_context_len = limits.max_model_len
        block = (geometry.num_kv_heads, geometry.block_size)
        if heads_side_by_side:
            block = block[::-1]
        shape = (geometry.num_layers, 2, limits.num_blocks + 1, *block, geometry.head_dim)
        self._cache = new_cache(shape, geometry.dtype, device, memory)
        if heads_side_by_side:
            self._cache = self._cache.transpose(3, 4)
        self._caches = [KVCache(layer[0], layer[1]) for layer in self._cache]
        self._views = [attention.view_cache(cache) for cache in self._caches]
        width = -(-limits.max_model_len // geometry.block_size)
        self._block_tables = torch.zeros((limits.max_num_seqs, width), dtype=torch.int32, device=device)
        ones = np.ones(limits.max_num_seqs, dtype=np.int32)
        largest = attention.plan(ones, ones, GraphBounds(limits.max_num_seqs, limits.max_model_len))
        self.max_planned = [len(largest.work), limits.max_num_seqs + 1, self._block_tables.numel()]

    def plan(self, columns: PlanColumns, *, fixed: bool) -> Planned[Any]:
        """See `AttentionBackend.plan`."""
        bounds = GraphBounds(columns.num_rows, self._max_context_len) if fixed else None
        plan = self._attention.plan(columns.query_lens, columns.context_lens, bounds)
        table_starts = np.zeros(columns.num_rows + 1, dtype=np.int32)
        np.cumsum(columns.block_counts, out=table_starts[1:])
        return [plan.work, table_starts, columns.block_ids], partial(self._place_tables, plan)

    def cache(self, layer: int) -> KVCache:
        """See `AttentionBackend.cache`."""
        return self._caches[layer]

    def attend(self, layer: int, query: Tensor, metadata: Any, out: Tensor) -> None:
        """See `AttentionBackend.attend`."""
        self._attention.attend(query, self._views[layer], metadata, self._scale, out)

    def _place_tables(self, plan: Plan, arrays: Sequence[Tensor]) -> Any:
        work, table_starts, block_ids = arrays
        tables = self._block_tables[: len(table_starts) - 1]
        expand_block_tables(block_ids, table_starts, tables)
        return self._attention.stage(plan, work, tables)


def make_backend(
    kind: AttentionKind,
    num_heads: int,
    geometry: KVGeometry,
    limits: ExecutorLimits,
    device: torch.device,
    num_sms: int,
    memory: CacheMemory | None = None,
) -> GpuBackend[Any]:
    """A KV cache, and the kernels of `kind`.

    Raises:
        ImportError: flash-attn cannot be imported.
        ValueError: the kernels do not take such a model or cache.
        torch.OutOfMemoryError: the cache does not fit.
    """
    shape = AttentionShape(num_heads, geometry.num_kv_heads, geometry.head_dim, geometry.block_size, geometry.dtype)
    kernels: AttentionKernels[Any]
    kernels = FlashAttention(shape, num_sms) if kind is FLASH_ATTN else PagedAttention(shape, num_sms, device)
    return GpuBackend(kernels, geometry, limits, device, heads_side_by_side=kind.heads_side_by_side, memory=memory)
