"""Greedy tokens are those of transformers, whatever the model's proportions and however the work is cut up."""

import random

import pytest

from common.model_files import DEMO_MODEL_DIR
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Driver, start
from tests.support.checkpoints import VOCAB_SIZE, demo_vocab_size, reference_greedy
from tests.support.effort import combinations

MIXED_LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 40, 47, 48, 49, 60, 63, 64, 65)
NEW_TOKENS = 12


def prompts_of(lengths: tuple[int, ...], vocab_size: int = VOCAB_SIZE, seed: int = 1) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize(("preset", "tied"), combinations(["0.6B", "4B", "32B"], {"tied": True, "untied": False}))
def test_proportions_of_real_models(checkpoint: Make, preset: str, tied: bool) -> None:
    folder = checkpoint(preset=preset, tied=tied)
    prompts = prompts_of((1, 5, 16, 17, 33, 50))
    expected = [reference_greedy(folder, prompt, NEW_TOKENS) for prompt in prompts]
    runner, limits = start(folder, num_blocks=64)
    assert Driver(runner, limits).generate(prompts, NEW_TOKENS) == expected
    assert Driver(runner, limits, chunk=7).generate(prompts, NEW_TOKENS) == expected


@pytest.mark.parametrize("rope_type", ["yarn", "old layout"])
def test_long_context_rope(checkpoint: Make, rope_type: str) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    if rope_type == "old layout":
        rope = {"rope_type": "default", "rope_theta": 1_000_000.0}
    folder = checkpoint(preset="tiny", rope=rope)
    prompts = prompts_of((3, 100))
    runner, limits = start(folder, num_blocks=64)
    expected = [reference_greedy(folder, prompt, NEW_TOKENS) for prompt in prompts]
    assert Driver(runner, limits).generate(prompts, NEW_TOKENS) == expected


def test_attention_bias(checkpoint: Make) -> None:
    folder = checkpoint(preset="tiny", attention_bias=True)
    prompts = prompts_of((9, 20))
    runner, limits = start(folder, num_blocks=64)
    expected = [reference_greedy(folder, prompt, NEW_TOKENS) for prompt in prompts]
    assert Driver(runner, limits).generate(prompts, NEW_TOKENS) == expected


@pytest.mark.parametrize(("chunk", "block_size"), combinations([10**9, 7], [1, 16, 256]))
def test_batch_of_sixteen_and_each_alone(checkpoint: Make, block_size: int, chunk: int) -> None:
    folder = checkpoint(preset="tiny")
    prompts = prompts_of(MIXED_LENGTHS)
    expected = [reference_greedy(folder, prompt, NEW_TOKENS) for prompt in prompts]
    runner, limits = start(folder, num_blocks=2048 // block_size + 32, block_size=block_size)
    assert Driver(runner, limits, chunk).generate(prompts, NEW_TOKENS) == expected
    for prompt, tokens in zip(prompts, expected, strict=True):
        assert Driver(runner, limits, chunk).generate([prompt], NEW_TOKENS) == [tokens]


def test_demo_model() -> None:
    prompts = prompts_of(MIXED_LENGTHS, vocab_size=demo_vocab_size())
    expected = [reference_greedy(DEMO_MODEL_DIR, prompt, 20) for prompt in prompts]
    runner, limits = start(None, dtype="auto", num_blocks=512)
    for chunk in (10**9, 7):
        assert Driver(runner, limits, chunk).generate(prompts, 20) == expected
    assert Driver(runner, limits, read_lanes=False).generate(prompts, 20) == expected
