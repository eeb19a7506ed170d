"""A decoder as it is described: all that decides its computation, whatever its family is called.

A family's reader makes the description from config.json (`families.py`); everything else computes by
the description and knows no family.
"""

import msgspec


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding, as transformers' `rope_parameters` describe it.

    Attributes:
        rope_type: `default`, `linear`, `yarn`, `llama3`, or `divided`.
        theta: base of the frequencies.
        factor: linear, yarn, llama3: how many times longer than in pretraining a context may be.
        original_max_positions: yarn, llama3: positions in pretraining.
        attention_factor: scale of cosines and sines; None is 1, and derived from factor, mscale and mscale_all_dim for
            yarn.
        beta_fast, beta_slow: yarn: rotations over the pretraining context above (below) which a dimension is
            left alone (fully interpolated).
        truncate: yarn: whether the bounds of that range are rounded to whole dimensions.
        low_freq_factor, high_freq_factor: llama3: rotations over the pretraining context below (above) which a
            dimension is fully interpolated (left alone).
        divisors: divided: of each pair's frequency. LongRoPE's factors for short contexts are such, and those of GGUF
            files that have their frequencies in a tensor.
        rotated: dimensions of a head that are rotated, the first ones; 0 for all.
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
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    divisors: tuple[float, ...] = ()
    rotated: int = 0


class MoeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The mixtures of experts in a decoder.

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


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder. Sizes are counts of elements; `head_dim * num_heads` need not be `hidden_size`.

    Attributes:
        intermediate_size: of dense MLPs.
        moe: None where every layer's MLP is dense.
        max_positions: positions a sequence may have, those that the rotary embedding adds included.
        exact_positions: how many of them are computed as the model means it; fewer where it has a sliding window, say.
        exact_because: what limits them, in words for a message; empty if nothing does.
        tied: whether the output projection is the embedding table.
        qk_norm: whether each head of q and k is normalized.
        qkv_bias, output_bias: whether attention's projections have biases.
        fused: whether the checkpoint has q, k and v as one tensor, and gate and up as one.
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
    exact_positions: int
    exact_because: str = ""
    tied: bool
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    fused: bool
    rope: RopeConfig
    dtype: str
    score_token: int | None = None

    @property
    def rotated(self) -> int:
        """Dimensions of a head that are rotated."""
        return self.rope.rotated or self.head_dim


_ALWAYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "moe",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "rms_norm_eps",
    "tied",
)
_ROPE_ALWAYS = (
    "rope_type",
    "theta",
    "factor",
    "original_max_positions",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
)
_ROPE_DEFAULTS = msgspec.to_builtins(RopeConfig(rope_type="default", theta=1.0))


def identity(config: DecoderConfig) -> bytes:
    """The facts that decide the tokens, as canonical JSON.

    They are named one by one: a field that is added changes no fingerprint of a model that was served before. A fact
    that came later stands here only where it differs from what every Qwen3 has.
    """
    facts = {name: getattr(config, name) for name in _ALWAYS}
    facts["attention_bias"] = config.qkv_bias  # the name that Qwen3's config.json has for both biases
    rope = {name: getattr(config.rope, name) for name in _ROPE_ALWAYS}
    for name in ("low_freq_factor", "high_freq_factor", "divisors", "rotated"):
        if (value := getattr(config.rope, name)) != _ROPE_DEFAULTS[name]:
            rope[name] = value
    later = {
        "qk_norm": (config.qk_norm, True),
        "output_bias": (config.output_bias, config.qkv_bias),
        "score_token": (config.score_token, None),
    }
    facts |= {name: value for name, (value, usual) in later.items() if value != usual}
    return msgspec.json.encode(msgspec.to_builtins({**facts, "rope": rope}), order="deterministic")
