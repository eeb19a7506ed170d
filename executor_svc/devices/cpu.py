"""Computing on a CPU: Baton's C++ kernels for bfloat16 where the processor has what they need, else plain torch."""

from collections.abc import Callable
from typing import Any

import torch

from common.errors import BatonError
from common.logging import get_logger
from common.plan import ExecutorLimits
from executor_svc.devices.cpu_kernels import CppBackend, CppKernels, CppPacking
from executor_svc.devices.cpu_share import own_cpus, own_num_threads
from executor_svc.devices.memfd_pool import MemfdPool
from executor_svc.devices.memfd_weights import MemfdWeights
from executor_svc.devices.platform import PlatformDefaults, pool_too_large
from executor_svc.devices.pool_size import available_memory
from executor_svc.devices.torch_kernels import TorchBackend, TorchKernels
from executor_svc.model.attention import AttentionBackend, CacheMemory, KVGeometry
from executor_svc.model.config import DecoderConfig
from executor_svc.model.kernel_set import KernelSet
from executor_svc.model.packing import AS_IS, Packing
from executor_svc.model.sharding import Shard
from kernels.cpu import IsaError, Loaded, load
from kernels.cpu.checks import HEAD_DIMS

log = get_logger("executor")

_BLOCK_SIZE = 16  # positions


class CpuPlatform:
    """The CPUs that this process may use.

    Args:
        threads: to compute with; None is one for each CPU, or as many as a quota pays for.
        pin_threads: see `ExecutorOptions`; the threads of plain torch are never bound.
        int8: quantize linear layers.
    """

    device = torch.device("cpu")
    description = "cpu"
    defaults = PlatformDefaults(max_num_seqs=64, max_batch_tokens=2048)

    def __init__(self, threads: int | None = None, *, pin_threads: bool = False, int8: bool = False) -> None:
        cpus = own_cpus()
        self._threads = threads or own_num_threads()
        # With fewer threads than CPUs, other executors may use the rest: the system places the threads better.
        self._cpus_to_pin = cpus if pin_threads and self._threads == len(cpus) else []
        self._int8 = int8
        self._chosen: dict[tuple[torch.dtype, int], Loaded] = {}
        torch.set_num_threads(self._threads)

    def block_size(self, config: DecoderConfig, dtype: torch.dtype, wanted: int | None) -> int:
        """See `Platform.block_size`."""
        return wanted or _BLOCK_SIZE

    def packing(self, config: DecoderConfig, dtype: torch.dtype) -> Packing:
        """See `Platform.packing`."""
        loaded = self._choose(dtype, config.head_dim)
        if self._int8 and loaded.kernels is None:
            hint = "" if dtype is torch.bfloat16 else "; add --dtype bfloat16"
            raise BatonError(f"--quantization int8 takes C++ kernels: {loaded.problem or loaded.reason}{hint}")
        if self._int8 and config.moe is not None:
            raise BatonError("--quantization int8 is for dense models: experts have no such kernels")
        return AS_IS if loaded.kernels is None else CppPacking(loaded.kernels, loaded.isa, int8=self._int8)

    def kernels(self, config: DecoderConfig, shard: Shard, limits: ExecutorLimits, dtype: torch.dtype) -> KernelSet:
        """See `Platform.kernels`."""
        kernels = self._choose(dtype, config.head_dim).kernels
        return TorchKernels() if kernels is None else CppKernels(kernels)

    def kv_layout(self, geometry: KVGeometry) -> str:
        """See `Platform.kv_layout`: the C++ kernels' is that of plain torch."""
        return f"cpu-1 {geometry.shape_name}"

    def kept_device(self) -> str:
        """See `Platform.kept_device`."""
        return "cpu"

    def pool_memory(self, num_bytes: int) -> MemfdPool:
        """See `Platform.pool_memory`."""
        return MemfdPool(num_bytes)

    def weight_memories(self) -> MemfdWeights:
        """See `Platform.weight_memories`."""
        return MemfdWeights()

    def attention(
        self, shard: Shard, geometry: KVGeometry, limits: ExecutorLimits, memory: CacheMemory | None = None
    ) -> AttentionBackend[Any]:
        """See `Platform.attention`."""
        kernels = self._choose(geometry.dtype, geometry.head_dim).kernels
        try:
            if kernels is not None:
                return CppBackend(kernels, geometry, limits, memory)
            return TorchBackend(geometry, limits, self.device, memory)
        except RuntimeError as error:  # torch's error for out of memory on a CPU
            raise pool_too_large(limits.num_blocks * geometry.block_bytes, self.memory_left()) from error

    def default_pool_bytes(self, useful_bytes: int, run_largest_step: Callable[[], None]) -> int:
        """See `Platform.default_pool_bytes`: a quarter of what is available, without a trial run."""
        return min(useful_bytes, available_memory() // 4)

    def memory_left(self) -> int:
        """See `Platform.memory_left`."""
        return available_memory()

    def decode_sizes(self, max_rows: int) -> list[int]:
        """See `Platform.decode_sizes`: padding rows cost work, and there are no graphs that need them."""
        return []

    def token_sizes(self, layer_products: int, max_tokens: int) -> list[int]:
        """See `Platform.token_sizes`, and `decode_sizes`."""
        return []

    def _choose(self, dtype: torch.dtype, head_dim: int) -> Loaded:
        """The C++ kernels for a model, or plain torch. The first call for a model logs which, and why."""
        key = (dtype, head_dim)
        if key not in self._chosen:
            loaded = self._load(dtype, head_dim)
            pinned = 0
            if loaded.kernels is not None and self._cpus_to_pin:
                pinned = loaded.kernels.pin_threads(self._cpus_to_pin)
            log.info("cpu kernels", isa=loaded.isa, reason=loaded.reason, threads=self._threads, pinned=pinned)
            if loaded.problem is not None:
                log.warning("not the fastest cpu kernels", isa=loaded.isa, problem=loaded.problem)
            self._chosen[key] = loaded
        return self._chosen[key]

    def _load(self, dtype: torch.dtype, head_dim: int) -> Loaded:
        if dtype is not torch.bfloat16:
            reason = f"the C++ kernels are for bfloat16, not {str(dtype)[6:]}"
            problem = f"{reason}: plain torch runs instead, at a fraction of the speed; see --dtype"
            return Loaded(None, "torch", reason, problem if dtype is torch.float16 else None)
        if head_dim not in HEAD_DIMS:
            reason = f"the C++ kernels are for head_dim {' and '.join(map(str, HEAD_DIMS))}, not {head_dim}"
            return Loaded(None, "torch", reason, f"{reason}: plain torch runs instead, at a fraction of the speed")
        try:
            return load(self._threads, log.info)
        except IsaError as error:
            raise BatonError(str(error)) from error
