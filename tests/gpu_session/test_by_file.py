"""Running test files by file: what spoils a process is found, the other tests still run, and none may be left out."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpu_session import by_file
from tests.gpu_session.by_file import Limits, Place, run_again, run_files, summary
from tests.gpu_session.records import Entry, append, lasting_fault, read, report_of

pytestmark = pytest.mark.slow

HEAD = "import os, signal, sys, time\nimport pytest\npytestmark = pytest.mark.{}\n".format("gpu")
PASSES = "def test_{}(): pass\n"
ILLEGAL = "def test_illegal(): raise RuntimeError('CUDA error: an illegal memory access was encountered')\n"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a GPU\n")
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
    assert summary([report], 0)["verdict"] == "passed"
    assert summary([report], 3)["verdict"] == "unfinished", "3 were demanded"


SLOW = pytest.mark.slow
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
    found = summary([report], 0)
    assert (found["verdict"], found["spoilt_files"]) == ("failed", ["test_bad.py"])
    assert found["files"][0]["first_failing"]["test"] == f"test_bad.py::{name}"


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
def test_a_test_that_hangs(place, monkeypatch, ignores):
    """pytest-timeout ends a test that waits in Python; what no signal reaches is killed."""
    monkeypatch.setattr(by_file, "GRACE_S", 2.0)
    hangs = f"def test_hangs():\n    {ignores}time.sleep(60)\n"
    (report,) = run(place, write(place, "test_bad.py", hangs, PASSES.format("b")), test_s=3.0)
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
    assert summary([report], 0)["verdict"] == "failed"
    assert report.skipped or report.problem


def test_nothing_runs_past_the_deadline_and_the_next_call_goes_on(place):
    sleeps = "def test_sleeps(): time.sleep(0 if os.path.exists('woken') else 60)\n"
    files = [
        write(place, "test_one.py", PASSES.format("a"), sleeps, PASSES.format("c")),
        write(place, "test_two.py", PASSES.format("a")),
    ]
    began = time.monotonic()
    one, two = run(place, *files, seconds=5.0, at_once=1)
    assert time.monotonic() - began < 10.0
    assert (one.passed, one.failed, one.is_finished, one.spoilt) == (1, 0, False, {})
    assert two.collected == -1, "it was never started"
    found = summary([one, two], 0)
    assert (found["verdict"], found["unfinished_files"]) == ("unfinished", files)
    (place.root / "woken").touch()
    one, two = run(place, *files)
    assert one.has_passed
    assert two.has_passed
    started = [entry.test for entry in read(place.record("test_one.py")) if entry.event == "started"]
    assert started.count("test_one.py::test_a") == 1, "what has passed is not run again"


def test_failed_tests_run_again_when_asked(place):
    mended = "def test_mended(): assert os.path.exists('mended')\n"
    file = write(place, "test_bad.py", PASSES.format("a"), mended)
    assert run(place, file)[0].failed == 1
    (place.root / "mended").touch()
    assert run(place, file)[0].processes == 0
    run_again([file], place)
    (report,) = run(place, file)
    assert report.has_passed
    assert report.processes == 1


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
        command = [sys.executable, "-m", "tests.gpu_session.by_file", "--state", tmp_path / "state"]
        command += ["--report", tmp_path / "report.json", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, cwd=by_file.ROOT)
        return done, json.loads((tmp_path / "report.json").read_text())

    (tmp_path / "test_good.py").write_text(HEAD + PASSES.format("a"))
    done, report = call(str(tmp_path / "test_good.py"))
    assert (done.returncode, report["verdict"], report["passed"]) == (0, "passed", 1), done.stderr
    assert f"passed {tmp_path}/test_good.py: 1 of 1 passed" in done.stdout
    done, report = call("--seconds", "0")
    assert (done.returncode, report["verdict"]) == (3, "unfinished")
    assert "tests/executor/test_gpu.py" in report["unfinished_files"]


def test_every_file_that_runs_alone_exists():
    assert set(by_file.ALONE) <= set(by_file.marked_files(by_file.ROOT))
    assert "tests/gpu_session/test_by_file.py" not in by_file.marked_files(by_file.ROOT)


@pytest.mark.slow
def test_no_file_with_a_marked_test_is_left_out():
    """As pytest collects them where kernels are compiled."""
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "--collect-only", "-q", "-m", "gpu", "tests"]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=200, cwd=by_file.ROOT, env=environment
    )
    collected = {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert collected == set(by_file.marked_files(by_file.ROOT)), done.stdout[-2000:]


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
