"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): heads of q and k are normalized."""

from executor_svc.model.config import DecoderConfig
from executor_svc.model.config_file import ConfigJson, describe
from executor_svc.model.families.qwen2 import window

DEFAULTS = {"head_dim": 128}


def read(said: ConfigJson) -> DecoderConfig:
    """See `Family.read`. `attention_bias` is one field for all of attention's projections."""
    has_bias = said.attention_bias
    return describe(said, qk_norm=True, qkv_bias=has_bias, output_bias=has_bias, window=window(said))
