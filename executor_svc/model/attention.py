"""Attention backends. A backend owns the KV cache and its layout; nothing else indexes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from common.plan import ExecutorLimits, PlanColumns
from executor_svc.staging.batch import Planned, padded_tables
from kernels import reference

Metadata = TypeVar("Metadata")


@dataclass(frozen=True)
class KVGeometry:
    """Shape of a KV cache: counts, and the dtype of its elements."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: K and V of `block_size` positions in every layer."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.block_size * self.dtype.itemsize


class AttentionBackend(Protocol[Metadata]):
    """What the model needs of a KV cache. `Metadata` is whatever one batch's layers have in common."""

    max_planned: int
    """Elements of a `fixed` plan's arrays at most, and of most other plans'."""

    def plan(self, columns: PlanColumns, *, fixed: bool) -> Planned[Metadata]:
        """Work out, once a step, what `attend` needs in every layer.

        `fixed`: the plan has decode rows only and is for a captured graph: but for the last array, sizes may depend on
        the number of rows only, and so may what is not in the arrays.
        """
        ...

    def caches(self, layer: int) -> tuple[Tensor, Tensor]:
        """K and V [num_blocks, kv_heads, block_size, head_dim] of a layer, in strides of the backend's choice."""
        ...

    def attend(self, layer: int, query: Tensor, metadata: Metadata, out: Tensor) -> Tensor:
        """Causal attention of query [tokens, heads, head_dim] to the rows' contexts.

        Returns it in `out`, of the same shape, or in a tensor of the backend's own.
        """
        ...


class TorchBackend:
    """Plain torch, any block size, dtype and device: gathers K and V of a few rows at a time, then torch's SDPA.

    Args:
        geometry: of the cache.
        limits: of the executor; one block more is allocated, for padding rows. The cache is left uninitialised: nothing
            reads a slot before it is written, and memory that was never touched costs nothing.
        device: where it lives.
    """

    def __init__(self, geometry: KVGeometry, limits: ExecutorLimits, device: torch.device) -> None:
        self.max_planned = limits.max_num_seqs * -(-limits.max_model_len // limits.block_size)
        self._geometry = geometry
        self._cache = torch.empty(
            (
                geometry.num_layers,
                2,
                limits.num_blocks + 1,
                geometry.num_kv_heads,
                geometry.block_size,
                geometry.head_dim,
            ),
            dtype=geometry.dtype,
            device=device,
        )
        self._scratch = self._cache.new_empty(2, 0, geometry.head_dim)

    def plan(self, columns: PlanColumns, *, fixed: bool) -> Planned[list[reference.Tile]]:
        """See `AttentionBackend.plan`."""
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
            self._scratch = self._cache.new_empty(2, needed, geometry.head_dim)
        return tiles

    def caches(self, layer: int) -> tuple[Tensor, Tensor]:
        """See `AttentionBackend.caches`."""
        return self._cache[layer, 0], self._cache[layer, 1]

    def attend(self, layer: int, query: Tensor, metadata: list[reference.Tile], out: Tensor) -> Tensor:
        """See `AttentionBackend.attend`."""
        scale = self._geometry.head_dim**-0.5
        reference.attend_tiles(query, *self.caches(layer), metadata, scale, self._scratch, out)
        return out
