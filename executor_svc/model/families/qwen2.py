"""Qwen2 and Qwen2.5 (arXiv:2407.10671, arXiv:2412.15115): q, k and v have biases."""

from executor_svc.model.config import DecoderConfig
from executor_svc.model.config_file import ConfigJson, describe

DEFAULTS = {"sliding_window": 4096}


def read(said: ConfigJson) -> DecoderConfig:
    """See `Family.read`."""
    return describe(said, qkv_bias=True, window=window(said))


def window(said: ConfigJson) -> int | None:
    """The sliding window of a model of which only some layers may have one; None where no layer has."""
    if not said.use_sliding_window:
        return None
    if said.layer_types is not None:
        is_windowed = any(kind != "full_attention" for kind in said.layer_types)
    else:
        is_windowed = said.max_window_layers < said.num_hidden_layers
    return said.sliding_window if is_windowed else None
