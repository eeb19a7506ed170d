"""Computing on an NVIDIA GPU: Triton kernels, flash-attn where it is installed, CUDA graphs."""

import gc
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from common.errors import BatonError, TryAgainError
from common.plan import ExecutorLimits
from executor_svc.devices.attention_choice import AttentionKind, check_head_dim, choose_attention
from executor_svc.devices.cuda_mapping import CudaMapping
from executor_svc.devices.cuda_memory import CudaMemory
from executor_svc.devices.cuda_weights import CudaWeights
from executor_svc.devices.gpu_attention import make_backend
from executor_svc.devices.platform import PlatformDefaults, pool_too_large
from executor_svc.devices.torch_kernels import PlainProjections
from executor_svc.model.attention import AttentionBackend, CacheMemory, KVGeometry
from executor_svc.model.config import DecoderConfig
from executor_svc.model.kernel_set import GatedProjection, KernelSet
from executor_svc.model.packing import AS_IS, Matrix, Packing
from executor_svc.model.sharding import Shard
from executor_svc.options import ExecutorOptions
from executor_svc.runner import graphs
from kernels import gpu, reference
from kernels.gpu.moe.experts import Experts
from kernels.gpu.sampling.log_probs import LogProbs
from kernels.gpu.sampling.sampler import TritonSampler

FEW_ROWS = 64
"""Rows whose gated projection is one Triton kernel; more take cuBLAS and `silu_and_mul`. 0 is cuBLAS alone."""
_LEFT_FREE = 0.03
"""Share of a GPU's memory that no pool takes: graphs, and what CUDA's libraries take for themselves."""


class GpuKernels(PlainProjections):
    """Baton's Triton kernels, and cuBLAS for most matrix products.

    Args:
        config, shard: of the model.
        limits: of the steps that there is to be room for.
        dtype: of activations and weights.
        device: where they run.
    """

    rms_norm = staticmethod(gpu.rms_norm)
    add_rms_norm = staticmethod(gpu.add_rms_norm)
    qk_norm_rope_store = staticmethod(gpu.qk_norm_rope_store)
    silu_and_mul = staticmethod(gpu.silu_and_mul)
    embed_tokens = staticmethod(gpu.embed_tokens)
    adjust_logits = staticmethod(gpu.adjust_logits)

    def __init__(
        self, config: DecoderConfig, shard: Shard, limits: ExecutorLimits, dtype: torch.dtype, device: torch.device
    ) -> None:
        rows = -(-limits.max_num_seqs // shard.size)
        self.sample = TritonSampler(rows, config.vocab_size, device).sample
        self.log_probs = LogProbs(rows, config.vocab_size, device).log_probs
        self._experts: Experts | None = None
        self.mix_experts = reference.mix_experts  # a dense model never calls it
        if config.moe is not None:
            self._experts = Experts(
                limits.max_batch_tokens,
                config.moe.num_experts,
                config.moe.num_chosen,
                config.hidden_size,
                shard.expert_intermediate_size,
                dtype,
                device,
            )
            self.mix_experts = self._experts.mix_experts

    def gated_projection(self, gate_up: Matrix) -> GatedProjection:
        """See `KernelSet.gated_projection`."""
        matrix, of_many = gate_up.parts["weight"], super().gated_projection(gate_up)

        def project(x: Tensor, both: Tensor, out: Tensor) -> None:
            if len(x) <= FEW_ROWS:
                gpu.linear_silu_and_mul(x, matrix, out)
            else:
                of_many(x, both, out)

        return project

    def warm_up_lengths(self, most: int) -> list[int]:
        """See `KernelSet.warm_up_lengths`: Triton compiles a kernel when it is first launched in a configuration.

        Most kernels choose theirs by powers of two; a mixture's depend on several bounds, in all combinations.
        """
        lengths = {most, *(1 << power for power in range(most.bit_length()))}
        if self._experts is not None:
            first = {self._experts.configuration(length): length for length in range(most, 0, -1)}
            lengths.update(first.values())
        return sorted(lengths)


class GpuPlatform:
    """One GPU of this machine; in a group of ranks, that of the local rank.

    Args:
        options: the operator's.

    Raises:
        BatonError: there is no GPU for this rank.
    """

    def __init__(self, options: ExecutorOptions) -> None:
        index = int(os.environ.get("LOCAL_RANK", "0"))
        if index >= torch.cuda.device_count():
            raise BatonError(f"local rank {index} has no GPU: there are {torch.cuda.device_count()}")
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        self.description = f"{self.device} {torch.cuda.get_device_name(self.device)}"[:128]
        # On purpose, not by torch's default: products that cuBLAS cuts along K are summed up in float32.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self._wanted_attention = options.attention
        self._attention: AttentionKind | None = None  # `block_size` chooses it
        self._utilization = options.gpu_memory_utilization
        self._eager = options.enforce_eager
        self._cuda_memory: CudaMemory | None = None  # for what is kept
        self._kept_weights: CudaWeights | None = None
        self.defaults = PlatformDefaults(max_num_seqs=256, max_batch_tokens=8192)

    def block_size(self, config: DecoderConfig, dtype: torch.dtype, wanted: int | None) -> int:
        """See `Platform.block_size`."""
        self._attention = choose_attention(self._wanted_attention, config.head_dim, dtype, wanted)
        return wanted or self._attention.default_block_size

    def packing(self, config: DecoderConfig, dtype: torch.dtype) -> Packing:
        """See `Platform.packing`. Heads are checked here, before weights are read for minutes."""
        check_head_dim(config.head_dim)
        return AS_IS

    def kernels(self, config: DecoderConfig, shard: Shard, limits: ExecutorLimits, dtype: torch.dtype) -> KernelSet:
        """See `Platform.kernels`."""
        return GpuKernels(config, shard, limits, dtype, self.device)

    def kv_layout(self, geometry: KVGeometry) -> str:
        """See `Platform.kv_layout`."""
        assert self._attention is not None
        return f"{self._attention.name}-1 {geometry.shape_name}"

    def kept_device(self) -> str:
        """See `Platform.kept_device`."""
        return self._shared_memory().device

    def pool_memory(self, num_bytes: int) -> CudaMapping:
        """See `Platform.pool_memory`."""
        return CudaMapping(self._shared_memory(), num_bytes)

    def weight_memories(self) -> CudaWeights:
        """See `Platform.weight_memories`."""
        if self._kept_weights is None:
            self._kept_weights = CudaWeights(self._shared_memory())
        return self._kept_weights

    def attention(
        self, shard: Shard, geometry: KVGeometry, limits: ExecutorLimits, memory: CacheMemory | None = None
    ) -> AttentionBackend[Any]:
        """See `Platform.attention`."""
        assert self._attention is not None
        num_sms = torch.cuda.get_device_properties(self.device).multi_processor_count
        try:
            return make_backend(self._attention, shard.num_heads, geometry, limits, self.device, num_sms, memory)
        except (ImportError, ValueError) as error:
            raise BatonError(f"attention by {self._attention.name} cannot serve this model: {error}") from error
        except torch.OutOfMemoryError as error:
            raise pool_too_large(limits.num_blocks * geometry.block_bytes, self.memory_left()) from error

    def default_pool_bytes(self, useful_bytes: int, run_largest_step: Callable[[], None]) -> int:
        """See `Platform.default_pool_bytes`: what this executor's share of the GPU leaves. The prefix cache uses any.

        What others on the GPU have does not count, but cannot be taken. Weights that a keeper keeps count for each
        executor that uses them.
        """
        before = _collect()
        torch.cuda.reset_peak_memory_stats(self.device)
        run_largest_step()
        torch.cuda.synchronize(self.device)
        for_steps = torch.cuda.max_memory_reserved(self.device) - before
        _collect()
        free, total = torch.cuda.mem_get_info(self.device)
        ours = torch.cuda.memory_reserved(self.device)
        if self._kept_weights is not None:
            ours += self._kept_weights.num_bytes
        share = int(total * self._utilization)
        pool = min(share - ours, free - int(total * _LEFT_FREE)) - for_steps
        if pool <= 0:
            raise TryAgainError(
                f"no memory is left for the KV pool: --gpu-memory-utilization {self._utilization} gives this executor "
                f"{_gib(share)} GiB of {_gib(total)}, its weights take {_gib(ours)}, its steps {_gib(for_steps)}, and "
                f"other processes and CUDA itself {_gib(total - free - ours)} (executors that share a GPU take a share "
                "each, such as 0.45)"
            )
        return pool

    def memory_left(self) -> int:
        """See `Platform.memory_left`."""
        return torch.cuda.mem_get_info(self.device)[0]

    def _shared_memory(self) -> CudaMemory:
        if self._cuda_memory is None:
            self._cuda_memory = CudaMemory(self.device.index)
        return self._cuda_memory

    def decode_sizes(self, max_rows: int) -> list[int]:
        """See `Platform.decode_sizes`."""
        return [] if self._eager else graphs.decode_sizes(max_rows)

    def token_sizes(self, layer_products: int, max_tokens: int) -> list[int]:
        """See `Platform.token_sizes`."""
        return [] if self._eager else graphs.token_sizes(layer_products, max_tokens)


def _collect() -> int:
    """Give unused memory back to the system. Returns the bytes that torch still holds."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f}"
