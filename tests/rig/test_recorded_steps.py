"""The steps whose values `tests/executor_svc/devices/test_recorded_steps.py` checks, here for their calls."""

from pathlib import Path

import pytest
import torch

from tests.executor_svc import harness
from tests.executor_svc.conftest import Make
from tests.executor_svc.recorded import OPTIONS, record
from tests.rig.drive import serve
from tests.rig.stand_in import StandIn


@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
@pytest.mark.parametrize(("attention", "dtype"), [("triton", "float32"), ("flash_attn", "bfloat16")])
def test_recorded_steps(rig: StandIn, checkpoint: Make, attention: str, dtype: str, experts: bool) -> None:
    shape = {"preset": "tiny", "head_dim": 64, "num_layers": 2, "tied": False}
    steps = record(checkpoint(experts=experts, **shape))
    options = OPTIONS if attention == "triton" else {**OPTIONS, "block_size": None}
    folder: Path = checkpoint(experts=experts, dtype=getattr(torch, dtype), **shape)
    runner, limits = harness.start(folder, device="cuda", attention=attention, dtype=dtype, poison=False, **options)
    if attention == "flash_attn":  # its blocks are larger: the same rows, all in one block each
        steps = [step.in_blocks_of(limits.block_size) for step in steps]
    replays = rig.count("graph_launch")
    with rig.schedule("lazy"), rig.serving():
        tokens = serve(runner, [harness.through_the_wire(step.plan, limits) for step in steps], len(steps))
    assert [len(found) for found in tokens] == [len(step.tokens) for step in steps]
    assert rig.count("graph_launch") - replays > 3
