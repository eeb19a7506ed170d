"""config.json: what is read from it, and what is refused with which words."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from common.errors import CheckpointError
from common.model_files import DEMO_MODEL_DIR
from executor_svc.model.config import MoeConfig, RopeConfig
from executor_svc.model.families import read_config
from executor_svc.model.rope import inverse_frequencies
from tests.executor_svc.published_configs import QWEN3_30B_A3B, QWEN3_32B


def write(folder: Path, base: dict[str, Any] = QWEN3_32B, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**base, **changes}))
    return folder


def test_published_layout(tmp_path: Path) -> None:
    config = read_config(write(tmp_path))
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (64, 64, 8, 128)
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (5120, 25600, 151936)
    assert (config.tied, config.dtype, config.max_positions) == (False, "bfloat16", 40960)
    assert config.rope == RopeConfig(rope_type="default", theta=1_000_000)
    assert config.moe is None


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts"])
def test_mixture_of_experts(tmp_path: Path, key: str) -> None:
    """transformers 5 has renamed the number of experts."""
    config = read_config(write(tmp_path, QWEN3_30B_A3B, **{"num_experts": None, key: 128}))
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (48, 32, 4, 128)
    assert config.moe == MoeConfig(
        num_experts=128, num_chosen=8, intermediate_size=768, renormalized=True, sparse_layers=tuple(range(48))
    )


@pytest.mark.parametrize(
    ("changes", "sparse_layers"),
    [
        ({"mlp_only_layers": [0, 2]}, (1, 3, 4, 5)),
        ({"decoder_sparse_step": 2}, (1, 3, 5)),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [5]}, (2,)),
        ({"mlp_only_layers": None}, (0, 1, 2, 3, 4, 5)),
        ({"decoder_sparse_step": 7}, None),
        ({"num_experts": 0}, None),
    ],
    ids=str,
)
def test_sparse_layers(tmp_path: Path, changes: dict[str, Any], sparse_layers: tuple[int, ...] | None) -> None:
    moe = read_config(write(tmp_path, QWEN3_30B_A3B, num_hidden_layers=6, **changes)).moe
    assert sparse_layers == (moe and moe.sparse_layers)


def test_head_dim_that_is_not_said(tmp_path: Path) -> None:
    """transformers takes 128 for dense models, and hidden_size / heads for mixtures."""
    for base, head_dim in ((QWEN3_32B, 128), (QWEN3_30B_A3B, 64)):
        folder = write(tmp_path, {key: value for key, value in base.items() if key != "head_dim"})
        assert read_config(folder).head_dim == head_dim
    assert read_config(write(tmp_path, head_dim=None)).head_dim == 80


def test_transformers_5_layout(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 5e6}
    folder = write(tmp_path, rope_parameters=rope, torch_dtype=None, dtype="float16", rope_theta=None)
    config = read_config(folder)
    assert config.rope == RopeConfig(rope_type="default", theta=5e6)
    assert config.dtype == "float16"


@pytest.mark.parametrize("type_key", ["rope_type", "type"])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_yarn_in_both_layouts(tmp_path: Path, key: str, type_key: str) -> None:
    """The README of Qwen3 asks for just this to serve 131072 positions."""
    yarn = {type_key: "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = read_config(write(tmp_path, **{key: yarn}))
    assert config.rope == RopeConfig(rope_type="yarn", theta=1e6, factor=4.0, original_max_positions=32768)
    assert config.max_positions == 131072


DEFAULT = {"rope_type": "default", "rope_theta": 1e6}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": YARN},
        {"rope_parameters": DEFAULT, "rope_scaling": YARN},
        {"rope_parameters": DEFAULT, "rope_scaling": {**YARN, "rope_theta": 7e6}},
        {"rope_parameters": {**YARN, "rope_theta": 2e6}, "rope_scaling": {"rope_type": "default"}},
        {"rope_parameters": DEFAULT, "rope_scaling": {}},
        {"rope_parameters": DEFAULT, "rope_scaling": None},
        {"rope_parameters": {**YARN, "rope_theta": 2e6}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_scaling": {"type": "yarn", "factor": 2}},
        {"rope_scaling": {"type": "linear", "factor": 2.5}},
        {"rope_scaling": LLAMA3},
        {"rope_scaling": {**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 3.0}},
        {"rope_scaling": {**YARN, "type": "default"}},
        {"rope_scaling": {**YARN, "truncate": None, "beta_fast": None, "mscale": None}},
        {"rope_scaling": {**YARN, "original_max_position_embeddings": 32768.0}},
        {},
    ],
    ids=str,
)
def test_the_rope_is_that_of_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Whichever of the two names has it, and where both do: people add the old one to a file of the new layout."""
    rope = read_config(write(tmp_path, **changes)).rope
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert (rope.rope_type, rope.theta) == tuple(theirs.rope_parameters[key] for key in ("rope_type", "rope_theta"))
    if rope.rope_type != "default":
        expected, expected_factor = ROPE_INIT_FUNCTIONS[rope.rope_type](theirs, torch.device("cpu"))
        frequencies, factor = inverse_frequencies(rope, 128)
        torch.testing.assert_close(frequencies, expected, atol=0, rtol=3e-7 if rope.rope_type == "llama3" else 0)
        assert factor == expected_factor


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 5120.0, "num_attention_heads": 64.0, "max_position_embeddings": 40960.0},
        {"tie_word_embeddings": None, "attention_bias": None, "hidden_act": None, "rms_norm_eps": None},
        {"use_sliding_window": None, "max_window_layers": None, "rope_scaling": None, "decoder_sparse_step": None},
        {"partial_rotary_factor": 1.0},
        {"torch_dtype": "torch.bfloat16"},
        {"torch_dtype": None, "dtype": "torch.bfloat16"},
    ],
    ids=str,
)
def test_another_spelling_of_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    expected = read_config(write(tmp_path))
    assert read_config(write(tmp_path, **changes)) == expected


def test_demo_model() -> None:
    assert read_config(DEMO_MODEL_DIR).tied


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model_type": "qwen2_moe"}, "has model_type 'qwen2_moe'; only llama, mistral, "),
        ({"model_type": ["qwen3"]}, "has model_type ['qwen3']; only llama, mistral, "),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' (only 'silu')"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized weights (fp8)"),
        ({"num_experts": 128}, "a mixture of 128 experts"),
        (
            {**QWEN3_30B_A3B, "num_experts_per_tok": 129},
            "128 experts, of which 129 compute each token",
        ),
        ({**QWEN3_30B_A3B, "moe_intermediate_size": 0}, "moe.intermediate_size 0; it must be at least 1"),
        ({**QWEN3_30B_A3B, "decoder_sparse_step": 0}, "decoder_sparse_step 0 (only 1 and above)"),
        ({"mlp_bias": True}, "mlp_bias (biases in the MLP)"),
        ({"is_causal": False}, "is_causal false (attention to tokens that follow)"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}},
            "rope type 'dynamic' (only default, linear, yarn, llama3, longrope)",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "linear without a factor"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope without a short_factor"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "1 rope factors for 64 pairs"),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [0.0] * 64}},
            "a rope factor 0.0; all must be above 0",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 1.0}},
            "rope high_freq_factor 1; it must be above low_freq_factor 1",
        ),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn without a factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5 (only 1)"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 (only 1)"),
        ({"rope_parameters": {"full_attention": DEFAULT}}, "rope parameters of single kinds of layers"),
        (
            {"rope_parameters": DEFAULT, "rope_scaling": YARN, "rope_theta": None},
            "rope_scaling, which takes the place of rope_parameters, without their rope_theta 1e+06",
        ),
        ({"hidden_size": 5120.5}, "Expected `int`, got `float` - at `$.hidden_size`"),
        ({"hidden_act": "gelu", "num_experts": 8}, "hidden_act 'gelu' (only 'silu'); a mixture of 8 experts"),
        ({"num_key_value_heads": 7}, "64 attention heads, not a multiple of its 7 KV heads"),
        ({"head_dim": 127}, "rotates 127 of a head's 127 dimensions; rotary embedding needs an even number"),
        ({"vocab_size": 0}, "vocab_size 0; it must be at least 1"),
        ({"vocab_size": 2**31 - 1}, "vocab_size 2147483647, the limit is 1048576"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000, the limit is 1024"),
        ({"hidden_size": 10**9}, "hidden_size 1000000000, the limit is 65536"),
        ({"intermediate_size": 2**40}, "intermediate_size 1099511627776, the limit is 1048576"),
        ({"num_attention_heads": 10**6}, "num_attention_heads 1000000, the limit is 4096"),
        ({"num_key_value_heads": 10**6}, "num_key_value_heads 1000000, the limit is 4096"),
        ({"head_dim": 10**6}, "head_dim 1000000, the limit is 4096"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings 2147483648, the limit is 134217728"),
        ({**QWEN3_30B_A3B, "num_experts": 2**14}, "num_hidden_layers * num_experts 786432, the limit is 131072"),
        ({**QWEN3_30B_A3B, "moe_intermediate_size": 2**31}, "moe_intermediate_size 2147483648, the limit is 1048576"),
        ({"rope_theta": 0.5}, "rope theta 0.5; it must be above 1"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 1e308, "original_max_position_embeddings": 2**62}},
            "inf positions by its rope, the limit is 134217728",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": -1}},
            "rope original_max_positions -1; it must be above 0",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": -1.0}}, "rope factor -1.0; it must be above 0"),
        ({"hidden_size": "large"}, "Expected `int`, got `str` - at `$.hidden_size`"),
    ],
    ids=str,
)
def test_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(complaint)) as raised:
        read_config(write(tmp_path, **changes))
    assert str(tmp_path / "config.json") in str(raised.value)


WINDOW = {"use_sliding_window": True, "sliding_window": 4096}


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 0}, None),
        ({**WINDOW, "max_window_layers": 64}, None),
        ({**WINDOW, "max_window_layers": 32}, 4096),
        ({**WINDOW, "layer_types": ["sliding_attention"] * 64}, 4096),
        ({**WINDOW, "layer_types": ["full_attention"] * 64}, None),
        ({**QWEN3_30B_A3B, **WINDOW}, 4096),
        ({**WINDOW, "sliding_window": 50_000, "max_window_layers": 32}, None),  # no sequence becomes so long
    ],
    ids=str,
)
def test_positions_beyond_a_sliding_window_are_not_exact(
    tmp_path: Path, changes: dict[str, Any], window: int | None
) -> None:
    config = read_config(write(tmp_path, **changes))
    assert config.exact_positions == (window or config.max_positions)
    assert bool(config.exact_because) == (window is not None)


@pytest.mark.parametrize("content", [None, b"{", b"[]", b"\xff\xfe", b'{"model_type": "qwen3"}'])
def test_missing_or_malformed(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_long_list_of_dense_layers_is_looked_through_once(tmp_path: Path) -> None:
    dense = [*range(1, 48), *range(1000, 200_000)]
    config = read_config(write(tmp_path, **(QWEN3_30B_A3B | {"mlp_only_layers": dense})))
    assert config.moe is not None
    assert config.moe.sparse_layers == (0,)
