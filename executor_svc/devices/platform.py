"""The interface of a platform: what differs between computing on a CPU and on a GPU.

`choose_platform.py` picks one at the start. The platform picks its kernels and its attention: `cpu.py` by what the
processor has, `gpu.py` by `attention_choice.choose_attention`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from common.errors import BatonError
from common.plan import ExecutorLimits
from executor_svc.devices.tensor_memory import TensorMemory
from executor_svc.model.attention import AttentionBackend, CacheMemory, KVGeometry
from executor_svc.model.config import DecoderConfig
from executor_svc.model.kernel_set import KernelSet
from executor_svc.model.packing import Packing
from executor_svc.model.sharding import Shard
from executor_svc.model.weight_memory import WeightMemories


@dataclass(frozen=True)
class PlatformDefaults:
    """Limits where the operator chose none."""

    max_num_seqs: int
    max_batch_tokens: int


def pool_too_large(num_bytes: int, num_free: int) -> BatonError:
    """Return the error of a KV pool of so many bytes, of which so many were free."""
    return BatonError(
        f"the KV pool of {num_bytes / 2**30:.2f} GiB cannot be allocated, {num_free / 2**30:.2f} GiB are free: "
        "give a smaller --kv-cache-memory, or a smaller --num-blocks"
    )


class Platform(Protocol):
    """A device with its kernels."""

    device: torch.device
    description: str
    """For a person to read, such as `cuda:0 NVIDIA H200`."""
    defaults: PlatformDefaults

    def block_size(self, config: DecoderConfig, dtype: torch.dtype, wanted: int | None) -> int:
        """Positions in a KV block: the operator's number, or what suits the attention kernels for such a model.

        Called once, before `attention`: it decides which kernels those are.

        Raises:
            BatonError: the operator wants kernels that do not take the model or the number.
        """
        ...

    def packing(self, config: DecoderConfig, dtype: torch.dtype) -> Packing:
        """The layout of matrices that `kernels` take.

        Raises:
            BatonError: there are no kernels as the operator wants them for such a model.
        """
        ...

    def kernels(self, config: DecoderConfig, shard: Shard, limits: ExecutorLimits, dtype: torch.dtype) -> KernelSet:
        """Kernels for a model's shard in `dtype`, with workspaces for steps within `limits`."""
        ...

    def kv_layout(self, geometry: KVGeometry) -> str:
        """Names how a KV cache lies in memory, the number of its blocks aside: with the same name, its bytes mean the
        same. To be called after `block_size`."""
        ...

    def kept_device(self) -> str:
        """Where memory is that outlives the process, as `PoolKind.device` and `WeightsKind.device` say.

        Raises:
            BatonError: memory of this device cannot be handed to another process; the message says why.
        """
        ...

    def pool_memory(self, num_bytes: int) -> TensorMemory:
        """Addresses for a KV cache whose memory outlives the process.

        Raises:
            BatonError: as `kept_device` does; so many addresses cannot be had.
        """
        ...

    def weight_memories(self) -> WeightMemories:
        """Memory for weights that outlives the process.

        Raises:
            BatonError: as `kept_device` does.
        """
        ...

    def attention(
        self, shard: Shard, geometry: KVGeometry, limits: ExecutorLimits, memory: CacheMemory | None = None
    ) -> AttentionBackend[Any]:
        """A KV cache of `limits.num_blocks` blocks and one more for padding rows, and what attends to it.

        `memory`: of the cache, see `new_cache`.

        Raises:
            BatonError: it cannot be allocated, or there are no kernels for it.
        """
        ...

    def default_pool_bytes(self, useful_bytes: int, run_largest_step: Callable[[], None]) -> int:
        """Memory for the KV cache, if the operator chose none.

        Args:
            useful_bytes: what sequences can use at most, the prefix cache aside.
            run_largest_step: runs a step that takes as much memory as any will, with a cache of one block.
        """
        ...

    def memory_left(self) -> int:
        """Bytes that could be taken now."""
        ...

    def decode_sizes(self, max_rows: int) -> list[int]:
        """Numbers of rows, up to `max_rows`, that decode plans are padded to; an empty list leaves them as they are."""
        ...

    def token_sizes(self, layer_products: int, max_tokens: int) -> list[int]:
        """Numbers of tokens that other plans are padded to, likewise; see `executor_svc.runner.graphs.token_sizes`."""
        ...
