"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): heads of q and k are normalized."""

from executor_svc.model.config import DecoderConfig
from executor_svc.model.config_file import ConfigJson, describe, window_of_some

DEFAULTS = {"head_dim": 128}


def read(said: ConfigJson) -> DecoderConfig:
    """See `Family.read`."""
    return describe(said, qk_norm=True, window=window_of_some(said))
