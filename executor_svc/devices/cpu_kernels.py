"""Baton's C++ kernels as the model wants them: a layout of matrices, a set of kernels, and an attention backend."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from common.plan import ExecutorLimits, PlanColumns
from executor_svc.model.attention import CacheMemory, KVGeometry, new_cache
from executor_svc.model.kernel_set import GatedProjection, PickedProjection, Projection
from executor_svc.model.packing import Matrix, MatrixShape, TensorSpec
from executor_svc.staging.batch import Planned, padded_tables
from kernels import reference
from kernels.arguments import AttentionRows, KVCache
from kernels.cpu import PACKING_VERSION, PANEL, CpuKernels, PackedWeight


class CppPacking:
    """Panels, in bfloat16 or int8.

    Args:
        kernels: that the panels are for.
        isa: whose kernels they are.
        int8: quantize matrices when they are packed.
    """

    as_is = False

    def __init__(self, kernels: CpuKernels, isa: str, *, int8: bool = False) -> None:
        self.name = f"panels-{PACKING_VERSION}-{isa}"
        self._kernels = kernels
        self._int8 = int8

    def parts(self, shape: MatrixShape, dtype: torch.dtype) -> dict[str, TensorSpec]:
        """See `Packing.parts`."""
        packed = self._kernels.empty_packed(
            shape.in_size, shape.out_size, gated=shape.gated, int8=self._int8, device="meta"
        )
        parts = {"panels": packed.panels} | ({} if packed.scales is None else {"scales": packed.scales})
        return {name: TensorSpec.of(tensor) for name, tensor in parts.items()}

    def pack(self, weight: Tensor, matrix: Matrix) -> None:
        """See `Packing.pack`."""
        self._kernels.pack_into(weight, _packed(matrix))


class CppKernels:
    """The kernels of `kernels.cpu`, for bfloat16. Mixtures of experts have none: plain torch computes them.

    Args:
        kernels: to compute with; the matrices are those of a `CppPacking`.
    """

    rows_are_exact = True

    def __init__(self, kernels: CpuKernels) -> None:
        self._kernels = kernels
        self.rms_norm = kernels.rms_norm
        self.add_rms_norm = kernels.add_rms_norm
        self.qk_norm_rope_store = kernels.qk_norm_rope_store
        self.embed_tokens = kernels.embed_tokens
        self.sample = kernels.sample
        self.adjust_logits = kernels.adjust_logits
        self.log_probs = kernels.log_probs
        self.mix_experts = reference.mix_experts

    def warm_up_lengths(self, most: int) -> list[int]:
        """See `KernelSet.warm_up_lengths`: a prompt and a decode step set up all that there is to set up."""
        return sorted({1, min(2, most)})

    def projection(self, weight: Matrix, bias: Tensor | None) -> Projection:
        """See `KernelSet.projection`."""
        linear, packed = self._kernels.linear, _packed(weight)
        return lambda x, out: linear(x, packed, bias, out)

    def picked_projection(self, weight: Matrix) -> PickedProjection:
        """See `KernelSet.picked_projection`; results are rounded to bfloat16, as all of these kernels are."""
        linear, packed = self._kernels.linear, _packed(weight)

        def project(x: Tensor, channels: Tensor, out: Tensor) -> None:
            panels = channels // PANEL
            for panel in sorted(set(panels.tolist())):
                rows = (panels == panel).nonzero().flatten()
                part = packed.panel(panel)
                results = x.new_empty((len(rows), part.out_size))
                linear(x[rows], part, None, results)
                picked = (channels[rows] - panel * PANEL)[:, None].long()
                out[rows] = results.gather(1, picked).flatten().float()

        return project

    def gated_projection(self, gate_up: Matrix) -> GatedProjection:
        """See `KernelSet.gated_projection`."""
        linear_silu_and_mul, packed = self._kernels.linear_silu_and_mul, _packed(gate_up)
        return lambda x, _, out: linear_silu_and_mul(x, packed, out)


class CppBackend:
    """A KV cache that the C++ kernels attend to, where it lies: any block size, bfloat16, head_dim 64 or 128.

    Args:
        kernels: of `kernels.cpu`.
        geometry: of the cache.
        limits: of the executor; one block more is allocated, for padding rows.
        memory: of the cache, see `new_cache`.
    """

    def __init__(
        self, kernels: CpuKernels, geometry: KVGeometry, limits: ExecutorLimits, memory: CacheMemory | None = None
    ) -> None:
        tables = limits.max_num_seqs * -(-limits.max_model_len // limits.block_size)
        self.max_planned = [limits.max_num_seqs + 1, limits.max_num_seqs, tables]
        self._paged_attention = kernels.paged_attention
        self._scale = geometry.head_dim**-0.5
        inside = (geometry.num_kv_heads, geometry.block_size, geometry.head_dim)
        shape = (geometry.num_layers, 2, limits.num_blocks + 1, *inside)
        self._cache = new_cache(shape, geometry.dtype, torch.device("cpu"), memory)
        self._memory = memory
        self._caches = [KVCache(layer[0], layer[1]) for layer in self._cache]
        kernels.advise_huge_pages(self._cache)

    def plan(self, columns: PlanColumns, *, fixed: bool) -> Planned[AttentionRows]:
        """See `AttentionBackend.plan`."""
        if self._memory is not None:
            self._memory.reach(int(columns.block_ids.max()))
        query_starts = np.zeros(columns.num_rows + 1, dtype=np.int32)
        np.cumsum(columns.query_lens, out=query_starts[1:])
        return [query_starts, columns.context_lens, padded_tables(columns)], _bind

    def cache(self, layer: int) -> KVCache:
        """See `AttentionBackend.cache`."""
        return self._caches[layer]

    def attend(self, layer: int, query: Tensor, metadata: AttentionRows, out: Tensor) -> None:
        """See `AttentionBackend.attend`."""
        self._paged_attention(query, self._caches[layer], metadata, self._scale, out)


def _bind(arrays: Sequence[Tensor]) -> AttentionRows:
    return AttentionRows(*arrays)


def _packed(matrix: Matrix) -> PackedWeight:
    """A matrix as the kernels take it, over the same memory."""
    shape, parts = matrix.shape, matrix.parts
    out_size = shape.out_size // 2 if shape.gated else shape.out_size
    return PackedWeight(parts["panels"], parts.get("scales"), shape.in_size, out_size, shape.gated)
