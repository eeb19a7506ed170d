"""The fields of a config.json, reduced to what serving needs and checked against what is supported."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from common.messages import MAX_HIDDEN_SIZE
from common.tokenizer_file import MAX_VOCAB_SIZE
from executor_svc.model.config import DecoderConfig, MoeConfig, RopeConfig

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
_ROPE_TYPES = ("default", "linear", "yarn", "llama3", "longrope", "divided")
_SCALED = ("linear", "yarn", "llama3")
_NULL_SAYS = ("head_dim", "sliding_window")  # fields whose null says something else than no field


class RopeJson(msgspec.Struct, frozen=True, kw_only=True):
    """`rope_parameters`, or `rope_scaling` as it was called before transformers 5."""

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
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factor: list[float] | None = None
    divisors: list[float] | None = None  # of a GGUF file
    partial_rotary_factor: float | None = None
    full_attention: dict[str, Any] | None = None  # what is so named is of the layers of one kind
    sliding_attention: dict[str, Any] | None = None

    @property
    def kind(self) -> str:
        """The rope type; longrope was called `su` at first."""
        kind = self.rope_type or self.type or "default"
        return "longrope" if kind == "su" else kind


class ConfigJson(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of config.json that matter here, with transformers' defaults where it has sensible ones.

    A family's own defaults take the place of these where it has other ones.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    original_max_position_embeddings: int | None = None
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    is_causal: bool = True
    use_sliding_window: bool = False
    sliding_window: int | None = None
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    rope_theta: float | None = None
    rope_scaling: RopeJson | None = None
    rope_parameters: RopeJson | None = None
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

    @property
    def rope(self) -> RopeJson:
        """Where the file says how to rotate."""
        return self.rope_scaling or self.rope_parameters or RopeJson()


class ConfigFault(Exception):
    """A configuration cannot be served. The text goes on after the file's name."""


def read_fields(content: Mapping[str, Any], defaults: Mapping[str, Any]) -> ConfigJson:
    """Read a config.json's content.

    Args:
        defaults: what the fields that it does not have mean for its family.

    Raises:
        ConfigFault: a size is far beyond those of models.
        ValidationError: a field is missing, or of another type (msgspec's).
    """
    said = {name: value for name, value in content.items() if value not in (None, {}) or name in _NULL_SAYS}
    fields = msgspec.convert({**defaults, **said}, ConfigJson)
    _check_limits(fields)
    return fields


def describe(
    said: ConfigJson,
    *,
    qk_norm: bool = False,
    qkv_bias: bool | None = None,
    output_bias: bool | None = None,
    fused: bool = False,
    may_rotate_partly: bool = False,
    window: int | None = None,
    moe: MoeConfig | None = None,
    unsupported: Sequence[str] = (),
) -> DecoderConfig:
    """Describe a model by its config.json, and by what its family says of it.

    Args:
        said: the file's content.
        qk_norm, fused, moe: as `DecoderConfig` has them.
        qkv_bias, output_bias: likewise; None where `attention_bias` says it, one field for all of them.
        may_rotate_partly: whether the family has rotations of a part of a head.
        window: positions that a token sees at most; None for all.
        unsupported: what the file asks for and only this family can.

    Raises:
        ConfigFault: it asks for what is not supported, or for numbers that nothing can be computed with.
    """
    found = [*unsupported, *_unsupported(said, moe, may_rotate_partly=may_rotate_partly)]
    if found:
        raise ConfigFault(f"asks for what is not supported: {'; '.join(found)}")
    head_dim = said.head_dim or said.hidden_size // max(1, said.num_attention_heads)
    rope = _rope(said, head_dim)
    _check_rope(rope, head_dim)
    max_positions = said.max_position_embeddings
    if rope.rope_type == "yarn":
        max_positions = max(max_positions, int(rope.factor * rope.original_max_positions))
    exact, because = max_positions, ""
    if said.rope.kind == "longrope" and rope.original_max_positions < exact:
        exact, because = rope.original_max_positions, "longrope has other factors beyond"
    if window is not None and window < exact:
        exact, because = window, "attention has a sliding window"
    config = DecoderConfig(
        vocab_size=said.vocab_size,
        hidden_size=said.hidden_size,
        intermediate_size=said.intermediate_size,
        moe=moe,
        num_layers=said.num_hidden_layers,
        num_heads=said.num_attention_heads,
        num_kv_heads=said.num_key_value_heads or said.num_attention_heads,
        head_dim=head_dim,
        rms_norm_eps=said.rms_norm_eps,
        max_positions=max_positions,
        exact_positions=exact,
        exact_because=because,
        tied=said.tie_word_embeddings,
        qk_norm=qk_norm,
        qkv_bias=said.attention_bias if qkv_bias is None else qkv_bias,
        output_bias=said.attention_bias if output_bias is None else output_bias,
        fused=fused,
        rope=rope,
        dtype=(said.dtype or said.torch_dtype or "").removeprefix("torch."),
    )
    _check_sizes(config)
    return config


def _check_limits(said: ConfigJson) -> None:
    """Raise ConfigFault for sizes far beyond those of models, before anything is made in these sizes."""
    num_experts = said.num_experts or said.num_local_experts or 0
    for field, value, limit in (
        *((field, getattr(said, field), limit) for field, limit in _LIMITS.items()),
        ("num_hidden_layers * num_experts", said.num_hidden_layers * num_experts, MAX_EXPERTS),
    ):
        if isinstance(value, int) and value > limit:
            raise ConfigFault(f"has {field} {value}, the limit is {limit}")


def _unsupported(said: ConfigJson, moe: MoeConfig | None, *, may_rotate_partly: bool) -> list[str]:
    found, rope = [], said.rope
    if said.hidden_act != "silu":
        found.append(f"hidden_act {said.hidden_act!r} (only 'silu')")
    if said.quantization_config is not None:
        method = said.quantization_config.get("quant_method", "unknown")
        found.append(f"quantized weights ({method})")
    if said.mlp_bias:
        found.append("mlp_bias (biases in the MLP)")
    if not said.is_causal:
        found.append("is_causal false (attention to tokens that follow)")
    num_experts = said.num_experts or said.num_local_experts
    if num_experts and moe is None:
        found.append(f"a mixture of {num_experts} experts")
    if rope.kind not in _ROPE_TYPES:
        found.append(f"rope type {rope.kind!r} (only {', '.join(_ROPE_TYPES[:-1])})")
    if rope.kind in _SCALED and rope.factor is None:
        found.append(f"{rope.kind} without a factor")
    if rope.kind == "longrope" and rope.short_factor is None:
        found.append("longrope without a short_factor")
    if (factor := rope.partial_rotary_factor or said.partial_rotary_factor or 1.0) != 1.0 and not may_rotate_partly:
        found.append(f"partial_rotary_factor {factor} (only 1)")
    if rope.full_attention or rope.sliding_attention:
        found.append("rope parameters of single kinds of layers")
    left_out = said.rope_parameters if said.rope_scaling is not None else None
    if left_out is not None and left_out.rope_theta and not (rope.rope_theta or said.rope_theta):
        found.append(
            f"rope_scaling, which takes the place of rope_parameters, without their rope_theta {left_out.rope_theta:g} "
            "(write all of it into rope_parameters)"
        )
    return found


def _rope(said: ConfigJson, head_dim: int) -> RopeConfig:
    rope = said.rope
    part = rope.partial_rotary_factor or said.partial_rotary_factor or 1.0
    theta = rope.rope_theta or said.rope_theta or 10_000.0
    rotated = 0 if part == 1.0 else int(head_dim * part)
    # In transformers' order: a field beside those of the rope takes the place of the rope's own.
    original = said.original_max_position_embeddings or rope.original_max_position_embeddings
    original = original or said.max_position_embeddings
    described = partial(RopeConfig, theta=theta, rotated=rotated)
    match rope.kind:
        case "linear":
            return described(rope_type="linear", factor=rope.factor or 1.0)
        case "llama3":
            return described(
                rope_type="llama3",
                factor=rope.factor or 1.0,
                original_max_positions=original,
                low_freq_factor=rope.low_freq_factor,
                high_freq_factor=rope.high_freq_factor,
            )
        case "yarn":
            return described(
                rope_type="yarn",
                factor=rope.factor or 1.0,
                original_max_positions=original,
                attention_factor=rope.attention_factor,
                beta_fast=rope.beta_fast or 32.0,
                beta_slow=rope.beta_slow or 1.0,
                mscale=rope.mscale,
                mscale_all_dim=rope.mscale_all_dim,
                truncate=bool(rope.truncate),
            )
        case "longrope":
            attention_factor, divisors = _longrope_attention(said, original), tuple(rope.short_factor or ())
            return described(
                rope_type="divided",
                original_max_positions=original,
                attention_factor=attention_factor,
                divisors=divisors,
            )
        case "divided":
            return described(rope_type="divided", divisors=tuple(rope.divisors or ()))
        case _:
            return described(rope_type="default")


def _longrope_attention(said: ConfigJson, original: int) -> float:
    """LongRoPE's scale of cosines and sines, for contexts of any length (Ding et al. 2024, arXiv:2402.13753)."""
    if said.rope.attention_factor is not None:
        return said.rope.attention_factor
    factor = said.rope.factor or said.max_position_embeddings / max(original, 1)
    return 1.0 if factor <= 1.0 or original < 2 else math.sqrt(1 + math.log(factor) / math.log(original))


def _check_rope(rope: RopeConfig, head_dim: int) -> None:
    """Raise ConfigFault for numbers that angles cannot be computed with."""
    least = {"theta": 1.0, "factor": 0.0, "beta_fast": 0.0, "beta_slow": 0.0, "low_freq_factor": 0.0}
    if rope.rope_type in ("yarn", "llama3"):
        least["original_max_positions"] = 0
    for field, bound in least.items():
        if getattr(rope, field) <= bound:
            raise ConfigFault(f"has rope {field} {getattr(rope, field)}; it must be above {bound:g}")
    if rope.high_freq_factor <= rope.low_freq_factor:
        raise ConfigFault(
            f"has rope high_freq_factor {rope.high_freq_factor:g}; it must be above low_freq_factor "
            f"{rope.low_freq_factor:g}"
        )
    if (positions := rope.factor * rope.original_max_positions) > MAX_POSITIONS:
        raise ConfigFault(f"has {positions:g} positions by its rope, the limit is {MAX_POSITIONS}")
    rotated = rope.rotated or head_dim
    if not 0 <= rotated <= head_dim or rotated % 2:
        raise ConfigFault(f"rotates {rotated} of a head's {head_dim} dimensions; rotary embedding needs an even number")
    if rope.rope_type == "divided" and len(rope.divisors) != rotated // 2:
        raise ConfigFault(f"has {len(rope.divisors)} rope factors for {rotated // 2} pairs of dimensions")
    if rope.divisors and not all(0 < divisor < math.inf for divisor in rope.divisors):
        raise ConfigFault(f"has a rope factor {min(rope.divisors)}; all must be above 0")


def _check_sizes(config: DecoderConfig) -> None:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
    for field in (*sizes, "max_positions", "exact_positions"):
        if getattr(config, field) < 1:
            raise ConfigFault(f"has {field} {getattr(config, field)}; it must be at least 1")
    if config.num_heads % config.num_kv_heads:
        raise ConfigFault(
            f"has {config.num_heads} attention heads, not a multiple of its {config.num_kv_heads} KV heads"
        )
    if config.moe is not None:
        for field in ("num_experts", "num_chosen", "intermediate_size"):
            if getattr(config.moe, field) < 1:
                raise ConfigFault(f"has moe.{field} {getattr(config.moe, field)}; it must be at least 1")
        if config.moe.num_chosen > config.moe.num_experts:
            raise ConfigFault(
                f"has {config.moe.num_experts} experts, of which {config.moe.num_chosen} compute each token"
            )
    if config.head_dim % 2:
        raise ConfigFault(f"has head_dim {config.head_dim}; rotary embedding needs an even one")
