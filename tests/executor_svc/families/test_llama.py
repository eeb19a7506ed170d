"""Llama, and models that call themselves one."""

from typing import Any

from tests.executor_svc.families.checks import FamilyChecks

ALIKE: dict[str, Any] = {"family": "llama", "preset": "tiny", "num_layers": 2, "head_dim": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # of 8,192: the checks' texts are that much shorter
}


class TestLlama(FamilyChecks):
    SHAPES = {
        "Llama 3.2": {**ALIKE, "num_attention_heads": 8, "num_key_value_heads": 2, "rope": LLAMA3},
        "Llama 2": {**ALIKE, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 128, "tied": False},
        "SmolLM2": {
            **ALIKE,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": None,
            "hidden_size": 576,
            "intermediate_size": 96,
            "initializer_range": 0.04,  # wide models have large scores, and so large errors
        },
        "stretched": {
            **ALIKE,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "rope": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
        },
    }
    RANKS = {"Llama 3.2": 2, "SmolLM2": 3}
