"""Steps whose samples ask for more than a token: they allocate, compile and wait for nothing either, without races."""

import random
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from common import messages as m
from common.plan import ExecutorLimits, PlanColumns, parse_plan
from tests.executor import harness
from tests.executor.harness import Row, make_plan
from tests.rig.drive import random_rows, serve
from tests.rig.stand_in import StandIn
from tests.rig.test_steps import OPTIONS


def asking_plans(limits: ExecutorLimits, rng: random.Random) -> Iterator[PlanColumns]:
    """Plans at random in which about every third sample has constraints, and others want log-probabilities.

    A plan starts all of its constrained lanes: plans at random do not go on with one another's sequences.
    """
    while True:
        rows = random_rows(limits, rng)
        sampled = [row for row in rows if row.sampled]
        constrained = [place for place in range(len(sampled)) if rng.random() < 0.3]
        counts = [rng.choice([0, 0, 1, 3, m.MAX_LOGPROBS]) for _ in sampled]
        plan = msgspec.structs.replace(
            make_plan(rows, limits.block_size),
            constrained=_ints(constrained),
            lane_starts=tuple(_start(sampled[place], limits, rng) for place in constrained),
            logprob_counts=_ints(counts) if any(counts) else b"",
        )
        yield parse_plan(plan, limits)


def _start(row: Row, limits: ExecutorLimits, rng: random.Random) -> m.LaneStart:
    def tokens(count: int) -> list[int]:
        return rng.sample(range(limits.vocab_size), count)

    biased = tokens(rng.choice([0, 3, 100]))
    constraints = m.Constraints(
        presence_penalty=rng.choice([0.0, 0.5]),
        repetition_penalty=rng.choice([1.0, 1.2]),
        bias_token_ids=_ints(biased),
        biases=array("f", [1.0] * len(biased)).tobytes(),
        bad_words=tuple(_ints(tokens(size)) for size in range(1, rng.choice([1, 1, 5]))),
        allowed_token_ids=_ints(tokens(rng.choice([0, 0, 9]))),
    )
    known = np.full(row.context_len, 5, np.int32).tobytes()
    return m.LaneStart(row.lane, rng.randint(1, row.context_len), known, constraints)


def _ints(values: list[int]) -> bytes:
    return array("i", values).tobytes()


@pytest.mark.parametrize(("schedule", "window"), [("eager", 2), ("lazy", 3), ("random", 3)])
def test_serving_steps_that_ask(rig: StandIn, small: Path, schedule: str, window: int) -> None:
    runner, limits = harness.start(small, attention="triton", **OPTIONS)
    with rig.schedule(schedule, seed=window), rig.serving():
        serve(runner, asking_plans(limits, random.Random(window)), steps=200, window=window)
    assert rig.count("unmodelled_call") == 0
