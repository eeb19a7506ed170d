"""What differs between computing on a CPU and on a GPU: kernels, attention, memory. Chosen once, at the start."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from common.errors import BatonError
from common.plan import ExecutorLimits
from executor_svc.model.attention import AttentionBackend, KVGeometry
from executor_svc.model.config import Qwen3Config
from executor_svc.model.kernel_set import KernelSet
from executor_svc.model.sharding import Shard
from executor_svc.options import ExecutorOptions


@dataclass(frozen=True)
class Defaults:
    """What an operator who says nothing gets."""

    block_size: int
    max_num_seqs: int
    max_batch_tokens: int


class Platform(Protocol):
    """A device with its kernels."""

    device: torch.device
    description: str
    """For people, such as `cuda:0 NVIDIA H200`."""
    defaults: Defaults

    def kernels(self, config: Qwen3Config, shard: Shard, limits: ExecutorLimits, dtype: torch.dtype) -> KernelSet:
        """Kernels for a model's shard in `dtype`, with workspaces for steps within `limits`."""
        ...

    def attention(self, shard: Shard, geometry: KVGeometry, limits: ExecutorLimits) -> AttentionBackend[Any]:
        """A KV cache of `limits.num_blocks` blocks and one more for padding rows, and what attends to it.

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

    def decode_sizes(self, max_num_seqs: int) -> list[int]:
        """Numbers of rows that decode plans are padded to; none to leave them as they are."""
        ...


def choose_platform(options: ExecutorOptions) -> Platform:
    """The platform that the options, or what this machine has, ask for.

    Raises:
        BatonError: the machine, or what is installed on it, cannot.
    """
    has_gpu = torch.cuda.is_available()
    if options.device == "cpu" or (options.device == "auto" and not has_gpu):
        from executor_svc.devices.cpu import CpuPlatform  # noqa: PLC0415  (it needs the classes above)

        return CpuPlatform(options.threads, pin_threads=options.pin_threads, int8=options.quantization == "int8")
    if not has_gpu:
        raise BatonError(f"--device is {options.device}, and torch {torch.__version__} finds no GPU here")
    if options.quantization != "none":
        raise BatonError(f"--quantization {options.quantization} is for --device cpu: GPUs have no such kernels")
    if importlib.util.find_spec("triton") is None:
        raise BatonError(
            "computing on a GPU takes the package triton, which is not installed: pip install 'baton[gpu]'"
        )
    from executor_svc.devices.gpu import GpuPlatform  # noqa: PLC0415  (Triton takes a second to import)

    return GpuPlatform(options)
