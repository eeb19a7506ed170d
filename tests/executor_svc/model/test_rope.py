"""Frequencies and attention factors are those of transformers."""

from typing import Any

import pytest
import torch
from transformers import Qwen3Config as HfConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from executor_svc.model.config import RopeConfig
from executor_svc.model.rope import cos_sin_table, inverse_frequencies

YARN = {"factor": 4.0, "original_max_positions": 32768}


def hf_config(rope: RopeConfig, head_dim: int) -> HfConfig:
    parameters: dict[str, Any] = {"rope_type": rope.rope_type, "rope_theta": rope.theta}
    if rope.rope_type == "yarn":
        parameters.update(
            factor=rope.factor,
            original_max_position_embeddings=rope.original_max_positions,
            beta_fast=rope.beta_fast,
            beta_slow=rope.beta_slow,
            truncate=rope.truncate,
        )
        optional = {name: getattr(rope, name) for name in ("attention_factor", "mscale", "mscale_all_dim")}
        parameters.update((name, value) for name, value in optional.items() if value is not None)
    return HfConfig(head_dim=head_dim, rope_parameters=parameters, max_position_embeddings=40960)


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"theta": 10_000.0},
        {"attention_factor": 1.25},
        {"mscale": 0.7, "mscale_all_dim": 1.3},
        {"mscale": 0.7},
        {"beta_fast": 64.0, "beta_slow": 2.0},
        {"truncate": False},
        {"factor": 1.0},
        {"beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},
    ],
    ids=str,
)
def test_yarn(head_dim: int, changes: dict[str, Any]) -> None:
    rope = RopeConfig(**{"rope_type": "yarn", "theta": 1e6, **YARN, **changes})
    expected, expected_factor = ROPE_INIT_FUNCTIONS["yarn"](hf_config(rope, head_dim), torch.device("cpu"))
    frequencies, factor = inverse_frequencies(rope, head_dim)
    torch.testing.assert_close(frequencies, expected, atol=0, rtol=0)
    assert factor == pytest.approx(expected_factor, abs=0)


@pytest.mark.parametrize(
    "rope",
    [RopeConfig(rope_type="default", theta=1e6), RopeConfig(rope_type="yarn", theta=1e6, **YARN)],
    ids=["default", "yarn"],
)
def test_table(rope: RopeConfig) -> None:
    module = Qwen3RotaryEmbedding(hf_config(rope, 128))
    positions = torch.arange(5000)
    cos, sin = module(torch.empty(1), positions[None])
    ours_cos, ours_sin = cos_sin_table(rope, 128, 5000).chunk(2, -1)
    torch.testing.assert_close(ours_cos.repeat(1, 2), cos[0], atol=0, rtol=0)
    torch.testing.assert_close(ours_sin.repeat(1, 2), sin[0], atol=0, rtol=0)
