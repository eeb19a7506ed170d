"""Qwen2 and Qwen2.5 (arXiv:2407.10671, arXiv:2412.15115): q, k and v have biases."""

from executor_svc.model.config import DecoderConfig
from executor_svc.model.config_file import ConfigJson, describe, window_of_some

DEFAULTS = {"sliding_window": 4096}


def read(said: ConfigJson) -> DecoderConfig:
    """See `Family.read`."""
    return describe(said, qkv_bias=True, output_bias=False, window=window_of_some(said))
