"""Llama 2 to 3.3, and the many models that call themselves one (arXiv:2307.09288, arXiv:2407.21783)."""

from executor_svc.model.config import DecoderConfig
from executor_svc.model.config_file import ConfigJson, describe

DEFAULTS = {"max_position_embeddings": 2048}


def read(said: ConfigJson) -> DecoderConfig:
    """See `Family.read`."""
    return describe(said)
