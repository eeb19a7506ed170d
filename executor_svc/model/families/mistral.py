"""Mistral and Mistral Nemo (Jiang et al. 2023, arXiv:2310.06825): the first ones have a sliding window."""

from executor_svc.model.config import DecoderConfig
from executor_svc.model.config_file import ConfigJson, describe

DEFAULTS = {"max_position_embeddings": 4096 * 32, "num_key_value_heads": 8, "sliding_window": 4096}


def read(said: ConfigJson) -> DecoderConfig:
    """See `Family.read`."""
    return describe(said, window=said.sliding_window)
