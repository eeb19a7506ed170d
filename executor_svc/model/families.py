"""The families of models: what the fields of a config.json mean for each `model_type`.

To add a family takes an entry here, its test (tests/executor_svc/families) and a row in docs/models.md.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from common.errors import CheckpointError
from common.model_reading import read_model_json
from executor_svc.model.config import DecoderConfig, MoeConfig
from executor_svc.model.config_json import ConfigFault, ConfigJson, describe, read_fields


def read_config(folder: Path) -> DecoderConfig:
    """Read `folder`'s config.json.

    Raises:
        CheckpointError: it is missing or malformed, or asks for something that is not supported; the message names
            everything of that kind at once.
    """
    path = folder / "config.json"
    content = read_model_json(path, dict[str, Any])
    if content is None:
        raise CheckpointError(f"there is no {path}")
    model_type = content.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:  # before other fields: those of another model mean nothing here
        served = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"{path} has model_type {model_type!r:.80}; only {served} can be served")
    try:
        return family.read(read_fields(content, family.defaults))
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path} is not a configuration of {model_type}: {error}") from error
    except ConfigFault as fault:
        raise CheckpointError(f"{path} {fault}") from fault


class Family(NamedTuple):
    """How the config.json of a family is read.

    Attributes:
        read: describes a model, as `describe` does. Raises ConfigFault.
        defaults: fields that mean this where the file has none.
    """

    read: Callable[[ConfigJson], DecoderConfig]
    defaults: Mapping[str, Any] = {}


def _mistral(said: ConfigJson) -> DecoderConfig:
    """Mistral and Mistral Nemo (Jiang et al. 2023, arXiv:2310.06825): the first ones have a sliding window."""
    return describe(said, window=said.sliding_window)


def _phi3(said: ConfigJson) -> DecoderConfig:
    """Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini (arXiv:2404.14219, arXiv:2503.01743): fused projections, and rotations
    of a part of a head. The first of these models called LongRoPE `yarn`."""
    if said.rope.kind == "yarn":
        said = msgspec.structs.replace(said, rope_scaling=msgspec.structs.replace(said.rope, rope_type="longrope"))
    return describe(said, fused=True, may_rotate_partly=True, window=said.sliding_window)


def _qwen2(said: ConfigJson) -> DecoderConfig:
    """Qwen2 and Qwen2.5 (arXiv:2407.10671, arXiv:2412.15115): q, k and v have biases."""
    return describe(said, qkv_bias=True, output_bias=False, window=_window_of_some(said))


def _qwen3(said: ConfigJson) -> DecoderConfig:
    """Qwen3 (Yang et al. 2025, arXiv:2505.09388): heads of q and k are normalized."""
    return describe(said, qk_norm=True, window=_window_of_some(said))


def _qwen3_moe(said: ConfigJson) -> DecoderConfig:
    """Qwen3's mixtures of experts. A sliding window is that of every layer here, as in transformers."""
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


def _window_of_some(said: ConfigJson) -> int | None:
    """The sliding window of a model of which only some layers may have one; None where no layer has one."""
    if not said.use_sliding_window:
        return None
    if said.layer_types is not None:
        is_windowed = any(kind != "full_attention" for kind in said.layer_types)
    else:
        is_windowed = said.max_window_layers < said.num_hidden_layers
    return said.sliding_window if is_windowed else None


FAMILIES = {
    # Llama 2 to 3.3, and the many models that call themselves one (arXiv:2307.09288, arXiv:2407.21783)
    "llama": Family(describe, {"max_position_embeddings": 2048}),
    "mistral": Family(
        _mistral, {"max_position_embeddings": 4096 * 32, "num_key_value_heads": 8, "sliding_window": 4096}
    ),
    "phi3": Family(
        _phi3,
        {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    ),
    "qwen2": Family(_qwen2, {"sliding_window": 4096}),
    "qwen3": Family(_qwen3, {"head_dim": 128}),
    "qwen3_moe": Family(_qwen3_moe),
}
