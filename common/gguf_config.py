"""From a GGUF file's metadata to what config.json and generation_config.json of the same model would say.

Keys are llama.cpp's (gguf-py/gguf/constants.py there), fields are transformers'. A key of the architecture that is
unknown here, and is not nothing, would change what is computed: it is refused by name. Errors name the key;
`gguf_files` puts the file's name before them.
"""

from math import isfinite, log
from typing import Any

import numpy as np

from common.errors import CheckpointError
from common.gguf import Gguf, Metadata
from common.model_reading import open_model_file

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""The architectures that are supported, by the names of llama.cpp; they are the model_types of transformers too."""

EMBEDDING, HEAD, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
# Keys below that of the architecture, whose values are used here, or that change nothing of what is computed.
_USED = {
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "pooling_type"),
    *(f"attention.{key}" for key in ("head_count", "head_count_kv", "key_length", "value_length", "causal")),
    *("attention.layer_norm_rms_epsilon", "attention.sliding_window"),
    *(f"rope.{key}" for key in ("dimension_count", "freq_base", "scale_linear")),
    *(f"rope.scaling.{key}" for key in ("type", "factor", "original_context_length", "attn_factor")),
    *(f"rope.scaling.yarn_{key}" for key in ("attn_factor", "ext_factor", "beta_fast", "beta_slow")),
}
_WITHOUT_EFFECT = {"rope.scaling.finetuned", "tensor_data_layout", "expert_used_count"}  # without an expert_count
_LAST_TOKEN = 3  # of llama.cpp's kinds of pooling
_CONTROL = 3  # of its types of tokens
_ENDS = {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "</s>"}
"""Control tokens that end an answer in one of the families: a file names one of them, and models write others too."""
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def config_json(model: Gguf) -> dict[str, Any]:
    """Say what config.json would say.

    Llama 3.1 and later scale their rotation by a tensor. Its values, one for each frequency, are `rope_scaling`'s
    `divisors`, of the rope_type `divided`, which transformers does not have.

    Args:
        model: what a file says. Where no embedding is among its tensors (they are in a shard that is not there),
            metadata tell the size of the vocabulary, and whether the head is tied is not to be relied on.

    Raises:
        CheckpointError: the architecture is not supported; a key is missing, of another kind than it should be, or
            contradicts another; or a key is unknown and would change what is computed.
    """
    arch = _architecture(model.metadata)
    keys = _Keys(model.metadata, arch)
    keys.refuse_unknown()
    num_heads, hidden_size = keys.whole("attention.head_count"), keys.whole("embedding_length")
    num_kv_heads = keys.whole("attention.head_count_kv", num_heads)
    head_dim = keys.whole("attention.key_length", hidden_size // max(1, num_heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if (found := keys.whole(key, head_dim)) != head_dim:
            raise keys.error(key, f"is {found}, and keys have {head_dim} dimensions: only as many are supported")
    context_length = keys.whole("context_length")
    config: dict[str, Any] = {
        "model_type": arch,
        "vocab_size": _vocab_size(keys, model),
        "hidden_size": hidden_size,
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_hidden_layers": keys.whole("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": context_length,
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": HEAD not in model.tensors,
        "attention_bias": {"blk.0.attn_q.bias", "blk.0.attn_output.bias"} <= model.tensors.keys(),
        "dtype": "bfloat16",
    }
    if (scaling := _rope_scaling(keys, context_length)) is not None:
        config["rope_scaling"] = scaling
    if ROPE_FACTORS in model.tensors:
        if scaling is not None:
            raise keys.error("rope.scaling.type", f"is {scaling['rope_type']!r}, and there is {ROPE_FACTORS} as well")
        config["rope_scaling"] = {"rope_type": "divided", "divisors": _rope_factors(model, head_dim // 2)}
    if window := keys.whole("attention.sliding_window", 0):  # in all layers
        config |= {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
        config["model_type"] = "mistral" if arch == "llama" else arch  # a llama has no window
    return config | _token_ids(model.metadata)


def generation_config_json(model: Gguf) -> dict[str, Any]:
    """Say what generation_config.json would say: the tokens that end an answer, and what the file recommends for
    sampling. Raises CheckpointError as `config_json` does."""
    said = _token_ids(model.metadata)
    for key, field in _SAMPLING.items():
        value = model.metadata.get(name := f"general.sampling.{key}")
        if value is None:
            continue
        if type(value) not in (int, float) or not isfinite(value):
            raise CheckpointError(f"{name} is {value!r:.80}, and no number")
        said[field] = value if type(value) is int else _as_written(value)
    return said


def _architecture(metadata: Metadata) -> str:
    """Return the architecture of a model. Raises CheckpointError if it is not supported, or is not a whole model."""
    if (kind := metadata.get("general.type", "model")) != "model":
        raise CheckpointError(f"general.type is {kind!r:.80}, and only model is supported")
    found = metadata.get("general.architecture")
    if found is None:
        raise CheckpointError("there is no general.architecture")
    if found not in ARCHITECTURES:
        raise CheckpointError(
            f"the architecture is {found!r:.80}, which is not supported (supported: {', '.join(ARCHITECTURES)})"
        )
    return str(found)


class _Keys:
    """The keys of an architecture, without its name."""

    def __init__(self, metadata: Metadata, arch: str) -> None:
        self.arch, self._metadata = arch, metadata

    def error(self, key: str, fault: str) -> CheckpointError:
        """Return an error about a key."""
        return CheckpointError(f"{self.arch}.{key} {fault}")

    def refuse_unknown(self) -> None:
        """Raise CheckpointError for keys with an effect that is not known here."""
        for name, value in self._metadata.items():
            key = name.removeprefix(f"{self.arch}.")
            if key != name and key not in _USED | _WITHOUT_EFFECT and _is_something(value):
                raise self.error(key, f"is {value!r:.80}, and what it changes is not supported")
        if self._get("attention.causal", True) is not True:
            raise self.error("attention.causal", "is false, and only causal attention is supported")
        if self.whole("pooling_type", 0) not in (0, _LAST_TOKEN):
            raise self.error("pooling_type", f"is {self._get('pooling_type', 0)}, and only {_LAST_TOKEN} is supported")

    def whole(self, key: str, absent: int | None = None) -> int:
        """Return a whole number that is not negative."""
        value = self._get(key, absent)
        if type(value) is not int or value < 0:
            raise self.error(key, f"is {value!r:.80}, and no whole number")
        return value

    def number(self, key: str, absent: float | None = None) -> float:
        """Return a finite number."""
        value = self._get(key, absent)
        if type(value) not in (int, float) or not isfinite(value):
            raise self.error(key, f"is {value!r:.80}, and no number")
        return _as_written(float(value))

    def text(self, key: str, absent: str) -> str:
        """Return a word."""
        if not isinstance(value := self._get(key, absent), str):
            raise self.error(key, f"is {value!r:.80}, and no text")
        return value

    def _get(self, key: str, absent: Any) -> Any:
        value = self._metadata.get(f"{self.arch}.{key}", absent)
        if value is None:
            raise CheckpointError(f"there is no {self.arch}.{key}")
        if isinstance(value, list):  # one for each layer
            if len({*map(repr, value)}) != 1:
                raise self.error(key, f"is {value!r:.80}: only layers that are alike are supported")
            return value[0]
        return value


def _is_something(value: Any) -> bool:
    """Tell whether a value differs from what llama.cpp takes where there is none."""
    return any(map(bool, value)) if isinstance(value, list) else bool(value)


def _as_written(number: float) -> float:
    """Return the shortest decimal with this value in 32 bits, in which it is stored: 1e-5, and not 9.99999975e-6."""
    short = np.float32(number)
    return float(str(short)) if float(short) == number else number


def _vocab_size(keys: _Keys, model: Gguf) -> int:
    tokens = _tokenizer_list(model.metadata, "tokens")
    stated = keys.whole("vocab_size", len(tokens))
    embedding = model.tensors.get(EMBEDDING)
    size = stated if embedding is None else embedding.shape[0]
    if len(tokens) > size:
        raise keys.error("vocab_size", f"is {size}, and there are {len(tokens)} tokens")
    return size


def _rope_scaling(keys: _Keys, context_length: int) -> dict[str, Any] | None:
    """Say what config.json's `rope_scaling` would say; None if rotation is not scaled."""
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0)) or 1.0
    kind = keys.text("rope.scaling.type", "linear")
    attention = keys.number("rope.scaling.attn_factor", 1)
    if kind not in ("none", "linear", "yarn"):
        raise keys.error("rope.scaling.type", f"is {kind!r:.80}, and only none, linear and yarn are supported")
    if kind != "yarn":
        if attention != 1:
            raise keys.error("rope.scaling.attn_factor", f"is {attention}, and only yarn's is supported")
        return None if kind == "none" or factor == 1 else {"rope_type": "linear", "factor": factor}
    for key in ("yarn_ext_factor", "yarn_attn_factor"):  # llama.cpp ignores them; transformers' own are others
        if (found := keys.number(f"rope.scaling.{key}", 1)) != 1:
            raise keys.error(f"rope.scaling.{key}", f"is {found}, and only 1 is supported")
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.whole("rope.scaling.original_context_length", context_length),
    }
    for field in ("beta_fast", "beta_slow"):
        if value := keys.number(f"rope.scaling.yarn_{field}", 0):
            scaling[field] = value
    if attention != 1:  # a factor for yarn's own
        scaling["attention_factor"] = attention * (0.1 * log(factor) + 1)
    return scaling


def _rope_factors(model: Gguf, num_frequencies: int) -> list[float]:
    """Read what each frequency is divided by."""
    tensor = model.tensors[ROPE_FACTORS]
    if (tensor.shape, tensor.kind) != ((num_frequencies,), "F32"):
        raise CheckpointError(f"{ROPE_FACTORS} is {tensor.kind} {list(tensor.shape)}, and not F32 [{num_frequencies}]")
    with open_model_file(tensor.path) as (file, _):
        file.seek(tensor.offset)
        stored = file.read(tensor.num_bytes)
    if len(stored) < tensor.num_bytes:
        raise CheckpointError(f"the file became shorter while it was read: it ends in {ROPE_FACTORS}")
    factors = np.frombuffer(stored, np.dtype("<f4"))
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise CheckpointError(f"{ROPE_FACTORS} has factors that are no positive numbers")
    return [float(factor) for factor in factors]


def _token_ids(metadata: Metadata) -> dict[str, Any]:
    """Name the token that begins a text, and those that end an answer."""
    ids = {}
    for key in ("bos", "eos", "eot", "eom"):
        value = metadata.get(name := f"tokenizer.ggml.{key}_token_id")
        if value is not None and type(value) is not int:
            raise CheckpointError(f"{name} is {value!r:.80}, and no whole number")
        ids[key] = value
    tokens, kinds = (_tokenizer_list(metadata, key) for key in ("tokens", "token_type"))
    ends = [ids[key] for key in ("eos", "eot", "eom") if ids[key] is not None]
    ends += [
        i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind == _CONTROL and token in _ENDS
    ]
    said: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(ends))} if ends else {}
    return said if ids["bos"] is None else said | {"bos_token_id": ids["bos"]}


def _tokenizer_list(metadata: Metadata, key: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{key}", [])
    if not isinstance(value, list):
        raise CheckpointError(f"tokenizer.ggml.{key} is {value!r:.80}, and no array")
    return value
