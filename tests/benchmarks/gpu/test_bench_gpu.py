"""bench_gpu.py: how its sides take turns, and the whole benchmark once, on the CPU."""

import json
from contextlib import contextmanager

import pytest
import torch

from benchmarks.gpu import bench_gpu
from benchmarks.gpu.bench_gpu import SidesOnGpu
from benchmarks.rig import service_load
from benchmarks.rig.front_client import _take
from benchmarks.rig.runs import TimedRun
from common import messages as m
from executor_svc.model.families import read_config
from tests.benchmarks.running import run

# --- the sides ---


def delta(request_id, num_tokens, reason=None):
    return m.TokenDelta(request_id=request_id, index=0, token_ids=bytes(4 * num_tokens), finish_reason=reason)


def test_a_request_must_get_all_its_tokens():
    left = {"a": 5, "b": 3}
    _take(delta("a", 2), left)
    _take(delta("a", 3, "length"), left)
    assert left == {"b": 3}
    with pytest.raises(RuntimeError, match="1 tokens missing"):
        _take(delta("b", 2, "length"), left)
    with pytest.raises(RuntimeError, match="'error'"):
        _take(delta("c", 1, "error"), {"c": 1})


class FakeSide:
    """A side that logs its runs."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def run(self, submits):
        self.log.append((self.name, submits[0].cache_salt))
        return TimedRun(0.0, float(len(self.log)), 1)


@pytest.mark.parametrize(("in_one", "together"), [(True, True), (True, False), (False, False)])
def test_the_sides_take_turns_where_they_can(monkeypatch, tmp_path, in_one, together):
    log = []

    @contextmanager
    def side(name):
        log.append((name, "starts"))
        yield FakeSide(name, log)
        log.append((name, "ends"))

    class FakeServices:
        executor_arguments = ()

        def running(self, folder):
            return side("services")

    monkeypatch.setattr(bench_gpu, "in_process", lambda arguments, config: side("one"))
    requests = service_load.make_requests(2)
    bench = SidesOnGpu(None, FakeServices(), requests, 2, in_one, together, False, tmp_path)
    through_services, in_one_process = bench._run_sides()
    assert len(through_services) == 2
    names = [name for name, what in log if what.startswith("run-")]
    if not in_one:
        assert in_one_process is None
        assert {name for name, _ in log} == {"services"}
    elif together:
        assert names == ["services", "one", "one", "services"]
        assert len(in_one_process) == 2
    else:
        assert names == ["services", "services", "one", "one"]
        assert log.index(("services", "ends")) < log.index(("one", "starts"))


# --- all of it ---


def bench(*arguments, device="cpu"):
    return run("bench_gpu.py", "--device", device, *arguments)


def figures_of(done):
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)


@pytest.mark.slow
def test_the_whole_benchmark_on_a_cpu(tiny, tmp_path):
    done = bench(
        *("--model", "tiny", "--checkpoint", tiny["tiny"], "--out", tmp_path),
        *("--num-seqs", 4, "--max-tokens", 24, "--repeats", 1, "--profile-steps", 4, "--peer", "transformers"),
        *("--executor-option=--max-batch-tokens=12", "--executor-option=--threads=1"),
    )
    figures = figures_of(done)
    assert figures["output_tokens"] == 96 == figures["prompt_tokens"]
    for side in ("service", "in_process", "peer"):
        assert figures[side]["tok_s"] > 0
    assert figures["split_share"] == pytest.approx(figures["service"]["tok_s"] / figures["in_process"]["tok_s"], 1e-3)
    decode, mixed, roofline = figures["phases"]["decode"], figures["phases"]["mixed"], figures["roofline"]
    # Every token is computed once, but for the last one of each sequence.
    assert decode["tokens"] + mixed["tokens"] == 96 + 96 - 4
    assert decode["steps"] + mixed["steps"] == roofline["steps"] > 24
    config = read_config(tiny["tiny"])
    position = 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim
    assert roofline["kv_written_gb"] == pytest.approx(188 * position / 1e9, abs=1e-6)
    assert decode["us_parse_p50"] > 0
    assert 0 < decode["us_stage_p50"] < decode["us_launch_p50"]
    assert roofline["share"] is None is decode["starved_share"]
    assert figures["gpu"] == {"decode": None, "mixed": None}, "no figure that needs a GPU"
    assert {path.name for path in (tmp_path / "profile").glob("*.trace.json")} == {
        "decode.trace.json",
        "mixed.trace.json",
    }
    assert "output tok/s through the services" in done.stderr
    assert "target" not in done.stderr


@pytest.mark.slow
def test_several_ranks(tiny):
    done = bench(
        *("--model", "tiny-moe", "--checkpoint", tiny["tiny-moe"], "--tensor-parallel", 2),
        *("--num-seqs", 2, "--max-tokens", 8, "--repeats", 1, "--profile-steps", 0),
        "--executor-option=--threads=1",
    )
    figures = figures_of(done)
    assert figures["service"]["tok_s"] > 0
    assert figures["in_process"] is None is figures["split_share"]
    assert figures["phases"]["decode"]["tokens"] + figures["phases"]["mixed"]["tokens"] == 16 + 16 - 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine where torch finds no CUDA device")
@pytest.mark.slow
def test_without_a_gpu_it_says_so():
    done = bench("--model", "tiny", device="cuda")
    assert done.returncode == 2
    assert "CUDA" in done.stderr
    assert not done.stdout
