"""benchmarks/bench_gpu.py: its arithmetic against counts made in other ways, and all of it once, on the CPU."""

import importlib
import json
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from common import messages as m
from executor_svc.model.config import read_config
from executor_svc.model.weights import Checkpoint, load_weights
from executor_svc.runner.trial_plans import trial_plan

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PUBLISHED = {
    "0.6B": 596_049_920,
    "1.7B": 1_720_574_976,
    "4B": 4_022_468_096,
    "8B": 8_190_735_360,
    "30B-A3B": 30_532_122_624,
}
"""Parameters of Qwen3's checkpoints, as their indices and the hub say."""


@pytest.fixture(scope="module")
def load():
    """Modules of the benchmark, which is a script with its helpers beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module


@pytest.fixture(scope="module")
def tiny(load, tmp_path_factory):
    """Checkpoints of the two tiny shapes, in several files each."""
    checkpoints = load("checkpoints")
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        name: checkpoints.write_checkpoint(root / name, checkpoints.SHAPES[name], shard_bytes=2**20)
        for name in ("tiny", "tiny-moe")
    }


def make_step(load, rows, launched_s=0.0, num_samples=None, **times):
    """A step of (query length, context length) rows, all sampled unless said otherwise."""
    queries, contexts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    samples = len(rows) if num_samples is None else num_samples
    return load("step_records").Step(queries.tobytes(), contexts.tobytes(), samples, launched_s, **times)


# --- checkpoints ---


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_have_the_models_parameters(load, name):
    assert load("checkpoints").SHAPES[name].num_bytes() == 2 * PUBLISHED[name]


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_a_checkpoint_can_be_served(load, tiny, name):
    folder = tiny[name]
    assert len(list(folder.glob("*.safetensors"))) > 1
    with Checkpoint(folder) as checkpoint:  # each shard must hold what the index says
        weights, _ = load_weights(checkpoint, read_config(folder), torch.bfloat16, torch.device("cpu"))
    assert weights.num_parameters == load("checkpoints").SHAPES[name].num_bytes() // 2
    assert weights.embedding.float().std() == pytest.approx(0.02, rel=0.05)
    assert weights.norm.float().mean() == pytest.approx(1, abs=0.02)


def test_transformers_reads_the_same_shapes(load):
    from transformers import AutoConfig

    for name, shape in load("checkpoints").SHAPES.items():
        config = shape.config()
        theirs = AutoConfig.for_model(config.pop("model_type"), **config)
        assert (theirs.num_hidden_layers, theirs.head_dim, theirs.vocab_size) == (
            shape.layers,
            shape.head_dim,
            shape.vocab_size,
        ), name


# --- the workload ---


def test_the_workload_is_nano_vllms(load):
    workload = load("gpu_workload")
    requests = workload.make_requests(256)
    assert sum(request.num_output for request in requests) == 133_966
    assert max(request.prompt.max() for request in requests) <= 10_000
    cut = workload.make_requests(256, 30)
    assert {len(request.prompt) for request in cut} == {30} == {request.num_output for request in cut}
    assert all((a.prompt[:30] == b.prompt).all() for a, b in zip(requests, cut, strict=True))


def test_runs_share_no_cached_prompts(load):
    workload = load("gpu_workload")
    first, second = (workload.submits(workload.make_requests(3), salt) for salt in "ab")
    assert {submit.cache_salt for submit in first}.isdisjoint({submit.cache_salt for submit in second})
    assert len({submit.request_id for submit in first + second}) == 6
    assert not any(submit.params.stop_token_ids for submit in first)


def test_the_pool_holds_all_requests(load):
    workload = load("gpu_workload")
    requests = workload.make_requests(20)
    for block in (16, 256):
        blocks = sum(-(-(len(request.prompt) + request.num_output) // block) for request in requests)
        assert workload.pool_positions(requests) // block >= blocks


# --- the roofline ---


def test_bytes_of_a_step(load, tiny):
    """Every weight once (the embedding only where tokens look it up), every position of KV once."""
    rows = [(1, 5), (3, 7)]
    for name, folder in tiny.items():
        config = read_config(folder)
        work = load("roofline").WorkModel(config, 2).work(make_step(load, rows, num_samples=1))
        shape = load("checkpoints").SHAPES[name]
        looked_up = 4 * config.hidden_size
        tables = {"tiny": 0, "tiny-moe": config.vocab_size * config.hidden_size}[name]
        expected = shape.num_bytes() // 2 - tables + looked_up
        if config.moe is not None:  # of 8 experts each token misses 6
            expert = 3 * config.hidden_size * config.moe.intermediate_size
            expected -= config.num_layers * 8 * (6 / 8) ** 4 * expert
        assert work.weight_bytes == pytest.approx(2 * expected)
        position = 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim
        assert (work.kv_bytes_read, work.kv_bytes_written) == (12 * position, 4 * position)
        assert work.num_bytes == work.weight_bytes + 16 * position


def test_a_step_without_samples_reads_no_head(load, tiny):
    config = read_config(tiny["tiny"])
    model = load("roofline").WorkModel(config, 2)
    with_head, without = (model.work(make_step(load, [(4, 9)], num_samples=n)) for n in (1, 0))
    head = config.vocab_size * config.hidden_size
    assert with_head.weight_bytes - without.weight_bytes == 2 * head
    assert with_head.operations - without.operations == 2 * head


def test_operations_of_a_decode_step_are_transformers(load, tiny):
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(tiny["tiny"], attn_implementation="eager")
    before = model(torch.arange(8)[None])
    with FlopCounterMode(display=False) as counter:
        model(torch.tensor([[3]]), past_key_values=before.past_key_values)
    work = load("roofline").WorkModel(read_config(tiny["tiny"]), 2).work(make_step(load, [(1, 9)]))
    assert work.operations == counter.get_total_flops()


def test_operations_of_prompts_and_experts(load, tiny):
    """A chunk is as much work as its tokens one by one; a token uses 2 of 8 experts."""
    for folder in tiny.values():
        model = load("roofline").WorkModel(read_config(folder), 2)
        chunk = model.work(make_step(load, [(5, 12)], num_samples=0)).operations
        assert chunk == sum(model.work(make_step(load, [(1, c)], num_samples=0)).operations for c in range(8, 13))
    config = read_config(tiny["tiny-moe"])
    work = load("roofline").WorkModel(config, 2).work(make_step(load, [(1, 2)], num_samples=0))
    attention = 4 * 2 * config.num_heads * config.head_dim
    matrices = 2 * config.hidden_size * config.head_dim * (config.num_heads + config.num_kv_heads)
    matrices += config.hidden_size * (8 + 2 * 3 * config.moe.intermediate_size)
    assert work.operations == config.num_layers * (2 * matrices + attention)


def test_the_least_time_is_each_steps_longer_one(load):
    roofline, ceilings = load("roofline"), load("kernel_timing").Ceilings(copy=100.0, matmul=1000.0)
    works = [roofline.Work(150, 40, 10, 1000), roofline.Work(10, 10, 0, 4000)]
    assert roofline.least_time(works, ceilings, 1) == 2.0 + 4.0
    assert roofline.least_time(works, ceilings, 2) == 1.0 + 2.0
    assert roofline.total_work(works) == roofline.Work(160, 50, 10, 5000)


# --- steps ---


def test_phases(load):
    steps = [
        make_step(load, [(3, 3), (1, 4)], 10.0, launch_s=0.5, stage_s=0.25, done_s=11.0),
        make_step(load, [(1, 4), (1, 5)], 10.5, launch_s=0.25, wait_s=0.5, done_s=13.0),
        make_step(load, [(1, 5), (1, 6)], 14.0, launch_s=1.0, wait_s=0.5, done_s=15.5),
        make_step(load, [(1, 7), (1, 6)], 15.25, num_samples=1, done_s=16.0),
    ]
    figures = load("step_phases").phases(steps, launches_ahead=True)
    assert (figures["decode"]["steps"], figures["decode"]["tokens"]) == (2, 4)
    assert (figures["mixed"]["steps"], figures["mixed"]["tokens"]) == (2, 6), "a row that is not sampled is a prompt's"
    assert figures["decode"]["s"] + figures["mixed"]["s"] == 16.0 - 10.0, "nothing is left out"
    assert figures["decode"]["starved_share"] == pytest.approx((0 + 2.0) / (2.0 + 2.5), abs=1e-4)
    assert figures["decode"]["us_step_p50"] == 2.25e6
    assert figures["decode"]["us_wait_p50"] == 0.5e6
    assert figures["mixed"]["us_stage_p99"] == pytest.approx(0.25e6, rel=0.02)
    without = load("step_phases").phases(steps[:1], launches_ahead=False)
    assert without["decode"] == {"steps": 0}
    assert without["mixed"]["starved_share"] is None


def test_steps_of_a_run(load):
    records = load("step_records")
    steps = [make_step(load, [(1, 1)], at, done_s=at + 1) for at in (1.0, 2.0, 3.0)]
    steps.append(make_step(load, [(1, 1)], 3.5))  # never done
    assert records.between(steps, 1.5, 4.5) == steps[1:3]


def test_records_survive_a_file(load, tmp_path):
    records = load("step_records")
    recorder = records.Recorder()
    columns = recorder.timed_parse(lambda: trial_plan([2, 1], 16))()
    step = recorder.launching(columns)
    recorder.timed_stage(lambda: None)()
    recorder.launched(step)
    recorder.save(tmp_path / "steps")
    (read,) = records.load_steps(tmp_path / "steps")
    assert (read.query_lens.tolist(), read.context_lens.tolist(), read.num_samples) == ([2, 1], [2, 1], 2)
    assert read.parse_s > 0
    assert 0 < read.stage_s < read.launch_s


def test_what_is_timed_is_put_back(load):
    import executor_svc.runner.runner
    import executor_svc.service.process

    before = executor_svc.service.process.parse_plan, executor_svc.runner.runner.stage
    with load("step_records").recording():
        assert executor_svc.service.process.parse_plan is not before[0]
        assert executor_svc.runner.runner.stage is not before[1]
    assert (executor_svc.service.process.parse_plan, executor_svc.runner.runner.stage) == before


# --- the profile ---


def trace_of(path, events, steps=2):
    made = [{"cat": cat, "name": name, "ts": ts, "dur": dur} for cat, name, ts, dur in events]
    path.write_text(json.dumps({"traceEvents": [*made, {"ph": "M", "name": "process_name"}], "baton_steps": steps}))
    return path


def test_what_the_gpu_did(load, tmp_path):
    events = [
        ("cuda_runtime", "cudaGraphLaunch", 0, 1000),
        ("kernel", "b", 150, 100),  # overlaps with the copy
        ("kernel", "a", 100, 40),  # 10 us before b
        ("gpu_memcpy", "copy", 200, 20),
        ("kernel", "a", 300, 100),  # 50 us after b
        ("gpu_memset", "set", 402, 98),
    ]
    figures = load("step_profiler").gpu_figures(trace_of(tmp_path / "trace", events))
    assert figures["us_step"] == 200.0
    assert figures["busy_share"] == pytest.approx(1 - 50 / 400)
    assert figures["kernels_share"] == pytest.approx(1 - 62 / 400)
    assert figures["us_longest_gap"] == 50
    assert figures["launches_a_step"] == 2.5
    assert list(figures["us_a_step"].items()) == [("a", 70.0), ("b", 50.0), ("set", 49.0), ("copy", 10.0)]


def test_without_a_gpu_there_is_nothing_to_see(load, tmp_path):
    gpu_figures = load("step_profiler").gpu_figures
    assert gpu_figures(tmp_path / "missing") is None
    assert gpu_figures(trace_of(tmp_path / "trace", [("cpu_op", "aten::mm", 0, 10)])) is None


def plan_of(num_rows, is_decode):
    return trial_plan([1 if is_decode else 2] * num_rows, 16)


def test_windows_hold_the_steps_they_should(load, tmp_path):
    step_profiler = load("step_profiler")
    profiler = step_profiler.StepProfiler(tmp_path, num_rows=2, num_steps=3)
    script = [(2, True)] * 9 + [(2, False)] * 2
    for row in script:
        profiler.before_launch(plan_of(*row))
    assert not list(tmp_path.iterdir()), "it is not armed"
    (tmp_path / step_profiler.ARMED).touch()
    mixed = step_profiler.WARM_STEPS + 2
    script = [(1, True)] * 9 + [(2, False)] * mixed + [(2, True)] * 20
    for row in script:
        profiler.before_launch(plan_of(*row))
        torch.ones(1)  # one operation a step
    for kind, steps in (("mixed", 3), ("decode", 3)):
        content = json.loads((tmp_path / step_profiler.trace_file(kind)).read_text())
        assert content["baton_steps"] == steps, kind
        calls = Counter(event["name"] for event in content["traceEvents"] if event.get("cat") == "cpu_op")
        assert calls["aten::ones"] == steps, kind


# --- figures and what is said of them ---


def test_comparisons(load):
    report, run = load("gpu_report"), load("gpu_workload").Run
    service = [run(0.0, seconds, 100) for seconds in (1.0, 2.0, 4.0)]  # 100, 50, 25 a second
    in_one = [run(0.0, seconds, 100) for seconds in (1.0, 1.0, 3.0)]
    assert report.rates(service) == {"tok_s": 50.0, "tok_s_runs": [100.0, 50.0, 25.0]}
    assert report.median_run(service) is service[1]
    assert report.median_run(service[:2]) is service[1]
    assert report.price_of_split(service, in_one) == 0.75
    assert report.rates(None) is None is report.price_of_split(service, None)


def test_the_share_of_the_roofline(load, tiny):
    report, run = load("gpu_report"), load("gpu_workload").Run
    model = load("roofline").WorkModel(read_config(tiny["tiny"]), 2)
    step = make_step(load, [(1, 9)])
    ceilings = load("kernel_timing").Ceilings(copy=model.work(step).num_bytes / 2, matmul=1e15)  # 2 s a step
    figures = report.roofline(run(5.0, 10.0, 8), [step, step], model, ceilings, 1)
    assert (figures["least_s"], figures["tok_s"], figures["share"]) == (4.0, 2.0, 0.8)
    without = report.roofline(run(5.0, 10.0, 8), [step, step], model, None, 1)
    assert without["least_s"] is None is without["share"]
    assert {key for key in without if without[key] is not None} == {
        *("steps", "weight_gb", "kv_read_gb", "kv_written_gb", "tflop")
    }


GPU_FIGURES = {
    "model": "0.6B",
    "device": "NVIDIA H200",
    "num_seqs": 256,
    "output_tokens": 133_966,
    "repeats": 3,
    "journal": True,
    "service": {"tok_s": 34_000.0},
    "in_process": {"tok_s": 35_000.0},
    "split_share": 0.97,
    "roofline": {
        "steps": 1032,
        "weight_gb": 1200.0,
        "kv_read_gb": 13000.0,
        "kv_written_gb": 30.0,
        "tflop": 300.0,
        "copy_tb_s": 4.3,
        "matmul_tflop_s": 790.0,
        "least_s": 3.2,
        "tok_s": 42_000.0,
        "share": 0.81,
    },
    "phases": {"decode": {"steps": 0}, "mixed": {"steps": 0}},
    "gpu": {
        "decode": {"steps": 100, "busy_share": 0.971, "kernels_share": 0.9, "us_longest_gap": 12.0},
        "mixed": None,
    },
    "peer": {"tok_s": None, "error": "Traceback\nMemoryError: too much"},
}


def test_targets_stand_beside_the_figures(load):
    summarize = load("gpu_report").summarize
    text = summarize(GPU_FIGURES)
    assert "34,000 output tok/s through the services (target 34,000: met)" in text
    assert "97.0% of it (target 98%: missed)" in text
    assert "reached 81.0% (target 80%: met)" in text
    assert "busy for 97.1% of 100 decode steps (target 97%: met)" in text
    assert "MemoryError: too much" in text
    assert summarize(GPU_FIGURES | {"model": "8B"}).count("target") == 2, "the first two are 0.6B's"
    peer = {"tok_s": 8500.0, "transformers": "5.17.0", "attention": "paged"}
    assert "4.00 times as fast" in summarize(GPU_FIGURES | {"peer": peer})


# --- the sides ---


def delta(request_id, num_tokens, reason=None):
    return m.TokenDelta(request_id=request_id, index=0, token_ids=bytes(4 * num_tokens), finish_reason=reason)


def test_a_request_must_get_all_its_tokens(load):
    take = load("front_client")._take
    left = {"a": 5, "b": 3}
    take(delta("a", 2), left)
    take(delta("a", 3, "length"), left)
    assert left == {"b": 3}
    with pytest.raises(RuntimeError, match="1 tokens missing"):
        take(delta("b", 2, "length"), left)
    with pytest.raises(RuntimeError, match="'error'"):
        take(delta("c", 1, "error"), {"c": 1})


class FakeSide:
    """Knows who ran when."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def run(self, submits):
        self.log.append((self.name, submits[0].cache_salt))
        return a_run(len(self.log))


def a_run(seconds):
    from gpu_workload import Run

    return Run(0.0, float(seconds), 1)


@pytest.mark.parametrize(("together", "ranks"), [(True, 1), (False, 1), (True, 2)])
def test_the_sides_take_turns_where_they_can(load, monkeypatch, tmp_path, together, ranks):
    bench_gpu, log = load("bench_gpu"), []

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
    services = FakeServices()
    services.ranks = ranks
    requests = load("gpu_workload").make_requests(2)
    bench = bench_gpu.Bench(None, services, requests, 2, together, False, tmp_path)
    through_services, in_one = bench._run_sides()
    assert len(through_services) == 2
    names = [name for name, what in log if what.startswith("run-")]
    if ranks > 1:
        assert in_one is None
        assert {name for name, _ in log} == {"services"}
    elif together:
        assert names == ["services", "one", "one", "services"]
        assert len(in_one) == 2
    else:
        assert names == ["services", "services", "one", "one"]
        assert log.index(("services", "ends")) < log.index(("one", "starts"))


# --- all of it ---


def bench(*arguments, device="cpu"):
    command = [sys.executable, str(BENCHMARKS / "bench_gpu.py"), "--device", device, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)


def figures_of(done):
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so():
    done = bench("--model", "tiny", device="cuda")
    assert done.returncode == 2
    assert "CUDA" in done.stderr
    assert not done.stdout
