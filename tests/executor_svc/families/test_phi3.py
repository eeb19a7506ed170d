"""Phi-3 and Phi-4."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from common.errors import BatonError, CheckpointError
from executor_svc.devices.gpu import GpuPlatform
from executor_svc.model.families import read_config
from executor_svc.model.rope import inverse_frequencies
from tests.executor_svc.conftest import Make
from tests.executor_svc.families.checks import FamilyChecks
from tests.executor_svc.harness import start

ALIKE: dict[str, Any] = {"family": "phi3", "preset": "tiny", "num_layers": 2, "pad_token_id": None}


def longrope(pairs: int, **more: Any) -> dict[str, Any]:
    factors = {"short_factor": [1 + i / 64 for i in range(pairs)], "long_factor": [2.0 + i for i in range(pairs)]}
    return {"rope_type": "longrope", "rope_theta": 10_000.0, **factors, **more}


class TestPhi3(FamilyChecks):
    SHAPES = {
        "Phi-4-mini": {
            **ALIKE,
            "num_attention_heads": 3,
            "head_dim": 128,
            "num_key_value_heads": 1,
            "hidden_size": 384,
            "initializer_range": 0.06,
            "rope": longrope(48, partial_rotary_factor=0.75),
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
        },
        "Phi-3-mini": {
            **ALIKE,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 96,
            "hidden_size": 384,
            "initializer_range": 0.06,
            "tied": False,
            "sliding_window": 2047,
            "original_max_position_embeddings": 2048,
        },
        "Phi-4": {
            **ALIKE,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "hidden_size": 256,
            "initializer_range": 0.08,
            "tied": False,
        },
    }
    PLAIN = ("Phi-3-mini",)
    RANKS = {"Phi-4": 2, "Phi-3-mini": 4}

    def test_the_rope_is_that_of_transformers(self, checkpoint: Make) -> None:
        """Within the positions of pretraining: beyond them LongRoPE has other factors."""
        folder = checkpoint(**self.SHAPES["Phi-4-mini"])
        rope, theirs = read_config(folder).rope, AutoConfig.from_pretrained(folder)
        expected, expected_factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, torch.device("cpu"))
        frequencies, factor = inverse_frequencies(rope, 128)
        assert len(frequencies) == 48
        torch.testing.assert_close(frequencies, expected, atol=0, rtol=0)
        assert factor == pytest.approx(expected_factor, abs=0)
        assert factor > 1

    def test_longrope_limits_what_is_served(self, checkpoint: Make) -> None:
        folder = checkpoint(**self.SHAPES["Phi-4-mini"])
        for wanted in (None, 4097):
            with pytest.raises(CheckpointError, match=r"131072 positions, of which the first 4096 .*longrope"):
                start(folder, num_blocks=257, max_model_len=wanted)
        assert start(folder, num_blocks=257, max_model_len=4096)[1].max_model_len == 4096

    @pytest.mark.parametrize("name", ["su", "yarn"])
    def test_longrope_by_its_first_names(self, checkpoint: Make, edited_config: Callable[..., Path], name: str) -> None:
        folder = checkpoint(**self.SHAPES["Phi-4-mini"])
        old = {"rope_parameters": None, "partial_rotary_factor": 0.75}
        old["rope_scaling"] = {"type": name, "short_factor": longrope(48)["short_factor"]}
        assert read_config(edited_config(folder, old)) == read_config(folder)

    def test_heads_without_kernels(self, checkpoint: Make, capsys: pytest.CaptureFixture[str]) -> None:
        folder = checkpoint(**self.SHAPES["Phi-3-mini"])
        start(folder, num_blocks=24, dtype="bfloat16", max_model_len=64)
        said = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
        assert "head_dim 64 and 128, not 96: plain torch runs instead" in said[0]
        with pytest.raises(BatonError, match=r"head_dim 96, and kernels for GPUs take 16, 32, 64, 128"):
            GpuPlatform.packing(Mock(), read_config(folder), torch.bfloat16)
