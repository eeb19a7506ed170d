"""Plain-torch twins of every kernel: the definition that the fast ones are tested against, and the path for any
device and dtype that has none. Their arithmetic is float32 inside, whatever dtype goes in and comes out."""

from kernels.reference.adjustments import adjust_logits, mask_words
from kernels.reference.attention import (
    Tile,
    attend_tiles,
    expand_block_tables,
    paged_attention,
    plan_tiles,
    scratch_rows,
    store_kv,
)
from kernels.reference.int8 import linear_int8, quantize_weight
from kernels.reference.layers import (
    add_rms_norm,
    embed_tokens,
    linear,
    linear_picked,
    linear_silu_and_mul,
    qk_norm_rope_store,
    rms_norm,
    silu_and_mul,
)
from kernels.reference.log_probs import log_probs
from kernels.reference.moe import choose_experts, mix_experts
from kernels.reference.sampling import INPUT_DTYPES, NO_NUMBERS, NO_TOKEN, SamplingInputs, filter_logits, sample

__all__ = [
    "INPUT_DTYPES",
    "NO_NUMBERS",
    "NO_TOKEN",
    "SamplingInputs",
    "Tile",
    "add_rms_norm",
    "adjust_logits",
    "attend_tiles",
    "choose_experts",
    "embed_tokens",
    "expand_block_tables",
    "filter_logits",
    "linear",
    "linear_int8",
    "linear_picked",
    "linear_silu_and_mul",
    "log_probs",
    "mask_words",
    "mix_experts",
    "paged_attention",
    "plan_tiles",
    "qk_norm_rope_store",
    "quantize_weight",
    "rms_norm",
    "sample",
    "scratch_rows",
    "silu_and_mul",
    "store_kv",
]
