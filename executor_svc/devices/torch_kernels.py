"""Plain torch for any device and dtype: `kernels.reference` as a set of kernels, and an attention backend."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from common.plan import ExecutorLimits, PlanColumns
from executor_svc.model.attention import CacheMemory, KVGeometry, new_cache
from executor_svc.model.kernel_set import GatedProjection, PickedProjection, Projection
from executor_svc.model.packing import Matrix
from executor_svc.staging.batch import Planned, padded_tables
from kernels import reference
from kernels.arguments import KVCache


class PlainProjections:
    """Torch's matrix products, with the weights as they are. They may round a row otherwise beside other rows."""

    rows_are_exact = False
    silu_and_mul: Callable[[Tensor, Tensor], None] = staticmethod(reference.silu_and_mul)

    def projection(self, weight: Matrix, bias: Tensor | None) -> Projection:
        """See `KernelSet.projection`."""
        matrix = weight.parts["weight"]
        return lambda x, out: reference.linear(x, matrix, bias, out)

    def picked_projection(self, weight: Matrix) -> PickedProjection:
        """See `KernelSet.picked_projection`."""
        matrix = weight.parts["weight"]
        return lambda x, channels, out: reference.linear_picked(x, matrix, channels, out)

    def warm_up_lengths(self, most: int) -> list[int]:
        """See `KernelSet.warm_up_lengths`: a prompt and a decode step set up all that there is to set up."""
        return sorted({1, min(2, most)})

    def gated_projection(self, gate_up: Matrix) -> GatedProjection:
        """See `KernelSet.gated_projection`."""
        matrix = gate_up.parts["weight"]

        def project(x: Tensor, both: Tensor, out: Tensor) -> None:
            reference.linear(x, matrix, None, both)
            self.silu_and_mul(both, out)

        return project


class TorchKernels(PlainProjections):
    """`kernels.reference`: any device, any dtype."""

    rms_norm = staticmethod(reference.rms_norm)
    add_rms_norm = staticmethod(reference.add_rms_norm)
    qk_norm_rope_store = staticmethod(reference.qk_norm_rope_store)
    embed_tokens = staticmethod(reference.embed_tokens)
    mix_experts = staticmethod(reference.mix_experts)
    sample = staticmethod(reference.sample)
    adjust_logits = staticmethod(reference.adjust_logits)
    log_probs = staticmethod(reference.log_probs)


class TorchBackend:
    """Plain torch, any block size, dtype and device: gathers K and V of a few rows at a time, then torch's SDPA.

    Args:
        geometry: of the cache.
        limits: of the executor; one block more is allocated, for padding rows.
        device: where it lives.
        memory: of the cache, see `new_cache`.
    """

    def __init__(
        self, geometry: KVGeometry, limits: ExecutorLimits, device: torch.device, memory: CacheMemory | None = None
    ) -> None:
        self.max_planned = [limits.max_num_seqs * -(-limits.max_model_len // limits.block_size)]
        self._geometry = geometry
        inside = (geometry.num_kv_heads, geometry.block_size, geometry.head_dim)
        shape = (geometry.num_layers, 2, limits.num_blocks + 1, *inside)
        self._cache = new_cache(shape, geometry.dtype, device, memory)
        self._memory = memory
        self._caches = [KVCache(layer[0], layer[1]) for layer in self._cache]
        self._scratch = self._cache.new_empty(2, 0, geometry.head_dim)

    def plan(self, columns: PlanColumns, *, fixed: bool) -> Planned[list[reference.Tile]]:
        """See `AttentionBackend.plan`."""
        if self._memory is not None:
            self._memory.reach(int(columns.block_ids.max()))
        return [padded_tables(columns)], partial(self._make_tiles, columns)

    def _make_tiles(self, columns: PlanColumns, arrays: Sequence[Tensor]) -> list[reference.Tile]:
        geometry = self._geometry
        tiles = reference.plan_tiles(
            [0, *np.cumsum(columns.query_lens).tolist()],
            columns.context_lens.tolist(),
            arrays[0],
            geometry.num_kv_heads,
            geometry.block_size,
            geometry.head_dim,
        )
        needed = reference.scratch_rows(tiles)
        if needed > self._scratch.shape[1]:  # kept between steps: fresh memory costs more to map than to fill
            self._scratch = self._scratch.new_empty(2, needed, geometry.head_dim)
        return tiles

    def cache(self, layer: int) -> KVCache:
        """See `AttentionBackend.cache`."""
        return self._caches[layer]

    def attend(self, layer: int, query: Tensor, metadata: list[reference.Tile], out: Tensor) -> None:
        """See `AttentionBackend.attend`."""
        scale = self._geometry.head_dim**-0.5
        reference.attend_tiles(query, self._caches[layer], metadata, scale, self._scratch, out)
