"""Whole steps, as the scheduler plans them, through the GPU's kernels: the tokens are those of plain torch.

Here Triton's interpreter runs the kernels, and a graph's replay calls what was captured with what was staged then; on a
GPU they are the real ones.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.executor_svc import harness
from tests.executor_svc.conftest import Make
from tests.executor_svc.gpu_kernels import CalledAgain, assert_same_tokens, start_on_gpu_kernels
from tests.executor_svc.recorded import OPTIONS, RecordedStep, record

DENSE = {"preset": "tiny", "num_layers": 2, "tied": False}


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="dense", marks=pytest.mark.slow), pytest.param(True, id="experts")],
)
def recorded(request: pytest.FixtureRequest, checkpoint: Make) -> tuple[Path, list[RecordedStep]]:
    folder = checkpoint(experts=request.param, **DENSE)
    return folder, record(folder)


def test_the_recorded_steps_are_of_all_kinds(recorded: tuple[Path, list[RecordedStep]]) -> None:
    kinds = set()
    for step in recorded[1]:
        lens = np.frombuffer(step.plan.query_lens, "<i4")
        rows = len(lens)
        kinds.add(("decode", "mixed", "prompts")[0 if lens.max() == 1 else 1 if lens.min() == 1 else 2])
        if len(step.plan.sample_rows) < 4 * rows:
            kinds.add("part of a prompt")
        if -1 in np.frombuffer(step.plan.token_ids, "<i4"):
            kinds.add("a token from a lane")
        if step.plan.seeds:
            kinds.add("sampled")
    assert kinds == {"decode", "mixed", "prompts", "part of a prompt", "a token from a lane", "sampled"}


@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")  # of logits left out
@pytest.mark.parametrize("steps_are", [pytest.param("as they come", marks=pytest.mark.slow), "replayed"])
def test_tokens_are_those_of_plain_torch(recorded: tuple[Path, list[RecordedStep]], steps_are: str) -> None:
    """Families have steps that are padded and not replayed."""
    folder, steps = recorded
    sizes = ([], []) if steps_are == "as they come" else ([2, 4], [8, 16, 24])
    graphs = CalledAgain()
    runner, limits = start_on_gpu_kernels(folder, *sizes, graphs=graphs if steps_are == "replayed" else None)
    if steps_are == "replayed":
        runner.record_steps()
        harness.poison_cache(runner)
    assert_same_tokens(runner, limits, steps)
    assert (min(graphs.replays) >= 2) == (steps_are == "replayed")
    padding_ran = np.isfinite(harness.cache_of(runner)[:, :, limits.num_blocks, :, 0].cpu().numpy()).all()
    assert padding_ran == (steps_are != "as they come")


@pytest.mark.gpu
def test_tokens_on_a_gpu_are_those_of_plain_torch(recorded: tuple[Path, list[RecordedStep]]) -> None:
    folder, steps = recorded
    runner, limits = harness.start(folder, device="cuda", attention="triton", **OPTIONS)
    assert_same_tokens(runner, limits, steps)
