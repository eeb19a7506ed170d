"""Attention backends. A backend owns the KV cache and its layout; nothing else indexes it."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from executor_svc.batch import Batch
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

    def prepare(self, batch: Batch) -> Metadata:
        """Work out, once a step, what `store` and `attend` need in every layer."""
        ...

    def store(self, layer: int, key: Tensor, value: Tensor, metadata: Metadata) -> None:
        """Write key and value [tokens, kv_heads, head_dim] into the batch's slots; slot -1 is skipped."""
        ...

    def attend(self, layer: int, query: Tensor, metadata: Metadata) -> Tensor:
        """Causal attention of query [tokens, heads, head_dim] to the rows' contexts; same shape and dtype."""
        ...


@dataclass(frozen=True)
class TorchMetadata:
    """`TorchBackend`'s view of a batch: which cache rows are written, and which rows attend together."""

    store_index: reference.StoreIndex
    tiles: list[reference.Tile]


class TorchBackend:
    """Plain torch, any block size, dtype and device: gathers K and V of a few rows at a time, then torch's SDPA.

    Args:
        geometry: of the cache.
        num_blocks: blocks to allocate. Left uninitialised: nothing reads a slot before it is written, and memory that
            was never touched costs nothing.
        device: where it lives.
    """

    def __init__(self, geometry: KVGeometry, num_blocks: int, device: torch.device) -> None:
        self._geometry = geometry
        self._cache = torch.empty(
            (geometry.num_layers, 2, num_blocks, geometry.num_kv_heads, geometry.block_size, geometry.head_dim),
            dtype=geometry.dtype,
            device=device,
        )
        self._scratch = self._cache.new_empty(2, 0, geometry.head_dim)

    def prepare(self, batch: Batch) -> TorchMetadata:
        """See `AttentionBackend.prepare`."""
        geometry = self._geometry
        tiles = reference.plan_tiles(
            batch.query_starts,
            batch.context_lens,
            batch.block_tables,
            geometry.num_kv_heads,
            geometry.block_size,
            geometry.head_dim,
        )
        needed = reference.scratch_rows(tiles)
        if needed > self._scratch.shape[1]:  # kept between steps: fresh memory costs more to map than to fill
            self._scratch = self._cache.new_empty(2, needed, geometry.head_dim)
        index = reference.plan_store(batch.slot_mapping, geometry.num_kv_heads, geometry.block_size)
        return TorchMetadata(index, tiles)

    def store(self, layer: int, key: Tensor, value: Tensor, metadata: TorchMetadata) -> None:
        """See `AttentionBackend.store`."""
        reference.store_rows(key, value, self._cache[layer, 0], self._cache[layer, 1], metadata.store_index)

    def attend(self, layer: int, query: Tensor, metadata: TorchMetadata) -> Tensor:
        """See `AttentionBackend.attend`."""
        scale = self._geometry.head_dim**-0.5
        keys, values = self._cache[layer]
        return reference.attend_tiles(query, keys, values, metadata.tiles, scale, self._scratch)
