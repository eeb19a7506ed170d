"""Half precision stays as close to float32 as transformers' own does."""

import random

import pytest
import torch

from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Pool, Row, cache_of, logits, start
from tests.support.checkpoints import VOCAB_SIZE, reference_logits


@pytest.mark.parametrize("preset", ["0.6B", "4B"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_not_further_from_float32_than_transformers(checkpoint: Make, preset: str, dtype: torch.dtype) -> None:
    folder = checkpoint(preset=preset, dtype=dtype)
    rng = random.Random(0)
    tokens = [rng.randrange(VOCAB_SIZE) for _ in range(64)]
    exact = reference_logits(folder, tokens, torch.float32)
    theirs = (reference_logits(folder, tokens, dtype) - exact).abs()
    runner, limits = start(folder, dtype="auto", num_blocks=8)
    assert cache_of(runner).dtype == dtype
    table = Pool(8, 16).grow([], 64)
    prompt = logits(runner, [Row(0, tokens[:48], 48, table)], limits)
    decoded = [logits(runner, [Row(0, [tokens[i]], i + 1, table)], limits) for i in range(48, 64)]
    ours = (torch.cat([prompt, *decoded]) - exact).abs()
    assert ours.mean() <= 1.15 * theirs.mean()
    assert ours.max() <= 1.5 * theirs.max()


def test_float32_logits_are_transformers(checkpoint: Make) -> None:
    folder = checkpoint(preset="4B", tied=False)
    rng = random.Random(0)
    tokens = [rng.randrange(VOCAB_SIZE) for _ in range(70)]
    runner, limits = start(folder, num_blocks=8)
    ours = logits(runner, [Row(0, tokens, 70, Pool(8, 16).grow([], 70))], limits)
    torch.testing.assert_close(ours, reference_logits(folder, tokens), atol=2e-4, rtol=1e-4)
