"""Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini (arXiv:2404.14219, arXiv:2503.01743): fused projections, and rotations of
a part of a head."""

import msgspec

from executor_svc.model.config import DecoderConfig
from executor_svc.model.config_file import ConfigJson, describe

DEFAULTS = {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5}


def read(said: ConfigJson) -> DecoderConfig:
    """See `Family.read`. The first of these models called LongRoPE `yarn`."""
    if said.rope.kind == "yarn":
        said = msgspec.structs.replace(said, rope_scaling=msgspec.structs.replace(said.rope, rope_type="longrope"))
    return describe(said, fused=True, may_rotate_partly=True, window=said.sliding_window)
