"""What config.json of published models says is read as transformers reads it: sizes, tensors, rotation, and how many
positions can be served."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from executor_svc.model.checkpoint_layout import parameters
from executor_svc.model.families import read_config
from executor_svc.model.rope import inverse_frequencies
from executor_svc.model.sharding import Shard

SHORT, LONG = [1.0 + i / 50 for i in range(48)], [1.0 + i for i in range(48)]
LLAMA_2 = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "pretraining_tp": 1,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
LLAMA_3_1 = LLAMA_2 | {
    "vocab_size": 128256,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
}
MISTRAL = LLAMA_2 | {
    "model_type": "mistral",
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
}
QWEN = {
    "model_type": "qwen2",
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
PHI_3 = LLAMA_2 | {
    "model_type": "phi3",
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "sliding_window": 2047,
    "bos_token_id": 1,
    "eos_token_id": 32000,
    "pad_token_id": 32000,
    "torch_dtype": "bfloat16",
}
PHI_3_LONG = PHI_3 | {
    "max_position_embeddings": 131072,
    "sliding_window": 262144,
    "rope_scaling": {"long_factor": LONG, "short_factor": SHORT, "type": "longrope"},
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama-2-7b": LLAMA_2,
    "vicuna-7b-v1.5-16k": LLAMA_2 | {"rope_scaling": {"factor": 4.0, "type": "linear"}},
    "CodeLlama-34b": LLAMA_2
    | {
        "hidden_size": 8192,
        "intermediate_size": 22016,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 16384,
        "rope_theta": 1000000,
        "torch_dtype": "bfloat16",
    },
    "TinyLlama-1.1B-Chat-v1.0": LLAMA_2
    | {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
    },
    "Yi-6B": LLAMA_2 | {"vocab_size": 64000, "num_key_value_heads": 4, "rope_theta": 5000000.0},
    "SmolLM2-135M": LLAMA_2
    | {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_interleaved": False,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
    },
    "SmolLM2-1.7B": LLAMA_2
    | {
        "vocab_size": 49152,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "max_position_embeddings": 8192,
        "rope_theta": 130000,
        "tie_word_embeddings": True,
    },
    "Llama-3-8B": LLAMA_3_1 | {"max_position_embeddings": 8192, "rope_scaling": None},
    "Llama-3.1-8B": LLAMA_3_1,
    "DeepSeek-R1-Distill-Llama-70B": LLAMA_3_1
    | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "Llama-3.2-1B": LLAMA_3_1
    | {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "rope_scaling": LLAMA_3_1["rope_scaling"] | {"factor": 32.0},
        "tie_word_embeddings": True,
    },
    "Mistral-7B-v0.1": MISTRAL,
    "Mistral-7B-Instruct-v0.3": MISTRAL | {"vocab_size": 32768, "rope_theta": 1e6, "sliding_window": None},
    "Mistral-Nemo-Instruct-2407": MISTRAL
    | {
        "vocab_size": 131072,
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "head_dim": 128,
        "max_position_embeddings": 1024000,
        "rope_theta": 1000000.0,
        "sliding_window": None,
    },
    "Qwen2.5-0.5B": QWEN
    | {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_window_layers": 24,
        "sliding_window": 32768,
        "use_mrope": False,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-7B": QWEN,
    "Qwen2.5-7B, stretched as its page says": QWEN
    | {"rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}},
    "Qwen2.5-72B": QWEN
    | {
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_window_layers": 70,
    },
    "DeepSeek-R1-Distill-Qwen-7B": QWEN
    | {"max_position_embeddings": 131072, "rope_theta": 10000, "sliding_window": 4096, "use_mrope": False},
    "Phi-3-mini-4k": PHI_3,
    "Phi-3.5-mini": PHI_3_LONG,
    "Phi-4": PHI_3
    | {
        "vocab_size": 100352,
        "hidden_size": 5120,
        "intermediate_size": 17920,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 10,
        "max_position_embeddings": 16384,
        "original_max_position_embeddings": 16384,
        "rope_theta": 250000,
        "sliding_window": None,
    },
    "Phi-4-mini": PHI_3_LONG
    | {
        "vocab_size": 200064,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
    },
    # Not published, and read in the order of transformers: fields that contradict each other, or are not there.
    "a factor for LongRoPE's attention": PHI_3_LONG | {"rope_scaling": PHI_3_LONG["rope_scaling"] | {"factor": 8.0}},
    "two original lengths": PHI_3_LONG
    | {"rope_scaling": PHI_3_LONG["rope_scaling"] | {"original_max_position_embeddings": 2048}},
    "two original lengths of Llama 3": LLAMA_3_1 | {"original_max_position_embeddings": 4096},
    "two original lengths of YaRN": QWEN
    | {
        "original_max_position_embeddings": 8192,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    },
    "no word of an original length": QWEN | {"rope_scaling": {"factor": 4.0, "type": "yarn"}},
    "rope_parameters of transformers 5": LLAMA_3_1
    | {"rope_theta": None, "rope_scaling": None, "rope_parameters": LLAMA_3_1["rope_scaling"] | {"rope_theta": 5e5}},
}
EXACT = {  # positions that can be served, where they are not all
    "Mistral-7B-v0.1": 4096,
    "Phi-3-mini-4k": 2047,
    "Phi-3.5-mini": 4096,
    "Phi-4-mini": 4096,
    "a factor for LongRoPE's attention": 4096,
    "two original lengths": 4096,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_read_as_transformers_reads_it(name: str, tmp_path: Path) -> None:
    said = {key: value for key, value in PUBLISHED[name].items() if value is not None or key == "sliding_window"}
    (tmp_path / "config.json").write_text(json.dumps(said | {"num_hidden_layers": 2}))
    config, theirs = read_config(tmp_path), AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(theirs)
    stored = {each.name: each.shape for parameter in parameters(config, Shard.of(config)) for each in parameter.stored}
    tensors = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    if config.tied:
        del tensors["lm_head.weight"]
    assert stored == tensors
    assert (config.rms_norm_eps, config.tied) == (theirs.rms_norm_eps, theirs.tie_word_embeddings)
    rotary = type(model.model.rotary_emb)(theirs)
    frequencies, factor = inverse_frequencies(config.rope, config.head_dim)
    torch.testing.assert_close(frequencies, rotary.inv_freq, atol=0, rtol=1e-6)
    assert factor == pytest.approx(rotary.attention_scaling, rel=1e-12)
    assert config.exact_positions == EXACT.get(name, config.max_positions)
