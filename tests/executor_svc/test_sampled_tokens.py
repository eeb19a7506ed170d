"""A request's random tokens are the same alone, in a batch, and on an executor that takes over half-way."""

import random

from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Driver, Pool, Row, run, start
from tests.support.checkpoints import VOCAB_SIZE

SAMPLING = {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "seed": 99}


def test_alone_and_in_a_batch(checkpoint: Make) -> None:
    folder = checkpoint(preset="tiny")
    rng = random.Random(0)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (3, 17, 30, 5)]
    runner, limits = start(folder, num_blocks=64)
    together = Driver(runner, limits).generate(prompts, 20, **SAMPLING)
    for prompt, tokens in zip(prompts, together, strict=True):
        assert Driver(runner, limits, chunk=4).generate([prompt], 20, **SAMPLING) == [tokens]
    other = Driver(runner, limits).generate(prompts, 20, **{**SAMPLING, "seed": 100})
    assert all(a != b for a, b in zip(together, other, strict=True))


def test_taken_over_half_way(checkpoint: Make) -> None:
    folder = checkpoint(preset="tiny")
    prompt = list(range(10))
    runner, limits = start(folder, num_blocks=16)
    tokens = Driver(runner, limits).generate([prompt], 20, **SAMPLING)[0]
    successor, limits = start(folder, num_blocks=8, block_size=5)
    resumed = prompt + tokens[:9]
    table = Pool(8, 5).grow([], len(resumed))
    assert run(successor, [Row(3, resumed, len(resumed), table, **SAMPLING)], limits).tolist() == tokens[9:10]


def test_greedy_and_drawn_rows_in_one_plan(checkpoint: Make) -> None:
    runner, limits = start(checkpoint(preset="tiny"), num_blocks=16)
    pool = Pool(16, 16)
    rows = [Row(0, [1, 2, 3], 3, pool.grow([], 3)), Row(1, [1, 2, 3], 3, pool.grow([], 3), **SAMPLING)]
    alone = run(runner, rows[:1], limits).tolist()
    assert run(runner, rows, limits).tolist()[:1] == alone
