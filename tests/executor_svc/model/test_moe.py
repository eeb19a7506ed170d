"""Qwen3-MoE gives transformers' tokens, with every way of choosing experts that a configuration can ask for."""

import random
from typing import Any

import pytest
import torch

from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Driver, Pool, Row, logits, start
from tests.support.checkpoints import VOCAB_SIZE, reference_greedy, reference_logits

NEW_TOKENS = 12


def prompts_of(*lengths: int) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize(
    "config",
    [
        {"preset": "30B-A3B"},
        {"norm_topk_prob": False},
        {"mlp_only_layers": [0, 2], "tied": False},
        {"decoder_sparse_step": 2, "attention_bias": True},
        {"num_experts": 5, "num_experts_per_tok": 5},
        {"num_experts": 7, "num_experts_per_tok": 1, "norm_topk_prob": False},
    ],
    ids=str,
)
def test_greedy_tokens(checkpoint: Make, config: dict[str, Any]) -> None:
    folder = checkpoint(**{"preset": "tiny", "experts": True, "num_layers": 3, **config})
    prompts = prompts_of(1, 5, 16, 33)
    expected = [reference_greedy(folder, prompt, NEW_TOKENS) for prompt in prompts]
    runner, limits = start(folder, num_blocks=64)
    assert Driver(runner, limits).generate(prompts, NEW_TOKENS) == expected
    assert Driver(runner, limits, chunk=7).generate(prompts, NEW_TOKENS) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_not_further_from_float32_than_transformers(checkpoint: Make, dtype: torch.dtype) -> None:
    """All experts compute every token: a near tie that falls the other way says nothing of how well they do."""
    folder = checkpoint(preset="tiny", experts=True, dtype=dtype, num_experts_per_tok=8)
    tokens = prompts_of(48)[0]
    exact = reference_logits(folder, tokens, torch.float32)
    theirs = (reference_logits(folder, tokens, dtype) - exact).abs()
    runner, limits = start(folder, dtype="auto", num_blocks=8)
    ours = (logits(runner, [Row(0, tokens, 48, Pool(8, 16).grow([], 48))], limits) - exact).abs()
    assert ours.mean() <= 1.15 * theirs.mean()
