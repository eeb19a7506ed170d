"""Thousands of steps: nothing in them is allocated, compiled, waited for, or in a race."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from common.plan import parse_plan
from executor_svc.model.families import read_config
from executor_svc.model.sharding import Shard
from executor_svc.runner import graphs
from executor_svc.runner.graphs import StepGraphs
from executor_svc.runner.runner import Runner
from executor_svc.runner.trial_plans import asking_of_prompts, trial_plan
from tests.executor_svc import harness
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Row, make_plan
from tests.rig.drive import random_plans, serve
from tests.rig.stand_in import StandIn

OPTIONS = {"device": "cuda", "dtype": "bfloat16", "poison": False, "max_model_len": 2048, "kv_cache_memory_gib": 1.0}
OPTIONS |= {"tasks": ("generate", "embed", "score")}


@pytest.mark.parametrize("attention", ["triton", "flash_attn"])
@pytest.mark.parametrize(("schedule", "window"), [("eager", 2), ("lazy", 2), ("lazy", 3), ("random", 3)])
def test_serving(
    rig: StandIn, small: Path, attention: str, schedule: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of mixed steps some replay graphs, and the larger ones are launched kernel by kernel."""
    config = read_config(small)
    monkeypatch.setattr(graphs, "_BREAK_EVEN_PRODUCTS", 300 * Shard.of(config).layer_products(config))
    runner, limits = harness.start(small, attention=attention, **OPTIONS)
    assert runner._token_sizes[-1] == 300
    replays = rig.count("graph_launch")
    with rig.schedule(schedule, seed=window), rig.serving():
        serve(runner, random_plans(limits, random.Random(window)), steps=400, window=window)
    assert rig.count("graph_launch") - replays > 100
    assert rig.count("unmodelled_call") == 0


@pytest.mark.parametrize("kind", ["decode", "mixed", "prompts that come with log-probabilities"])
def test_only_what_overwrites_results_waits_for_their_copy(
    rig: StandIn, small: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of a step's tokens runs while the next step's forward pass does, unless this writes what is copied."""
    runner, limits = harness.start(small, attention="triton", **{**OPTIONS, "max_num_seqs": 8})
    plan = trial_plan([1] * 8 if kind == "decode" else [1] * 7 + [9], limits.block_size)
    done: list[str] = []

    def noted(name: str, method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            done.append(name)
            return method(*arguments)

        return call

    for owner, method, name in [
        (StepGraphs, "replay_forward", "forward"),
        (StepGraphs, "replay_sampling", "sampling"),
        (Runner, "_forward", "forward"),
        (Runner, "_sample", "sampling"),
    ]:
        monkeypatch.setattr(owner, method, noted(name, getattr(owner, method)))
    computing = torch.cuda.current_stream()
    wait_event = torch.cuda.Stream.wait_event

    def noted_wait(stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        if stream == computing:
            done.append("wait")
        wait_event(stream, event)

    monkeypatch.setattr(torch.cuda.Stream, "wait_event", noted_wait)
    finding = plan if kind in ("decode", "mixed") else asking_of_prompts(plan, 2)
    with rig.schedule("lazy"), rig.serving():
        pending = [runner.launch(columns) for columns in (plan, finding, plan)]
    for each in pending:
        each.wait()
    late, early = ["forward", "wait", "sampling"], ["wait", "forward", "sampling"]
    assert done == [*late, *(late if finding is plan else early), *late]


@pytest.mark.parametrize("attention", ["triton", "flash_attn"])
@pytest.mark.parametrize("eager", [False, True])
def test_a_long_row_among_short_ones(rig: StandIn, checkpoint: Make, attention: str, eager: bool) -> None:
    """Its context is cut into many pieces, and flash-attn takes memory for as many of each row."""
    folder = checkpoint(preset="0.6B", num_layers=1, dtype=torch.bfloat16, max_position_embeddings=32_768)
    options = {**OPTIONS, "max_model_len": 32_768, "enforce_eager": eager}
    runner, limits = harness.start(folder, attention=attention, **options)
    rows = [Row(lane, [-1], 1, [lane]) for lane in range(limits.max_num_seqs - 1)]
    blocks = [0] * -(-limits.max_model_len // limits.block_size)
    rows[0] = replace(rows[0], context_len=limits.max_model_len, table=blocks)
    mixed = [*rows, Row(len(rows), [5] * 9, 9, [limits.num_blocks - 1])]
    plans = [parse_plan(make_plan(each, limits.block_size), limits) for each in (rows, mixed, mixed, rows)]
    with rig.schedule("lazy"), rig.serving():
        serve(runner, plans, len(plans), window=3)


@pytest.mark.parametrize("attention", ["triton", "flash_attn"])
def test_nothing_is_left_over_after_5000_steps(rig: StandIn, small: Path, attention: str) -> None:
    runner, limits = harness.start(small, attention=attention, **OPTIONS)
    plans = random_plans(limits, random.Random(1))

    def held() -> dict[str, int]:
        names = ("device_bytes", "streams", "graphs", "communicators")
        return {name: rig.live(name) for name in names} | {"allocated": torch.cuda.memory_allocated()}

    repeated = [next(plans) for _ in range(50)]
    serve(runner, repeated, steps=50)
    before, events, pinned = held(), rig.live("events"), rig.live("pinned_bytes")
    for _ in range(100):
        serve(runner, repeated, steps=50)
    assert held() == before
    # Torch keeps these two for the next use; how many there are is how many were in use at once.
    assert rig.live("events") < events + 100
    assert rig.live("pinned_bytes") < pinned + 2**20
