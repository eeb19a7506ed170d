"""The interface of attention backends. A backend owns the KV cache and its layout; nothing else indexes it."""

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from common.plan import PlanColumns
from executor_svc.staging.batch import Planned
from kernels.arguments import KVCache

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
    def shape_name(self) -> str:
        """Its counts, for the name of a layout."""
        return f"layers={self.num_layers} kv_heads={self.num_kv_heads} block={self.block_size} head_dim={self.head_dim}"

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: K and V of `block_size` positions in every layer."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.block_size * self.dtype.itemsize


class CacheMemory(Protocol):
    """Memory for a KV cache that outlives the process."""

    def __call__(self, num_bytes: int) -> Tensor:
        """So many bytes, uint8, at an address that stays."""
        ...

    def reach(self, block: int) -> None:
        """A plan is about to use blocks up to this one."""
        ...


def new_cache(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, memory: CacheMemory | None) -> Tensor:
    """An uninitialised KV cache: nothing reads a slot before it is written, and on a CPU memory that was never touched
    costs nothing. `memory` None takes memory that ends with the process."""
    if memory is None:
        return torch.empty(shape, dtype=dtype, device=device)
    return memory(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)


class AttentionBackend(Protocol[Metadata]):
    """What the model needs of a KV cache. `Metadata` is whatever one batch's layers have in common."""

    max_planned: list[int]
    """Elements at most of each of the arrays that `plan` gives for a `fixed` plan, and of most other plans'."""

    def plan(self, columns: PlanColumns, *, fixed: bool) -> Planned[Metadata]:
        """Work out, once a step, what `attend` needs in every layer.

        `fixed`: the plan has decode rows only and is for a captured graph: sizes (except that of the last
        array), and what is not in the arrays, may depend on the number of rows only.
        """
        ...

    def cache(self, layer: int) -> KVCache:
        """The KV cache of a layer, in strides of the backend's choice; the same tensors at every call."""
        ...

    def attend(self, layer: int, query: Tensor, metadata: Metadata, out: Tensor) -> None:
        """Causal attention of query [tokens, heads, head_dim] to the rows' contexts, into `out`, of the same shape."""
        ...
