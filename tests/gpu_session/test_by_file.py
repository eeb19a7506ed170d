"""Running test files by file: what spoils a process is found, the other tests still run, and none may be left out."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.gpu_session import by_file
from tests.gpu_session.by_file import Limits, Place, exit_code, run_files
from tests.gpu_session.records import Entry, append, lasting_fault, read, report_of

pytestmark = pytest.mark.slow

HEAD = "import os, signal, sys, time\nimport pytest\npytestmark = pytest.mark.{}\n".format("gpu")
PASSES = "def test_{}(): pass\n"
ILLEGAL = "def test_illegal(): raise RuntimeError('CUDA error: an illegal memory access was encountered')\n"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu: needs a GPU\n  slow: takes long\n")
    (tmp_path / "state").mkdir()
    return Place(tmp_path, tmp_path / "state")


def write(place, name, *tests):
    (place.root / name).write_text(HEAD + "".join(tests))
    return name


def run(place, *files, seconds=100.0, **limits):
    return run_files(files, place, Limits(time.monotonic() + seconds, **{"alone": (), **limits}))


def test_a_file_that_passes(place):
    (report,) = run(place, write(place, "test_good.py", PASSES.format("a"), PASSES.format("b")))
    assert report.has_passed
    assert (report.collected, report.passed, report.processes) == (2, 2, 1)
    assert exit_code([report]) == 0
    assert report.to_json()["outcome"] == "passed"


SLOW = pytest.mark.slow
NAMED = re.compile(r"\b(gpu|device)\b")
ASSERTS = "def test_asserts(): raise RuntimeError('CUDA error: device-side assert triggered')\n"


@pytest.mark.parametrize(
    ("test", "by"),
    [
        (ILLEGAL, "an illegal memory access was encountered"),
        pytest.param(ASSERTS, "device-side assert", marks=SLOW),
        pytest.param("def test_exits(): os._exit(3)\n", "exit code 3", marks=SLOW),
        pytest.param("def test_exits_with_0(): os._exit(0)\n", "exit code 0", marks=SLOW),
        ("def test_aborts(): os.abort()\n", "signal SIGABRT"),
        pytest.param("def test_is_killed(): os.kill(os.getpid(), 9)\n", "signal SIGKILL", marks=SLOW),
    ],
)
def test_what_spoils_a_process_is_named_and_the_other_tests_run(place, test, by):
    (report,) = run(place, write(place, "test_bad.py", PASSES.format("a"), test, PASSES.format("c")))
    name = test.split("(")[0].removeprefix("def ")
    assert report.spoilt == {f"test_bad.py::{name}": by}
    assert (report.collected, report.passed, report.failed, report.processes) == (3, 2, 1, 2)
    assert exit_code([report]) == 1
    found = report.to_json()
    assert (found["outcome"], found["first_failing"]["test"]) == ("failed", f"test_bad.py::{name}")
    assert found["spoilt"] == [{"test": f"test_bad.py::{name}", "by": by}]


def test_hypothesis_stops_at_the_first_example_that_fails(place):
    file = write(
        place,
        "test_property.py",
        "from hypothesis import given, strategies as st\n",
        "failed = []\n",
        "@given(st.integers())\n",
        "def test_small(number):\n",
        "    failed.extend([number] * (number > 900))\n",
        "    assert number <= 900, f'first {failed[0]}, told {number}.'\n",
    )
    (report,) = run(place, file)
    first, told = re.search(r"first (\d+), told (\d+)\.", report.to_json()["first_failing"]["said"]).groups()
    assert first == told


def test_a_failure_that_leaves_the_gpu_whole_spoils_nothing(place):
    file = write(
        place,
        "test_bad.py",
        "def test_oom(): raise RuntimeError('CUDA out of memory. Tried to allocate 20 GiB')\n",
        PASSES.format("b"),
    )
    (report,) = run(place, file)
    assert (report.spoilt, report.failed, report.passed, report.processes) == ({}, 1, 1, 1)
    assert "Tried to allocate" in report.failures["test_bad.py::test_oom"]


@pytest.mark.parametrize(
    "ignores",
    [
        pytest.param("", marks=pytest.mark.slow),
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); ",
    ],
)
def test_a_test_that_hangs(place, ignores):
    """pytest-timeout ends a test that waits in Python; what no signal reaches is killed."""
    hangs = f"def test_hangs():\n    {ignores}time.sleep(60)\n"
    (report,) = run(place, write(place, "test_bad.py", hangs, PASSES.format("b")), test_s=3.0, grace_s=2.0)
    assert (report.failed, report.passed) == (1, 1)
    if ignores:
        assert report.spoilt == {"test_bad.py::test_hangs": "timeout: it had not ended after 5 s"}
    else:
        assert "Timeout" in report.failures["test_bad.py::test_hangs"]


def test_a_test_that_takes_too_much_memory(place):
    takes = "def test_takes():\n    taken = bytearray(b'x' * 2**30)\n    time.sleep(60)\n"
    (report,) = run(place, write(place, "test_bad.py", takes, PASSES.format("b")), host_gib=0.5)
    assert (report.failed, report.passed) == (1, 1)
    assert report.spoilt["test_bad.py::test_takes"].startswith("memory: it took")


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "@pytest.mark.skip(reason='not today')\n" + PASSES.format("a") + PASSES.format("b"),
        HEAD,
        "def test_without_the_marker(): pass\n",
        HEAD + "pytest.importorskip('no_such_package')\n" + PASSES.format("a"),
        HEAD + "import no_such_package\n",
        HEAD + "os._exit(7)\n",
    ],
    ids=["skipped", "empty", "unmarked", "skipped file", "does not import", "dies when imported"],
)
def test_what_does_not_run_is_a_failure(place, text):
    (place.root / "test_bad.py").write_text(text)
    (report,) = run(place, "test_bad.py")
    assert not report.has_passed
    assert (exit_code([report]), report.to_json()["outcome"]) == (1, "failed")
    assert report.skipped or report.problem


def test_nothing_runs_past_the_deadline(place):
    files = [
        write(place, "test_one.py", PASSES.format("a"), "def test_sleeps(): time.sleep(60)\n", PASSES.format("c")),
        write(place, "test_two.py", PASSES.format("a")),
    ]
    began = time.monotonic()
    one, two = run(place, *files, seconds=5.0, at_once=1)
    assert time.monotonic() - began < 10.0
    assert (one.passed, one.failed, one.is_finished, one.spoilt) == (1, 0, False, {})
    assert one.to_json()["outcome"] == "timed out"
    assert two.collected == -1, "it was never started"
    assert exit_code([one, two]) == 3


def test_only_some_tests_are_chosen(place):
    file = write(place, "test_two.py", PASSES.format("small"), "@pytest.mark.slow\n", PASSES.format("real_sizes"))
    for limits in ({"chosen": "real_sizes"}, {"chosen": "not real_sizes"}, {"marked": "gpu and not slow"}):
        (place.state / "test_two.py.jsonl").unlink(missing_ok=True)
        (report,) = run(place, file, **limits)
        assert (report.has_passed, report.collected) == (True, 1)


def test_the_machines_own_plugins_are_not_loaded(place, monkeypatch):
    """They are made for another pytest than the one that travels; pytest-timeout is asked for by its name."""
    plugin = place.root / "plugin.py"
    plugin.write_text("def pytest_configure(config): raise RuntimeError('a plugin of the machine')\n")
    folder = place.root / "plugin-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: plugin\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[pytest11]\nplugin = plugin\n")
    monkeypatch.setenv("PYTHONPATH", str(place.root))
    (report,) = run(place, write(place, "test_good.py", PASSES.format("a")))
    assert report.has_passed, report.problem


def test_more_files_run_while_the_gpu_has_memory_to_spare():
    limits = Limits(0.0, at_once=2, most_at_once=4, alone=("big",))
    running = [by_file.FileRun(f"{n}", None, limits) for n in range(4)]

    def may(count, free_gib, file="other"):
        return by_file.may_start(file, running[:count], limits, lambda: free_gib)

    assert [may(1, 0.0), may(2, 0.0), may(2, 40.0), may(3, 40.0), may(4, 40.0)] == [True, False, True, True, False]
    assert [may(0, 40.0, "big"), may(1, 40.0, "big")] == [True, False]


@pytest.mark.slow
def test_large_files_run_alone(place):
    """Each file writes when it begins and ends."""
    writes = "open('times', 'a').write(__file__[-6:-3] + ' ')"
    test = f"def test_a():\n    for _ in 'ab':\n        {writes}\n        time.sleep(1)\n"
    files = [write(place, f"test_{name}.py", test) for name in ("big", "one", "two")]
    assert all(report.has_passed for report in run(place, *files, at_once=2, alone=("test_big.py",)))
    order = (place.root / "times").read_text().split()
    assert order[-2:] == ["big", "big"]
    assert sorted(order[:2]) == ["one", "two"]


def test_the_command(tmp_path):
    def call(*arguments):
        command = [sys.executable, "-m", "tests.gpu_session.by_file", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, cwd=ROOT)

    good, bad = tmp_path / "test_good.py", tmp_path / "test_bad.py"
    good.write_text(HEAD + PASSES.format("a"))
    bad.write_text(HEAD + "def test_fails(): assert False\n")
    done = call("--at-once", "1", good, bad)
    lines = {line["file"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1, done.stderr
    assert {file: line["outcome"] for file, line in lines.items()} == {str(good): "passed", str(bad): "failed"}
    done = call("--seconds", "0", good)
    assert (done.returncode, done.stdout) == (3, "")


def test_every_file_that_runs_alone_exists():
    assert set(by_file.ALONE) <= set(by_file.marked_files(ROOT))
    assert "tests/gpu_session/test_by_file.py" not in by_file.marked_files(ROOT)


@pytest.mark.slow
def test_no_file_with_a_marked_test_is_left_out():
    """As pytest collects them where kernels are compiled. A mark, and the fixture that brings it, have to be named."""
    named = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if NAMED.search(path.read_text())]
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "--collect-only", "-q", "-m", "gpu", *named]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280, cwd=ROOT, env=environment)
    collected = {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert collected == set(by_file.marked_files(ROOT)), done.stdout[-2000:]


def test_lasting_faults():
    assert lasting_fault("torch.AcceleratorError: CUDA error: unspecified launch failure\nCUDA kernel") is not None
    assert lasting_fault("RuntimeError: Triton Error [CUDA]: misaligned address") == "misaligned address"
    assert lasting_fault("CUDA_ERROR_ILLEGAL_ADDRESS") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert lasting_fault("torch.OutOfMemoryError: CUDA out of memory") is None
    assert lasting_fault("RuntimeError: CUDA error: invalid configuration argument") is None


def test_a_record_that_was_cut_off(tmp_path):
    path = tmp_path / "record"
    append(path, Entry("collected", count=2))
    append(path, Entry("started", "a"))
    with path.open("ab") as file:
        file.write(b'{"event":"ended","te')
    append(path, Entry("ended", "lost", "passed"))
    append(path, Entry("started", "b"))
    assert [entry.test for entry in read(path)] == ["", "a", "b"]
    assert not report_of("file", read(path)).is_finished
    assert read(Path(tmp_path, "missing")) == []
