"""Qwen2 and Qwen2.5."""

from typing import Any

from tests.executor_svc.families.checks import FamilyChecks

ALIKE: dict[str, Any] = {"family": "qwen2", "preset": "tiny", "num_layers": 2}
WIDE = {"hidden_size": 896, "initializer_range": 0.03}  # wide models have large scores, and so large errors


class TestQwen2(FamilyChecks):
    SHAPES = {
        "0.5B": {**ALIKE, "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64, **WIDE},
        "7B": {**ALIKE, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 128, "tied": False},
    }
    RANKS = {"0.5B": 2}
