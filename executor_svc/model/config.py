"""A checkpoint's config.json, reduced to what serving needs and checked against what is supported."""

from pathlib import Path
from typing import Any

import msgspec

from common.errors import CheckpointError
from common.messages import MAX_HIDDEN_SIZE
from common.model_reading import read_model_json
from common.tokenizer_file import MAX_VOCAB_SIZE

MOE = "qwen3_moe"
"""The model_type of a Qwen3 with mixtures of experts."""

MAX_POSITIONS = 2**27
MAX_EXPERTS = 2**17  # of all layers together, each with three matrices; 23,000 are known
_LIMITS = {  # of what is known: 262,144 tokens; 18,432, 53,248 and 126 of Llama 3.1 405B; 10,485,760 positions
    "vocab_size": MAX_VOCAB_SIZE,
    "hidden_size": MAX_HIDDEN_SIZE,
    "intermediate_size": 2**20,
    "moe_intermediate_size": 2**20,
    "num_hidden_layers": 2**10,
    "num_attention_heads": 2**12,
    "num_key_value_heads": 2**12,
    "head_dim": 2**12,
    "max_position_embeddings": MAX_POSITIONS,
}


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding, as transformers' `rope_parameters` describe it.

    Attributes:
        rope_type: `default` or `yarn`.
        theta: base of the frequencies.
        factor: yarn: how many times longer than in pretraining a context may be.
        original_max_positions: yarn: positions in pretraining.
        attention_factor: yarn: scale of cosines and sines; None derives it from factor, mscale and mscale_all_dim.
        beta_fast, beta_slow: yarn: rotations over the pretraining context above (below) which a dimension is
            left alone (fully interpolated).
        truncate: yarn: whether the bounds of that range are rounded to whole dimensions.
    """

    rope_type: str
    theta: float
    factor: float = 1.0
    original_max_positions: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class MoeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The mixtures of experts in a Qwen3-MoE.

    Attributes:
        num_experts: in each sparse layer.
        num_chosen: experts that compute a token.
        intermediate_size: of one expert.
        renormalized: whether the chosen experts' weights are made to sum to 1.
        sparse_layers: layers with a mixture, ascending; the others have a dense MLP.
    """

    num_experts: int
    num_chosen: int
    intermediate_size: int
    renormalized: bool
    sparse_layers: tuple[int, ...]


class Qwen3Config(msgspec.Struct, frozen=True, kw_only=True):
    """A Qwen3 model. Sizes are counts of elements; `head_dim * num_heads` need not be `hidden_size`.

    Attributes:
        intermediate_size: of dense MLPs.
        moe: None where every layer's MLP is dense.
        max_positions: positions a sequence may have, those yarn adds included.
        tied: whether the output projection is the embedding table.
        dtype: what the checkpoint says it is stored as; empty if it does not say.
        score_token: of a classifier with one label, the token whose logit its score is; the logits of others are 0.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe: MoeConfig | None
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_positions: int
    tied: bool
    attention_bias: bool
    rope: RopeConfig
    dtype: str
    score_token: int | None = None


class _RopeJson(msgspec.Struct, frozen=True, kw_only=True):
    rope_type: str | None = None
    type: str | None = None  # the name of rope_type before 2024
    rope_theta: float | None = None
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = True  # transformers takes null for false
    partial_rotary_factor: float | None = None
    full_attention: dict[str, Any] | None = None  # what is so named is of the layers of one kind
    sliding_attention: dict[str, Any] | None = None


class _ConfigJson(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of config.json that matter here, with transformers' defaults where it has sensible ones."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | msgspec.UnsetType | None = msgspec.UNSET
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: int | None = None
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    rope_theta: float | None = None
    rope_scaling: _RopeJson | None = None
    rope_parameters: _RopeJson | None = None
    partial_rotary_factor: float | None = None
    quantization_config: dict[str, Any] | None = None
    num_experts: int | None = None
    num_local_experts: int | None = None  # the name of num_experts since transformers 5
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None


def read_config(folder: Path) -> Qwen3Config:
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
    if model_type not in ("qwen3", MOE):  # before other fields: those of another model mean nothing here
        raise CheckpointError(f"{path} has model_type {model_type!r:.80}; only 'qwen3' and {MOE!r} can be served")
    try:
        raw = msgspec.convert(_said(content), _ConfigJson)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path} is not a Qwen3 configuration: {error}") from error
    _check_limits(path, raw)
    rope_json = raw.rope_scaling or raw.rope_parameters or _RopeJson()
    unsupported = _unsupported(raw, rope_json)
    if unsupported:
        raise CheckpointError(f"{path} asks for what is not supported: {'; '.join(unsupported)}")
    rope = _rope(raw, rope_json)
    _check_rope(path, rope)
    config = Qwen3Config(
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        moe=_moe(raw),
        num_layers=raw.num_hidden_layers,
        num_heads=raw.num_attention_heads,
        num_kv_heads=raw.num_key_value_heads or raw.num_attention_heads,
        head_dim=_head_dim(raw),
        rms_norm_eps=raw.rms_norm_eps,
        max_positions=max(raw.max_position_embeddings, int(rope.factor * rope.original_max_positions)),
        tied=raw.tie_word_embeddings,
        attention_bias=raw.attention_bias,
        rope=rope,
        dtype=(raw.dtype or raw.torch_dtype or "").removeprefix("torch."),
    )
    _check_sizes(path, config)
    return config


def _said(content: dict[str, Any]) -> dict[str, Any]:
    """A configuration without nulls and empty objects: fields with defaults have these then.
    Only a `head_dim` that is null says something else than none."""
    return {name: value for name, value in content.items() if value not in (None, {}) or name == "head_dim"}


def _check_limits(path: Path, raw: _ConfigJson) -> None:
    """Raise CheckpointError for sizes far beyond those of models, before anything is made in these sizes."""
    num_experts = raw.num_experts or raw.num_local_experts or 0
    for field, value, limit in (
        *((field, getattr(raw, field), limit) for field, limit in _LIMITS.items()),
        ("num_hidden_layers * num_experts", raw.num_hidden_layers * num_experts, MAX_EXPERTS),
    ):
        if isinstance(value, int) and value > limit:
            raise CheckpointError(f"{path} has {field} {value}, the limit is {limit}")


def _unsupported(raw: _ConfigJson, rope: _RopeJson) -> list[str]:
    found = []
    if raw.hidden_act != "silu":
        found.append(f"hidden_act {raw.hidden_act!r} (only 'silu')")
    if raw.quantization_config is not None:
        method = raw.quantization_config.get("quant_method", "unknown")
        found.append(f"quantized weights ({method})")
    if raw.model_type != MOE and raw.num_experts:
        found.append(f"a mixture of {raw.num_experts} experts")
    if raw.decoder_sparse_step < 1:
        found.append(f"decoder_sparse_step {raw.decoder_sparse_step} (only 1 and above)")
    if raw.model_type == MOE:
        windowed = True  # in every layer, says transformers
    elif raw.layer_types is not None:
        windowed = any(kind != "full_attention" for kind in raw.layer_types)
    else:
        windowed = raw.max_window_layers < raw.num_hidden_layers
    if raw.use_sliding_window and raw.sliding_window is not None and windowed:
        found.append(f"sliding-window attention ({raw.sliding_window} positions)")
    rope_type = rope.rope_type or rope.type or "default"
    if rope_type not in ("default", "yarn"):
        found.append(f"rope type {rope_type!r} (only 'default' and 'yarn')")
    if rope_type == "yarn" and rope.factor is None:
        found.append("yarn without a factor")
    if (factor := rope.partial_rotary_factor or raw.partial_rotary_factor or 1.0) != 1.0:
        found.append(f"partial_rotary_factor {factor} (only 1)")
    if rope.full_attention or rope.sliding_attention:
        found.append("rope parameters of single kinds of layers")
    left_out = raw.rope_parameters if raw.rope_scaling is not None else None
    if left_out is not None and left_out.rope_theta and not (rope.rope_theta or raw.rope_theta):
        found.append(
            f"rope_scaling, which takes the place of rope_parameters, without their rope_theta {left_out.rope_theta:g} "
            "(write all of it into rope_parameters)"
        )
    return found


def _head_dim(raw: _ConfigJson) -> int:
    if raw.head_dim is msgspec.UNSET and raw.model_type != MOE:
        return 128  # transformers' default for dense models only
    return raw.head_dim or raw.hidden_size // max(1, raw.num_attention_heads)


def _moe(raw: _ConfigJson) -> MoeConfig | None:
    num_experts = raw.num_experts or raw.num_local_experts
    if raw.model_type != MOE or not num_experts:
        return None
    step = raw.decoder_sparse_step
    dense = set(raw.mlp_only_layers or [])
    sparse = tuple(i for i in range(raw.num_hidden_layers) if i not in dense and (i + 1) % step == 0)
    if not sparse:
        return None
    return MoeConfig(
        num_experts=num_experts,
        num_chosen=raw.num_experts_per_tok,
        intermediate_size=raw.moe_intermediate_size,
        renormalized=raw.norm_topk_prob,
        sparse_layers=sparse,
    )


def _rope(raw: _ConfigJson, rope: _RopeJson) -> RopeConfig:
    theta = rope.rope_theta or raw.rope_theta or 10_000.0
    if (rope.rope_type or rope.type or "default") == "default":
        return RopeConfig(rope_type="default", theta=theta)
    return RopeConfig(
        rope_type="yarn",
        theta=theta,
        factor=rope.factor or 1.0,
        original_max_positions=rope.original_max_position_embeddings or raw.max_position_embeddings,
        attention_factor=rope.attention_factor,
        beta_fast=rope.beta_fast or 32.0,
        beta_slow=rope.beta_slow or 1.0,
        mscale=rope.mscale,
        mscale_all_dim=rope.mscale_all_dim,
        truncate=bool(rope.truncate),
    )


def _check_rope(path: Path, rope: RopeConfig) -> None:
    """Raise CheckpointError for numbers that angles cannot be computed with."""
    least = {"theta": 1.0, "factor": 0.0, "beta_fast": 0.0, "beta_slow": 0.0}
    if rope.rope_type == "yarn":
        least["original_max_positions"] = 0
    for field, bound in least.items():
        if getattr(rope, field) <= bound:
            raise CheckpointError(f"{path} has rope {field} {getattr(rope, field)}; it must be above {bound:g}")
    if (positions := rope.factor * rope.original_max_positions) > MAX_POSITIONS:
        raise CheckpointError(f"{path} has {positions:g} positions by its rope, the limit is {MAX_POSITIONS}")


def _check_sizes(path: Path, config: Qwen3Config) -> None:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
    for field in (*sizes, "max_positions"):
        if getattr(config, field) < 1:
            raise CheckpointError(f"{path} has {field} {getattr(config, field)}; it must be at least 1")
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{path} has {config.num_heads} attention heads, not a multiple of its {config.num_kv_heads} KV heads"
        )
    if config.moe is not None:
        for field in ("num_experts", "num_chosen", "intermediate_size"):
            if getattr(config.moe, field) < 1:
                raise CheckpointError(f"{path} has moe.{field} {getattr(config.moe, field)}; it must be at least 1")
        if config.moe.num_chosen > config.moe.num_experts:
            raise CheckpointError(
                f"{path} has {config.moe.num_experts} experts, of which {config.moe.num_chosen} compute each token"
            )
    if config.head_dim % 2:
        raise CheckpointError(f"{path} has head_dim {config.head_dim}; rotary embedding needs an even one")
