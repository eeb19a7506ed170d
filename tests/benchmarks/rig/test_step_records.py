"""Recorded steps, their phases, and windows of the profiler."""

import json
from collections import Counter

import pytest
import torch

from benchmarks.gpu import step_phases
from benchmarks.rig import step_profiler, step_records
from executor_svc.runner.trial_plans import trial_plan
from tests.benchmarks.steps import make_step

# --- steps ---


def test_phases():
    steps = [
        make_step([(3, 3), (1, 4)], 10.0, launch_s=0.5, stage_s=0.25, done_s=11.0),
        make_step([(1, 4), (1, 5)], 10.5, launch_s=0.25, wait_s=0.5, done_s=13.0),
        make_step([(1, 5), (1, 6)], 14.0, launch_s=1.0, wait_s=0.5, done_s=15.5),
        make_step([(1, 7), (1, 6)], 15.25, num_samples=1, done_s=16.0),
    ]
    figures = step_phases.phases(steps, launches_ahead=True)
    assert (figures["decode"]["steps"], figures["decode"]["tokens"]) == (2, 4)
    assert (figures["mixed"]["steps"], figures["mixed"]["tokens"]) == (2, 6), "a row that is not sampled is a prompt's"
    assert figures["decode"]["s"] + figures["mixed"]["s"] == 16.0 - 10.0, "nothing is left out"
    assert figures["decode"]["starved_share"] == pytest.approx((0 + 2.0) / (2.0 + 2.5), abs=1e-4)
    assert figures["decode"]["us_step_p50"] == 2.25e6
    assert figures["decode"]["us_wait_p50"] == 0.5e6
    assert figures["mixed"]["us_stage_p99"] == pytest.approx(0.25e6, rel=0.02)
    without = step_phases.phases(steps[:1], launches_ahead=False)
    assert without["decode"] == {"steps": 0}
    assert without["mixed"]["starved_share"] is None


def test_steps_of_a_run():
    steps = [make_step([(1, 1)], at, done_s=at + 1) for at in (1.0, 2.0, 3.0)]
    steps.append(make_step([(1, 1)], 3.5))  # never done
    assert step_records.between(steps, 1.5, 4.5) == steps[1:3]


def test_records_survive_a_file(tmp_path):
    recorder = step_records.Recorder()
    columns = recorder.timed_parse(lambda: trial_plan([2, 1], 16))()
    step = recorder.launching(columns)
    recorder.timed_stage(lambda: None)()
    recorder.launched(step)
    recorder.save(tmp_path / "steps")
    (read,) = step_records.load_steps(tmp_path / "steps")
    assert (read.query_lens.tolist(), read.context_lens.tolist(), read.num_samples) == ([2, 1], [2, 1], 2)
    assert read.parse_s > 0
    assert 0 < read.stage_s < read.launch_s


def test_what_is_timed_is_put_back():
    import executor_svc.runner.runner
    import executor_svc.service.process

    before = executor_svc.service.process.parse_plan, executor_svc.runner.runner.stage
    with step_records.recording():
        assert executor_svc.service.process.parse_plan is not before[0]
        assert executor_svc.runner.runner.stage is not before[1]
    assert (executor_svc.service.process.parse_plan, executor_svc.runner.runner.stage) == before


# --- the profile ---


def trace_of(path, events, steps=2):
    made = [{"cat": cat, "name": name, "ts": ts, "dur": dur} for cat, name, ts, dur in events]
    path.write_text(json.dumps({"traceEvents": [*made, {"ph": "M", "name": "process_name"}], "baton_steps": steps}))
    return path


def test_what_the_gpu_did(tmp_path):
    events = [
        ("cuda_runtime", "cudaGraphLaunch", 0, 1000),
        ("kernel", "b", 150, 100),  # overlaps with the copy
        ("kernel", "a", 100, 40),  # 10 us before b
        ("gpu_memcpy", "copy", 200, 20),
        ("kernel", "a", 300, 100),  # 50 us after b
        ("gpu_memset", "set", 402, 98),
    ]
    figures = step_profiler.gpu_figures(trace_of(tmp_path / "trace", events))
    assert figures["us_step"] == 200.0
    assert figures["busy_share"] == pytest.approx(1 - 50 / 400)
    assert figures["kernels_share"] == pytest.approx(1 - 62 / 400)
    assert figures["us_longest_gap"] == 50
    assert figures["launches_a_step"] == 2.5
    assert list(figures["us_a_step"].items()) == [("a", 70.0), ("b", 50.0), ("set", 49.0), ("copy", 10.0)]


def test_a_trace_without_kernels_is_an_error(tmp_path):
    gpu_figures = step_profiler.gpu_figures
    assert gpu_figures(tmp_path / "missing") is None
    figures = gpu_figures(trace_of(tmp_path / "trace", [("cpu_op", "aten::mm", 0, 10)]))
    assert figures == {"error": "none of the trace's 2 events is a record of the GPU"}


def test_records_of_another_clock_do_not_count(tmp_path):
    """CUPTI stamps the first records of a later profile by another clock: the window seems to last for a day."""
    kernels = [("kernel", "a", 100.0 * start, 90) for start in range(10)]
    figures = step_profiler.gpu_figures(trace_of(tmp_path / "trace", kernels))
    assert (figures["records"], figures["of_another_clock"]) == (10, 0)
    for stray in (-1e11, 1e11):
        more = [("kernel", "a", stray + start, 90) for start in range(3)]
        trace = trace_of(tmp_path / "trace", [*more, *kernels])
        assert step_profiler.gpu_figures(trace) == figures | {"of_another_clock": 3}


def test_no_profile_comes_before_the_first_window(tmp_path, monkeypatch):
    """An empty profile may take the events of the next one with it (kineto issue 1554)."""
    started = []
    monkeypatch.setattr(step_profiler, "profile", lambda **_: started.append(1))
    step_profiler.StepProfiler(tmp_path, num_rows=2, num_steps=3)
    assert not started


def plan_of(num_rows, is_decode):
    return trial_plan([1 if is_decode else 2] * num_rows, 16)


def test_windows_hold_the_steps_they_should(tmp_path):
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
