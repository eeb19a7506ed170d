"""Rows that read what they do not write: cached prefixes, prefixes shared within one plan, and the lanes' tokens."""

import random

import pytest

from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Driver, Pool, Row, cache_of, poison_cache, run, start
from tests.support.checkpoints import VOCAB_SIZE, reference_greedy


@pytest.fixture
def prompt() -> list[int]:
    return [random.Random(3).randrange(VOCAB_SIZE) for _ in range(40)]


@pytest.mark.parametrize("reader_first", [False, True])
def test_full_prompt_hit_in_the_plan_that_computes_it(checkpoint: Make, prompt: list[int], reader_first: bool) -> None:
    """Two equal prompts of whole blocks: the second computes its last token again, and stores nothing."""
    folder = checkpoint(preset="0.6B")
    prompt = prompt[:32]
    runner, limits = start(folder, num_blocks=16, block_size=16)
    table = Pool(16, 16).grow([], 32)
    writer = Row(0, prompt, 32, table)
    reader = Row(1, prompt[-1:], 32, table, unstored=1)
    rows = [reader, writer] if reader_first else [writer, reader]
    expected = reference_greedy(folder, prompt, 1) * 2
    assert run(runner, rows, limits).tolist() == expected


def test_shared_prefix_in_the_plan_that_computes_it(checkpoint: Make, prompt: list[int]) -> None:
    """The reader comes first and goes on from a block that only the writer, behind it, fills."""
    folder = checkpoint(preset="0.6B")
    runner, limits = start(folder, num_blocks=16, block_size=16)
    pool = Pool(16, 16)
    other = [*prompt[:16], 7, 8, 9]
    writer_table = pool.grow([], 40)
    reader_table = pool.grow(writer_table[:1], len(other))
    rows = [Row(0, other[16:], len(other), reader_table), Row(1, prompt, 40, writer_table)]
    expected = reference_greedy(folder, other, 1) + reference_greedy(folder, prompt, 1)
    assert run(runner, rows, limits).tolist() == expected


def test_some_of_a_chunk_is_cached(checkpoint: Make, prompt: list[int]) -> None:
    """A chunk whose first tokens are not stored leaves what the cache holds there alone."""
    folder = checkpoint(preset="tiny")
    runner, limits = start(folder, num_blocks=16, block_size=4)
    table = Pool(16, 4).grow([], 40)
    run(runner, [Row(0, prompt[:20], 20, table)], limits)
    before = cache_of(runner).clone()
    tokens = run(runner, [Row(0, prompt[16:], 40, table, unstored=4)], limits).tolist()
    assert tokens == reference_greedy(folder, prompt, 1)
    written = (cache_of(runner) != before).flatten(3).any(-1)[0, 0]  # NaN differs from itself
    assert not written[table[:5]].any()


def test_reading_a_cached_position_changes_nothing(checkpoint: Make, prompt: list[int]) -> None:
    folder = checkpoint(preset="tiny")
    runner, limits = start(folder, num_blocks=16, block_size=16, poison=False)
    poison_cache(runner, 0.0)
    table = Pool(16, 16).grow([], 32)
    run(runner, [Row(0, prompt[:32], 32, table)], limits)
    before = cache_of(runner).clone()
    run(runner, [Row(1, prompt[31:32], 32, table, unstored=1)], limits)
    assert (cache_of(runner) == before).all()


def test_lanes_are_not_mixed_up(checkpoint: Make) -> None:
    """Rows change places from step to step, and an unsampled row's lane keeps its token."""
    folder = checkpoint(preset="tiny")
    rng = random.Random(5)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (4, 9, 21)]
    expected = [reference_greedy(folder, prompt, 8) for prompt in prompts]
    runner, limits = start(folder, num_blocks=32, block_size=8)
    pool = Pool(32, 8)
    tables = [pool.grow([], len(prompt) + 8) for prompt in prompts]
    lanes = (63, 0, 17)
    outputs: list[list[int]] = [[], [], []]
    for step in range(10):
        active = rng.sample(range(3), 3) if step == 0 else rng.sample(range(3), 2)
        rows = [
            Row(lanes[i], [-1] if outputs[i] else prompts[i], len(prompts[i]) + len(outputs[i]), tables[i])
            for i in active
            if len(outputs[i]) < 8
        ]
        bystander = Row(5, [1, 2, 3], 3, pool.grow([], 3), sampled=False)
        tokens = iter(run(runner, [*rows, bystander], limits).tolist())
        for i in (i for i in active if len(outputs[i]) < 8):
            outputs[i].append(next(tokens))
    for output, tokens in zip(outputs, expected, strict=True):
        assert output == tokens[: len(output)]


def test_a_plan_without_samples(checkpoint: Make, prompt: list[int]) -> None:
    runner, limits = start(checkpoint(preset="tiny"), num_blocks=16)
    assert run(runner, [Row(0, prompt, 40, Pool(16, 16).grow([], 40), sampled=False)], limits).tolist() == []


def test_stale_garbage_in_a_block_does_not_reach_its_next_owner(checkpoint: Make, prompt: list[int]) -> None:
    """Infinities that one sequence left behind must not turn another's masked positions into NaN."""
    folder = checkpoint(preset="tiny")
    runner, limits = start(folder, num_blocks=32, poison=False)
    poison_cache(runner, float("inf"))
    prompts = [prompt[:5], prompt[:30], prompt]
    assert Driver(runner, limits).generate(prompts, 6) == [reference_greedy(folder, p, 6) for p in prompts]
