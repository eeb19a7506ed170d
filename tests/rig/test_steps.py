"""Thousands of steps: nothing in them is allocated, compiled, waited for, or in a race."""

import random
from pathlib import Path

import pytest
import torch

from executor_svc.model.config import read_config
from executor_svc.model.sharding import Shard
from executor_svc.runner import graphs
from tests.executor import harness
from tests.rig.drive import random_plans, serve
from tests.rig.stand_in import StandIn

OPTIONS = {"device": "cuda", "dtype": "bfloat16", "poison": False, "max_model_len": 2048, "kv_cache_memory_gib": 1.0}


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
