"""Steps whose samples ask for more than a token, beside others: nothing is allocated, compiled or waited for."""

import random
import threading
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from llguidance import LLMatcher

from common import messages as m
from common.plan import PlanColumns, parse_plan
from executor_svc.runner.asked_steps import PendingStep
from executor_svc.runner.graphs import StepGraphs
from tests.executor_svc import harness
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Row, make_plan
from tests.rig.drive import random_plans, serve
from tests.rig.stand_in import StandIn

OPTIONS: dict[str, Any] = {"device": "cuda", "poison": False, "max_model_len": 2048, "attention": "triton"}
GRAMMAR: str = LLMatcher.grammar_from_regex("(?s:.)*")
WINDOW = 3

VOCAB_SIZES = {
    "whole": {"vocab_size": 640},
    "odd": {"vocab_size": 1003},  # its rows begin at addresses of all kinds
    "large": {"vocab_size": 151_936, "hidden_size": 16, "intermediate_size": 16},
}
"""Sizes that no other test has, since a process loads a kernel once for each."""


@pytest.mark.parametrize("asking", [0.0, 0.6], ids=["plain", "asking"])
@pytest.mark.parametrize("sizes", VOCAB_SIZES.values(), ids=VOCAB_SIZES)
@pytest.mark.parametrize("limits", [{}, {"max_num_seqs": 5, "max_batch_tokens": 40}, {"enforce_eager": True}], ids=str)
def test_nothing_is_allocated_or_compiled(
    rig: StandIn, checkpoint: Make, asking: float, sizes: dict[str, int], limits: dict[str, Any]
) -> None:
    folder = checkpoint(num_layers=1, dtype=torch.bfloat16, **sizes)
    runner, hello = harness.start(folder, dtype="bfloat16", kv_cache_memory_gib=0.25, **OPTIONS, **limits)
    replays, pinned = rig.count("graph_launch"), rig.count("pinned_allocation")
    with rig.schedule("lazy"), rig.serving():
        serve(runner, random_plans(hello, random.Random(1), asking=asking), steps=100, window=WINDOW)
    assert rig.count("pinned_allocation") == pinned
    assert limits.get("enforce_eager") or rig.count("graph_launch") - replays > 30
    assert rig.count("unmodelled_call") == 0


def test_the_usual_maximum_has_room(rig: StandIn, checkpoint: Make) -> None:
    """All rows have a mask and as many biases as there may be, and all come with all log-probabilities."""
    folder = checkpoint(num_layers=1, dtype=torch.bfloat16, **VOCAB_SIZES["large"])
    runner, limits = harness.start(folder, dtype="bfloat16", kv_cache_memory_gib=0.25, **OPTIONS)
    asked = m.Constraints(
        presence_penalty=1.0,
        bias_token_ids=np.arange(m.MAX_BIASES, dtype="<i4").tobytes(),
        biases=np.ones(m.MAX_BIASES, "<f4").tobytes(),
        bad_words=(bytes(16),) * 64,
        allowed_token_ids=bytes(4),
    )

    def plan(length: int) -> PlanColumns:
        """The start, or a decode step of `length` tokens."""
        first = length == 4
        rows = [Row(lane, [5] * 4 if first else [-1], length, [0], temperature=1.0) for lane in range(256)]
        lanes = [m.LaneStart(lane=row.lane, num_prompt=4, tokens=bytes(16), constraints=asked) for row in rows]
        made = msgspec.structs.replace(
            make_plan(rows, limits.block_size),
            constrained=np.arange(256, dtype="<i4").tobytes(),
            lane_starts=tuple(lanes) if first else (),
            logprob_counts=np.full(256, m.MAX_LOGPROBS, "<i4").tobytes(),
        )
        return parse_plan(made, limits)

    pinned = rig.count("pinned_allocation")
    with rig.schedule("lazy"), rig.serving():
        serve(runner, [plan(length) for length in range(4, 12)], steps=8, window=WINDOW)
    assert rig.count("pinned_allocation") == pinned


def test_the_most_targets_of_prompts_have_room(rig: StandIn, checkpoint: Make) -> None:
    """All tokens of a step, with as many log-probabilities as a plan may ask for. There are so few rows that nothing
    else which is copied takes as much."""
    folder = checkpoint(num_layers=1, dtype=torch.bfloat16, **VOCAB_SIZES["whole"])
    runner, limits = harness.start(folder, dtype="bfloat16", kv_cache_memory_gib=0.25, max_num_seqs=32, **OPTIONS)
    count = m.MAX_PLAN_PROMPT_LOGPROBS // limits.max_batch_tokens
    targets = tuple((at, 5, count) for at in range(2048))
    rows = [Row(lane, [5] * 2048, 2048, [lane] * 128, targets=targets) for lane in range(4)]
    columns = parse_plan(make_plan(rows, limits.block_size), limits)
    assert columns.prompt_targets is not None
    assert len(columns.prompt_targets.tokens) == limits.max_batch_tokens
    pinned = rig.count("pinned_allocation")
    with rig.schedule("lazy"), rig.serving():
        serve(runner, [columns] * 4, steps=4, window=WINDOW)
    assert rig.count("pinned_allocation") == pinned


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_grammars_beside_all_else(rig: StandIn, checkpoint: Make, schedule: str) -> None:
    folder = checkpoint(num_layers=1, dtype=torch.bfloat16, tokenizer=True)
    runner, limits = harness.start(folder, dtype="bfloat16", kv_cache_memory_gib=0.25, **OPTIONS)
    pinned = rig.count("pinned_allocation")
    plans = random_plans(limits, random.Random(2), grammar=GRAMMAR, asking=0.8)
    with rig.schedule(schedule), rig.serving():
        serve(runner, plans, steps=100, window=WINDOW)
    assert rig.count("pinned_allocation") == pinned


def test_the_next_forward_is_launched_before_a_grammar_waits_for_tokens(
    rig: StandIn, checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that fills masks gets a step's tokens only once the forward pass of the next step is launched: if the
    launch waited for the masks before that, it would wait for ever."""
    folder = checkpoint(num_layers=1, dtype=torch.bfloat16, tokenizer=True)
    runner, limits = harness.start(folder, dtype="bfloat16", kv_cache_memory_gib=0.25, **OPTIONS)
    forwards = threading.Semaphore(0)
    waits: list[bool] = []
    replay, token_ids = StepGraphs.replay_forward, PendingStep.token_ids

    def counted_replay(self: StepGraphs, num_rows: int) -> bool:
        replayed = replay(self, num_rows)
        forwards.release()
        return replayed

    def gated(self: PendingStep) -> Any:
        waits.append(forwards.acquire(timeout=60))
        return token_ids(self)

    monkeypatch.setattr(StepGraphs, "replay_forward", counted_replay)
    monkeypatch.setattr(PendingStep, "token_ids", gated)

    def plan(length: int) -> PlanColumns:
        start = m.LaneStart(lane=0, num_prompt=4, tokens=bytes(4 * length), constraints=m.Constraints(grammar=GRAMMAR))
        made = make_plan([Row(0, [-1], length, [0])], limits.block_size)
        starts = (start,) if length == 4 else ()
        return parse_plan(msgspec.structs.replace(made, constrained=bytes(4), lane_starts=starts), limits)

    pending = []
    with rig.schedule("lazy"), rig.serving():
        for length in range(4, 10):
            pending.append(runner.launch(plan(length)))
            if length == 4:
                assert forwards.acquire(timeout=60)  # of the first step, for whose tokens the second one waits
    assert waits == [True] * 5  # of six launches, all but the first, which starts the lane


def test_plans_without_grammars_wait_for_nothing(
    rig: StandIn, checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they use the threads that fill masks."""
    folder = checkpoint(num_layers=1, dtype=torch.bfloat16, tokenizer=True)
    runner, limits = harness.start(folder, dtype="bfloat16", kv_cache_memory_gib=0.25, **OPTIONS)
    masks = runner._asked_steps._grammars
    assert masks is not None
    monkeypatch.setattr(masks._threads, "put", None)
    with rig.schedule("lazy"), rig.serving():
        for columns in islice(random_plans(limits, random.Random(3), asking=0.8), 20):
            runner.launch(columns)  # 20 in flight, and nobody waits
