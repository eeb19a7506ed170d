"""From a GGUF file's metadata to config.json: every field, and a refusal by name for all that is not understood."""

import os
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import CheckpointError
from common.gguf import Gguf, GgufTensor, Metadata, read_gguf
from common.gguf_config import config_json, generation_config_json
from tests.support.gguf_files import write_gguf

PATH = Path("a/model.gguf")
QWEN = {
    "general.architecture": "qwen3",
    "general.type": "model",
    "qwen3.block_count": 28,
    "qwen3.context_length": 40960,
    "qwen3.embedding_length": 1024,
    "qwen3.feed_forward_length": 3072,
    "qwen3.attention.head_count": 16,
    "qwen3.attention.head_count_kv": 8,
    "qwen3.attention.key_length": 128,
    "qwen3.attention.value_length": 128,
    "qwen3.attention.layer_norm_rms_epsilon": float(np.float32(1e-6)),
    "qwen3.rope.freq_base": 1e6,
    "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>", "a"],
    "tokenizer.ggml.token_type": [3, 3, 3, 1, 1],
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.bos_token_id": 0,
}
EXPECTED = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "dtype": "bfloat16",
    "eos_token_id": [2, 0],
    "bos_token_id": 0,
}
TABLE = {"token_embd.weight": (151936, 1024)}
BIASES = {"blk.0.attn_q.bias": (2048,), "blk.0.attn_output.bias": (1024,)}


def model(metadata: Metadata, shapes: dict[str, tuple[int, ...]] = TABLE) -> Gguf:
    tensors = {name: GgufTensor(name, shape, "F32", PATH, 0, 1) for name, shape in shapes.items()}
    return Gguf(metadata, tensors, {})


def config_with(shapes: dict[str, tuple[int, ...]] = TABLE, **changes: Any) -> dict[str, Any]:
    """The config of a model with keys of the architecture changed (`__` is a dot), or without them (None)."""
    metadata = QWEN | {f"qwen3.{key.replace('__', '.')}": value for key, value in changes.items()}
    return config_json(model({key: value for key, value in metadata.items() if value is not None}, shapes))


def test_a_config_is_as_the_original_says():
    assert config_with() == EXPECTED


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_other_architectures_have_the_same_keys(arch: str):
    metadata = {key.replace("qwen3", arch): value for key, value in QWEN.items()} | {"general.architecture": arch}
    assert config_json(model(metadata)) == EXPECTED | {"model_type": arch}
    windowed = config_json(model(metadata | {f"{arch}.attention.sliding_window": 9}))
    assert (windowed["model_type"], windowed["sliding_window"]) == ("mistral" if arch == "llama" else arch, 9)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"attention__head_count_kv": None}, {"num_key_value_heads": 16}),
        ({"attention__key_length": None, "attention__value_length": None}, {"head_dim": 64}),
        ({"attention__head_count": [16] * 28, "feed_forward_length": [3072] * 28}, {}),
        ({"rope__dimension_count": 128}, {}),
        ({"rope__freq_base": None}, {"rope_theta": 10000.0}),
        ({"vocab_size": 5}, {}),
        (
            {"attention__sliding_window": 4096},
            {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 0},
        ),
        ({"attention__sliding_window": 0}, {}),
        ({"expert_count": 0, "logit_scale": 0.0, "attention__clamp_kqv": 0.0, "deepstack_mapping": [0, 0]}, {}),
        ({"expert_used_count": 2, "rope__scaling__finetuned": True, "attention__causal": True, "pooling_type": 3}, {}),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, {}),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 0.0}, {}),
        ({"rope__scaling__factor": 4.0}, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        ({"rope__scale_linear": 2.0}, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0},
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40960}},
        ),
    ],
)
def test_what_else_a_file_may_say(changes: dict[str, Any], fields: dict[str, Any]):
    assert config_with(**changes) == EXPECTED | fields


def test_yarn_has_all_its_numbers():
    config = config_with(
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=8192,
        rope__scaling__attn_factor=0.5,
        rope__scaling__yarn_beta_fast=16.0,
        rope__scaling__yarn_beta_slow=2.0,
        rope__scaling__yarn_ext_factor=1.0,
    )
    assert config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 8192,
        "attention_factor": 0.5 * (0.1 * log(4) + 1),
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    }


def test_tensors_tell_of_the_head_the_biases_and_the_vocabulary():
    assert config_with({})["vocab_size"] == 5
    assert config_with({}, vocab_size=7)["vocab_size"] == 7
    assert config_with(TABLE | {"output.weight": (151936, 1024)})["tie_word_embeddings"] is False
    assert config_with(TABLE | BIASES)["attention_bias"] is True
    for name, shape in BIASES.items():
        assert config_with(TABLE | {name: shape})["attention_bias"] is False


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("expert_count", 8, "is 8, and what it changes is not supported"),
        ("attention__clamp_kqv", 8.0, "is 8.0, and what it changes"),
        ("logit_scale", 0.5, "is 0.5, and what it changes"),
        ("residual_scale", 0.22, "is 0.22, and what it changes"),
        ("embedding_scale", 12.0, "is 12.0, and what it changes"),
        ("attention__scale", 0.01, "is 0.01, and what it changes"),
        ("attn_logit_softcapping", 30.0, "is 30.0, and what it changes"),
        ("nextn_predict_layers", 1, "is 1, and what it changes"),
        ("attention__sliding_window_pattern", [False, True], r"is \[False, True\], and what it changes"),
        ("rope__dimension_sections", [11, 11, 10, 0], r"is \[11, 11, 10, 0\], and what it changes"),
        ("rope__scaling__yarn_log_multiplier", 0.1, "is 0.1, and what it changes"),
        ("hidden_activation", "gelu", "is 'gelu', and what it changes"),
        ("of_next_year", "yes", "is 'yes', and what it changes"),
        ("attention__causal", False, "is false, and only causal attention"),
        ("pooling_type", 1, "is 1, and only 3 is supported"),
        ("attention__head_count", [16, 8], r"is \[16, 8\]: only layers that are alike"),
        ("attention__head_count", -1, "is -1, and no whole number"),
        ("attention__head_count", 16.0, "is 16.0, and no whole number"),
        ("attention__head_count", True, "is True, and no whole number"),
        ("attention__head_count", [], r"is \[\]: only layers that are alike"),
        ("attention__layer_norm_rms_epsilon", float("nan"), "is nan, and no number"),
        ("rope__freq_base", "10000", "is '10000', and no number"),
        ("attention__value_length", 64, "is 64, and keys have 128 dimensions"),
        ("rope__dimension_count", 64, "is 64, and keys have 128 dimensions"),
        ("vocab_size", -5, "is -5, and no whole number"),
        ("rope__scaling__type", "longrope", "is 'longrope', and only none, linear and yarn"),
        ("rope__scaling__type", 2, "is 2, and no text"),
        ("rope__scaling__attn_factor", 0.5, "is 0.5, and only yarn's is supported"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(key: str, value: Any, fault: str):
    name = key.replace("__", r"\.")
    with pytest.raises(CheckpointError, match=rf"^qwen3\.{name} {fault}"):
        config_with(**{key: value})


@pytest.mark.parametrize("key", ["yarn_ext_factor", "yarn_attn_factor"])
def test_factors_of_yarn_that_programs_take_in_two_ways_are_refused(key: str):
    with pytest.raises(CheckpointError, match=rf"qwen3\.rope\.scaling\.{key} is 0.5, and only 1 is supported"):
        config_with(rope__scaling__type="yarn", **{f"rope__scaling__{key}": 0.5})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"general.architecture": "gemma3"},
            r"the architecture is 'gemma3', which is not supported \(supported: llama, qwen2",
        ),
        ({"general.architecture": ["llama"]}, r"architecture is \['llama'\], which is not supported"),
        ({"general.architecture": None}, "there is no general.architecture"),
        ({"general.type": "adapter"}, "general.type is 'adapter', and only model"),
        ({"qwen3.block_count": None}, "there is no qwen3.block_count"),
        ({"tokenizer.ggml.eos_token_id": "2"}, "eos_token_id is '2', and no whole number"),
        ({"tokenizer.ggml.tokens": 7}, "tokens is 7, and no array"),
        ({"tokenizer.ggml.token_type": "x"}, "token_type is 'x', and no array"),
    ],
)
def test_what_is_no_model_of_these_families_is_refused(changes: Metadata, fault: str):
    metadata = {key: value for key, value in (QWEN | changes).items() if value is not None}
    with pytest.raises(CheckpointError, match=fault):
        config_json(model(metadata))


def test_more_tokens_than_rows_are_refused():
    with pytest.raises(CheckpointError, match="vocab_size is 4, and there are 5 tokens"):
        config_with({"token_embd.weight": (4, 1024)})


def test_rotation_may_be_scaled_by_a_tensor(tmp_path: Path):
    factors = np.array([1, 1.5, 8, 32], np.float32)
    llama = {
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 16,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }

    def config_of(values: np.ndarray, metadata: Metadata = llama, kind: str = "F32") -> dict[str, Any]:
        path = write_gguf(tmp_path / "model.gguf", metadata, {"rope_freqs.weight": (values, kind)})
        return config_json(read_gguf(path))

    assert config_of(factors)["rope_scaling"] == {"rope_type": "divided", "divisors": [1.0, 1.5, 8.0, 32.0]}
    bad = r"^rope_freqs\.weight "
    with pytest.raises(CheckpointError, match=bad + r"is F32 \[3\], and not F32 \[4\]"):
        config_of(factors[:3])
    with pytest.raises(CheckpointError, match=bad + r"is F16 \[4\], and not F32 \[4\]"):
        config_of(factors.astype(np.float16), kind="F16")
    for value in (0, -1, np.nan, np.inf):
        with pytest.raises(CheckpointError, match=bad + "has factors that are no positive numbers"):
            config_of(np.array([1, 1, 1, value], np.float32))
    with pytest.raises(CheckpointError, match=r"scaling\.type is 'linear', and there is rope_freqs\.weight as well"):
        config_of(factors, llama | {"llama.rope.scaling.factor": 2.0})
    model = read_gguf(write_gguf(tmp_path / "model.gguf", llama, {"rope_freqs.weight": (factors, "F32")}))
    os.truncate(tmp_path / "model.gguf", model.tensors["rope_freqs.weight"].offset + 7)
    with pytest.raises(CheckpointError, match=r"became shorter while it was read: it ends in rope_freqs\.weight"):
        config_json(model)


def test_a_files_defaults_for_sampling_are_generation_configs():
    sampling = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "penalty_repeat": 1.05, "mirostat": 2}
    sampling = {f"general.sampling.{key}": float(np.float32(value)) for key, value in sampling.items()}
    sampling["general.sampling.top_k"] = 20
    expected = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.05}
    ends = {"eos_token_id": [2, 0], "bos_token_id": 0}
    assert generation_config_json(model(QWEN | sampling)) == expected | ends
    assert generation_config_json(model(QWEN)) == ends
    assert generation_config_json(model({})) == {}
    for value in ("hot", float("nan"), [0.5]):
        with pytest.raises(CheckpointError, match=r"general\.sampling\.temp is .*, and no number"):
            generation_config_json(model({"general.sampling.temp": value}))


def test_every_end_of_an_answer_is_known():
    more = {"tokenizer.ggml.eot_token_id": 4, "tokenizer.ggml.eom_token_id": 2}
    assert generation_config_json(model(QWEN | more))["eos_token_id"] == [2, 4, 0]
    no_kinds = {key: value for key, value in QWEN.items() if not key.endswith("token_type")}
    assert generation_config_json(model(no_kinds))["eos_token_id"] == [2]
