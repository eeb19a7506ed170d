"""benchmarks/bench_cpu.py: its arithmetic, and all of it once with a tiny model."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def load():
    """Modules of the benchmark, which is a script with its helpers beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module


def test_the_requests(load):
    requests = load("workloads").upper_halves(200, 128, 65)
    assert {len(request.prompt) for request in requests} <= set(range(64, 129))
    assert {request.num_output for request in requests} == set(range(33, 66))
    again = load("workloads").upper_halves(200, 128, 65)
    assert all((a.prompt == b.prompt).all() for a, b in zip(requests, again, strict=True))


def test_the_split_adds_up(load):
    run = load("gpu_workload").Run(10.0, 20.0, 5)
    times = {"launch_s": 3.0, "linear_s": 1.0, "attention_s": 0.5, "head_s": 0.25}
    steps = [load("step_records").Step(b"", b"", 1, at, **times) for at in (11.0, 15.0)]
    seconds = load("bench_cpu").split(run, steps)
    assert seconds == {"linear": 2.0, "attention": 1.0, "head": 0.5, "rest": 2.5, "waiting": 4.0}


def test_ratios_are_of_medians(load):
    run = load("gpu_workload").Run
    ours = [run(0.0, 1.0, tokens) for tokens in (90, 200, 100)]
    before, after = ({"vllm": "0", "tok_s_runs": rates} for rates in ([50.0, 40.0], [60.0, 50.0]))
    figures = load("bench_cpu").ratios(ours, before, after)
    assert figures["ratio"] == 2.0
    assert figures["ratio_range"] == [1.5, 5.0], "our spread counts, too"


def test_a_failing_peer_is_quoted(load, tmp_path):
    peer = tmp_path / "python"
    peer.write_text("#!/bin/sh\necho 'no module vllm' >&2; exit 3\n")
    peer.chmod(0o755)
    with pytest.raises(RuntimeError, match="vLLM ended with 3: no module vllm"):
        load("bench_cpu").run_peer(str(peer), tmp_path, [], 1)


def test_the_whole_benchmark(tmp_path):
    """With a stand-in for vLLM's Python, and a checkpoint that is missing."""
    peer = tmp_path / "python"
    peer.write_text('#!/bin/sh\necho "its log"; echo \'{"vllm": "0.0", "tok_s_runs": [2.0]}\' > "$4"\n')
    peer.chmod(0o755)
    command = [sys.executable, str(BENCHMARKS / "bench_cpu.py"), "--model", str(tmp_path / "tiny"), "--shape", "tiny"]
    options = ["--num-seqs", "3", "--max-prompt", "12", "--max-output", "8", "--repeats", "1", "--in-process"]
    options += ["--peer", "vllm", "--peer-python", str(peer)]
    done = subprocess.run([*command, *options], check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    figures = json.loads(line)
    assert 12 <= figures["output_tokens"] <= 24
    assert figures["steps"] >= figures["output_tokens"] / 3, "a token of each at most"
    assert sum(figures["step_s"].values()) == pytest.approx(figures["s"], abs=2e-3)
    assert all(figures["step_s"][kind] > 0 for kind in ("linear", "attention", "head", "rest"))
    assert figures["in_process"]["tok_s"] > 0
    assert figures["peer"]["ratio"] == pytest.approx(figures["out_tok_s"] / 2, rel=0.01)
    assert 0 < figures["roofline_share"] < 1
    assert (tmp_path / "tiny" / "config.json").exists()
