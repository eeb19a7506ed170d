"""The floor of bench_gpu.py's workload: counted in another way, and as the page and the targets state it."""

import re

import pytest

from benchmarks.gpu import report
from benchmarks.gpu.floor import CEILINGS, Floor, floor_of, planned_steps
from benchmarks.rig.checkpoints import SHAPES
from benchmarks.rig.service_load import make_requests
from tests import ROOT

PAGE = ROOT / "docs" / "gpu.md"
KV_BYTES = 114_688  # of a position: 28 layers, 8 heads of 128, keys and values, bfloat16


@pytest.fixture(scope="module")
def floor() -> Floor:
    return floor_of("0.6B", make_requests(256))


def test_the_counts_follow_from_the_requests(floor):
    """Each position but a request's last is written once; a decode row reads its whole context."""
    requests = make_requests(256)
    lengths = [(len(request.prompt), request.num_output) for request in requests]
    assert floor.output_tokens == sum(output for _, output in lengths)
    assert floor.kv_written_tb == pytest.approx(KV_BYTES * sum(p + n - 1 for p, n in lengths) / 1e12)
    decode = KV_BYTES * sum(sum(range(p + 1, p + n)) for p, n in lengths) / 1e12
    assert decode < floor.kv_read_tb < 1.01 * decode, "prompts are read in one or two chunks"
    # The embedding is tied: a step reads the table once, as the output's matrix.
    weights = SHAPES["0.6B"].num_bytes() / 1e12
    assert floor.weight_tb == pytest.approx(floor.steps * weights, rel=1e-3)
    # After the prompts, as many steps as the longest answer has tokens.
    assert floor.steps == pytest.approx(floor.mixed_steps + max(output for _, output in lengths), abs=2)
    moved = floor.weight_tb + floor.kv_read_tb + floor.kv_written_tb
    for gpu, ceilings in CEILINGS.items():
        assert 1.0 <= floor.least_s[gpu] / (moved * 1e12 / ceilings.copy) < 1.05, "prompts are bound by arithmetic"


def test_a_step_is_mixed_while_there_are_prompts():
    steps = planned_steps(make_requests(40, max_tokens=300), 10_001, 40_960)
    assert [step.is_decode for step in steps] == sorted(step.is_decode for step in steps)
    assert steps[0].query_lens.sum() == 8192


def test_the_page_states_the_floor(floor):
    text = re.sub(r"\s+", " ", PAGE.read_text())
    counts = f"{floor.kv_read_tb:.1f} TB of KV, {floor.weight_tb:.2f} TB of weights, {floor.steps:,} steps"
    assert f"{counts}, {floor.mixed_steps} of them mixed" in text
    for gpu, ceilings in CEILINGS.items():
        row = [
            *(gpu, f"{ceilings.copy / 1e12:.1f} TB/s", f"{ceilings.matmul / 1e12:.0f} TFLOP/s"),
            *(f"{floor.least_s[gpu]:.2f} s", f"{10 * round(floor.tok_s[gpu] / 10):,}"),
            f"{report.RATE_TARGETS[gpu]:,}",
        ]
        assert f"| {' | '.join(row)} |" in text, row


def test_targets_are_the_share_aimed_at(floor):
    share = report.TARGETS["roofline_share"]
    assert {gpu: 100 * round(share * rate / 100) for gpu, rate in floor.tok_s.items()} == report.RATE_TARGETS
    text = PAGE.read_text()
    assert f"{share:.0%} of the floor" in text
