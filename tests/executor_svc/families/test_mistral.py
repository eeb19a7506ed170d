"""Mistral and Mistral Nemo."""

from typing import Any

import pytest

from common.errors import CheckpointError
from executor_svc.model.families import read_config
from tests.executor_svc.conftest import Make
from tests.executor_svc.families.checks import FamilyChecks
from tests.executor_svc.harness import start

ALIKE: dict[str, Any] = {"family": "mistral", "preset": "tiny", "num_layers": 2, "tied": False}


class TestMistral(FamilyChecks):
    SHAPES = {
        "Nemo": {
            **ALIKE,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "hidden_size": 160,
            "initializer_range": 0.1,
            "sliding_window": None,
        },
        "within its window": {
            **ALIKE,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "sliding_window": 2048,
            "head_dim": 64,
        },
    }
    RANKS = {"Nemo": 2}

    def test_a_sliding_window_limits_what_is_served(self, checkpoint: Make) -> None:
        folder = checkpoint(**{**self.SHAPES["Nemo"], "sliding_window": 48})
        for wanted in (None, 49):
            with pytest.raises(CheckpointError, match=r"2048 positions, of which the first 48 .*--max-model-len 48 or"):
                start(folder, num_blocks=24, max_model_len=wanted)
        _, limits = start(folder, num_blocks=24, max_model_len=48)
        assert limits.max_model_len == 48

    @pytest.mark.parametrize(("said", "window"), [({}, 4096), ({"sliding_window": None}, None)])
    def test_no_word_of_a_window_means_4096(
        self, checkpoint: Make, edited_config: Any, said: dict[str, Any], window: int | None
    ) -> None:
        """As transformers takes it: a later Mistral says null."""
        folder = edited_config(checkpoint(**self.SHAPES["Nemo"]), {"max_position_embeddings": 32768}, said)
        config = read_config(folder)
        assert config.exact_positions == (window or 32768)
