"""Qwen3's mixtures of experts (Yang et al. 2025, arXiv:2505.09388)."""

import msgspec

from executor_svc.model.config import DecoderConfig, MoeConfig
from executor_svc.model.config_file import ConfigJson, describe

DEFAULTS: dict[str, object] = {}


def read(said: ConfigJson) -> DecoderConfig:
    """See `Family.read`. A sliding window is that of every layer here, as in transformers."""
    step = said.decoder_sparse_step
    unsupported = [f"decoder_sparse_step {step} (only 1 and above)"] if step < 1 else []
    moe = None if unsupported else _experts(said)
    return describe(
        said if moe else msgspec.structs.replace(said, num_experts=None, num_local_experts=None),
        qk_norm=True,
        window=said.sliding_window if said.use_sliding_window else None,
        moe=moe,
        unsupported=unsupported,
    )


def _experts(said: ConfigJson) -> MoeConfig | None:
    num_experts = said.num_experts or said.num_local_experts
    dense = set(said.mlp_only_layers or [])
    step = said.decoder_sparse_step
    sparse = tuple(i for i in range(said.num_hidden_layers) if i not in dense and (i + 1) % step == 0)
    if not num_experts or not sparse:
        return None
    return MoeConfig(
        num_experts=num_experts,
        num_chosen=said.num_experts_per_tok,
        intermediate_size=said.moe_intermediate_size,
        renormalized=said.norm_topk_prob,
        sparse_layers=sparse,
    )
