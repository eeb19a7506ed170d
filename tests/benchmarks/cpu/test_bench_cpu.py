"""bench_cpu.py: its arithmetic, its sides and their turns, and the whole benchmark once with a tiny model."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.cpu import report, take_turns
from benchmarks.cpu.bench_cpu import vllm_side
from benchmarks.cpu.report import steps_of
from benchmarks.rig import process_times, workloads
from benchmarks.rig.runs import TimedRun
from benchmarks.rig.step_records import RecordedStep
from tests import ROOT
from tests.support.eventually import eventually
from tests.support.processes import is_running

PEER = f"""#!{sys.executable}
import json, os, socket, sys, time
print("a log line")
lines = socket.socket(fileno=int(sys.argv[-1])).makefile("rw")
wanted = json.loads(lines.readline())
counts = [outputs for prompt, outputs in wanted["requests"]]
lines.write(json.dumps({{"vllm": "0.0", "pid": os.getpid()}}) + "\\n")
lines.flush()
for line in iter(lines.readline, ""):
    asked = json.loads(line)
    if asked["name"] == "fail":
        sys.exit("out of memory")
    start_s = time.monotonic()
    time.sleep(0.1)
    limit = max(counts) if asked["limit"] is None else asked["limit"]
    tokens = sum(min(count, limit) for count in counts)
    lines.write(json.dumps({{"start_s": start_s, "end_s": time.monotonic(), "num_tokens": tokens}}) + "\\n")
    lines.flush()
"""
"""A stand-in for vLLM's Python: it ignores the script that it is given."""

SPIN = "import time\nwhile time.process_time() < 60: pass"


@pytest.fixture
def peer(tmp_path):
    """Path of `PEER`."""
    path = tmp_path / "python"
    path.write_text(PEER)
    path.chmod(0o755)
    return str(path)


def make_turn(rate, read_before=50e9, read_after=50e9):
    """A run of 10 s."""
    run = TimedRun(10.0, 20.0, 10 * rate)
    return take_turns.Turn(run, read_before, read_after, others_cpus=0.0)


def test_the_requests():
    requests = workloads.upper_halves(200, 128, 65)
    assert {len(request.prompt) for request in requests} <= set(range(64, 129))
    assert {request.num_output for request in requests} == set(range(33, 66))
    again = workloads.upper_halves(200, 128, 65)
    assert all((a.prompt == b.prompt).all() for a, b in zip(requests, again, strict=True))


def test_the_split_adds_up():
    run = TimedRun(10.0, 20.0, 5)
    times = {"launch_s": 3.0, "linear_s": 1.0, "attention_s": 0.5, "head_s": 0.25}
    steps = [RecordedStep(b"", b"", 1, at, **times) for at in (11.0, 15.0)]
    seconds = report.seconds_by_kind(run, steps)
    assert seconds == {"linear": 2.0, "attention": 1.0, "head": 0.5, "rest": 2.5, "waiting": 4.0}


def test_a_runs_steps_must_have_drawn_its_tokens():
    steps = [RecordedStep(b"", b"", 2, at, launch_s=1.0, done_s=at + 1) for at in (5.0, 11.0, 15.0)]
    assert [step.launched_s for step in steps_of(TimedRun(10.0, 20.0, 4), steps)] == [11.0, 15.0]
    with pytest.raises(RuntimeError, match="a run received 5 tokens, and 4 are recorded"):
        steps_of(TimedRun(10.0, 20.0, 5), steps)


# --- rounds ---


def test_only_runs_of_a_round_are_compared():
    """The machine is twice as fast in the third round: the ratio is the median of the rounds' ratios."""
    rates = [(90, 50), (80, 40), (190, 100)]
    rounds = [{"services": make_turn(ours), "vllm": make_turn(theirs)} for ours, theirs in rates]
    figures = report.against_vllm(rounds)
    assert figures["tok_s_runs"] == [50, 40, 100]
    assert figures["tok_s"] == 50
    assert figures["ratio_rounds"] == [1.8, 2.0, 1.9]
    assert figures["ratio"] == 1.9


def test_the_price_of_the_split():
    rates = [(98, 100), (45, 50), (101, 100)]
    rounds = [{"services": make_turn(ours), "in_process": make_turn(alone)} for ours, alone in rates]
    figures = report.against_one_process(rounds)
    assert figures["split_price_rounds"] == [0.02, 0.1, -0.01]
    assert figures["split_price"] == 0.02


@pytest.mark.parametrize(
    ("before", "after", "straddles"), [(47e9, 85e9, True), (85e9, 70e9, True), (85e9, 72e9, False)]
)
def test_a_run_straddles_a_change_of_the_machine(before, after, straddles):
    turn = make_turn(1, before, after)
    assert turn.straddles is straddles
    assert turn.read == max(before, after)


def test_sides_take_turns():
    """Each side is first once; the memory is measured before and after each run."""
    done = []

    def side(name):
        def runs(run_name, limit):
            done.append(f"{name} {run_name} {limit}")
            return TimedRun(time.monotonic(), time.monotonic() + 1e-9, 1)

        return take_turns.Side(runs, frozenset())

    def read():
        done.append("read")
        return float(len(done))

    rounds = take_turns.take_turns({name: side(name) for name in "abc"}, 3, read)
    assert [list(turns) for turns in rounds] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert done[:6] == ["read", "a run-0 None", "read", "read", "b run-0 None", "read"]
    assert (rounds[0]["b"].read_before, rounds[0]["b"].read_after) == (4, 6)


@pytest.mark.parametrize(
    ("run_s", "wall_s", "message"),
    [
        ((100.5, 109.5), 10.0, None),
        ((90.0, 99.0), 10.0, "a run from 100.0 s to 110.0 s says it was from 90.0 to 99.0 s"),
        ((100.5, 140.5), 10.0, "a run from"),
        ((100.5, 109.5), -20.0, "10.00 s by the monotonic clock and -20.00 s by the wall clock"),
    ],
)
def test_times_that_cannot_be_right(run_s, wall_s, message):
    run = TimedRun(*run_s, 5)
    with pytest.raises(RuntimeError, match=message) if message else contextlib.nullcontext():
        take_turns.check_clocks(run, 100.0, 110.0, wall_s)


def test_a_side_that_is_not_idle_is_noticed(monkeypatch):
    """Also if the process itself is idle and a child of it computes."""
    monkeypatch.setattr(take_turns, "IDLE_TIMEOUT_S", 0.0)
    before = process_times.children()
    command = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, SPIN]
    with subprocess.Popen(command, process_group=0) as process:
        try:
            assert process_times.children() - before == {process.pid}
            sides = {"busy": take_turns.Side(None, frozenset({process.pid}))}
            take_turns.wait_idle({})
            eventually(lambda: process_times.cpu_time_s({process.pid}) >= 0.1)
            with pytest.raises(RuntimeError, match="should be idle but use so many CPUs: "):
                take_turns.wait_idle(sides)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


# --- sides in processes of their own ---


def test_a_side_runs_when_it_is_asked(peer):
    requests = workloads.upper_halves(3, 8, 8)
    side = vllm_side(peer, Path(), requests)
    with side as run:
        asked_s = time.monotonic()
        assert run("warm-up", 2).num_tokens == 6
        whole = run("run-0", None)
    assert whole.num_tokens == sum(request.num_output for request in requests)
    assert asked_s < whole.start_s < whole.end_s < time.monotonic()
    assert side.facts["vllm"] == "0.0"
    eventually(lambda: not is_running(side.facts["pid"]), 5)


def test_a_failing_peer_is_quoted(tmp_path, peer):
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'no module vllm' >&2; exit 3\n")
    failing.chmod(0o755)
    with pytest.raises(RuntimeError, match="vLLM ended with 3: no module vllm"), vllm_side(str(failing), tmp_path, []):
        pass
    with pytest.raises(RuntimeError, match="vLLM ended with 1: out of memory"), vllm_side(peer, tmp_path, []) as run:
        run("fail", None)


def test_a_side_does_not_outlive_its_parent(peer):
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from benchmarks.cpu.side_process import SideProcess\n"
        "side = SideProcess('peer', [sys.argv[2]], {'requests': []})\n"
        "with side: print(side.facts['pid'], flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(ROOT), peer]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    eventually(lambda: not is_running(pid), 5)


@pytest.mark.slow
def test_the_whole_benchmark(tmp_path, peer):
    """With a stand-in for vLLM's Python, and a checkpoint that is missing."""
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "bench_cpu.py"),
        "--model",
        str(tmp_path / "tiny"),
        "--shape",
        "tiny",
    ]
    options = ["--num-seqs", "3", "--max-prompt", "12", "--max-output", "8", "--repeats", "2", "--in-process"]
    options += ["--peer", "vllm", "--peer-python", peer]
    done = subprocess.run([*command, *options], check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    figures = json.loads(line)
    assert 12 <= figures["output_tokens"] <= 24
    assert figures["steps"] >= figures["output_tokens"] / 3, "a step draws at most one token of each request"
    assert sum(figures["step_s"].values()) == pytest.approx(figures["s"], abs=2e-3)
    assert all(figures["step_s"][kind] > 0 for kind in ("linear", "attention", "head", "rest"))
    first, second = figures["rounds"]
    assert list(first) == ["vllm", "services", "in_process"]
    assert list(second) == ["services", "in_process", "vllm"]
    assert figures["out_tok_s"] == min(figures["out_tok_s_runs"]), "the slower one of two"
    chosen = figures["rounds"][figures["median_round"]]["services"]
    assert figures["out_tok_s"] == chosen["tok_s"]
    assert figures["read_gb_s"] == max(chosen["read_gb_s"])
    ours, alone, theirs = (first[name]["tok_s"] for name in ("services", "in_process", "vllm"))
    assert figures["peer"]["vllm"] == "0.0"
    assert figures["peer"]["ratio_rounds"][0] == pytest.approx(ours / theirs, rel=0.01)
    assert figures["in_process"]["split_price_rounds"][0] == pytest.approx(1 - ours / alone, abs=0.01)
    assert figures["straddling_runs"] == sum(turn["straddles"] for turns in (first, second) for turn in turns.values())
    assert 0 <= figures["idle_cpus"] < 1
    assert 0 < figures["roofline_share"] < 1
    assert (tmp_path / "tiny" / "config.json").exists()
