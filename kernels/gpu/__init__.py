"""Triton kernels for NVIDIA GPUs. Each has a twin of the same name and signature in `kernels.reference`; those that
need memory of their own are methods of an object that has it (`PagedAttention`, `TritonSampler`)."""

from kernels.gpu.attention.block_tables import expand_block_tables
from kernels.gpu.layers.activation import silu_and_mul
from kernels.gpu.layers.embedding import embed_tokens
from kernels.gpu.layers.gated_linear import linear_silu_and_mul
from kernels.gpu.layers.norm import add_rms_norm, rms_norm
from kernels.gpu.layers.rope_store import qk_norm_rope_store
from kernels.gpu.sampling.adjustments import adjust_logits
from kernels.gpu.sampling.sampler import TritonSampler

__all__ = [
    "TritonSampler",
    "add_rms_norm",
    "adjust_logits",
    "embed_tokens",
    "expand_block_tables",
    "linear_silu_and_mul",
    "qk_norm_rope_store",
    "rms_norm",
    "silu_and_mul",
]
