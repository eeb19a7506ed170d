"""A call keeps to its time, leaves JSON, and goes on where the last one stopped."""

import json
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests.gpu_session import session as sessions
from tests.gpu_session.calls import CALLS, SECONDS, steps
from tests.gpu_session.session import Session, Step

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(sessions, "PACKING_S", 0.5)
    monkeypatch.setattr(sessions, "INTERRUPT_S", 1.5)
    monkeypatch.setattr(sessions, "START_S", 0.5)


def session(folder, seconds=30.0, out="out", rehearsal=False):
    return Session("first", time.monotonic() + seconds, folder / "state", folder / out, rehearsal)


def shell(name, script, limit_s=10.0, **options):
    return Step(name, ("sh", "-c", script), limit_s, **{"least_s": 1.0, **options})


def told(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def test_what_a_step_gives_comes_back(tmp_path):
    step = shell("good", """echo '{"tok_s": 5}'; echo nothing; echo '{"tok'; echo warned >&2""")
    (result,) = session(tmp_path, rehearsal=True).run([step])
    assert result.status == "done"
    found = told(tmp_path / "out", "good")
    assert found["figures"] == [{"tok_s": 5}]
    assert (found["exit_code"], found["said"], found["rehearsal"]) == (0, "warned\n", True)
    summary = told(tmp_path / "out", "session")
    assert summary["rehearsal"]
    assert [step["step"] for step in summary["steps"]] == ["good"]


def test_an_answer_may_have_an_exit_code(tmp_path):
    asked = [shell(f"exits_{code}", f"exit {code}", settled=(0, 2)) for code in (0, 1, 2)]
    assert [result.status for result in session(tmp_path).run(asked)] == ["done", "failed", "done"]


def test_a_report_is_part_of_the_result(tmp_path):
    script = f"echo '{{\"passed\": 3}}' > {tmp_path}/state/good.report.json; exit 1"
    (result,) = session(tmp_path).run([shell("good", script, report="good.report.json")])
    assert (result.status, result.report) == ("failed", {"passed": 3})
    (result,) = session(tmp_path).run([shell("good", "true", report="good.report.json")])
    assert result.report is None, "an earlier run's report is not this one's"


@pytest.mark.slow
def test_a_step_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    """It may clean up first; what it printed before counts."""
    began = time.monotonic()
    body = f"echo '{{\"case\": 1}}'; trap 'touch {tmp_path}/cleaned; exit 1' INT; sleep 50 & wait"
    stubborn = "trap '' INT; (trap '' INT; sleep 47.11) & sleep 48"
    results = session(tmp_path).run([shell("long", body, 3.0), shell("stubborn", stubborn, 3.0)])
    assert [result.status for result in results] == ["timed out", "timed out"]
    assert results[0].figures == [{"case": 1}]
    assert (tmp_path / "cleaned").exists()
    assert time.monotonic() - began < 8
    assert not subprocess.run(["pgrep", "-f", "sleep 47.11"], check=False, capture_output=True).stdout


def test_nothing_runs_past_the_deadline(tmp_path):
    began = time.monotonic()
    marked = f"touch {tmp_path}/started"
    results = session(tmp_path, seconds=4.0).run([shell("long", "sleep 60"), shell("next", marked, least_s=2.0)])
    assert time.monotonic() - began < 5.0
    assert [result.status for result in results] == ["timed out", "skipped"]
    assert "it takes 2 at least" in told(tmp_path / "out", "next")["why"]
    assert not (tmp_path / "started").exists()


def test_a_step_knows_how_long_it_has(tmp_path):
    (result,) = session(tmp_path).run([shell("good", "echo '{\"seconds\": '{seconds}'}'", 9.0)])
    assert result.figures == [{"seconds": 7}]


def test_the_next_call_goes_on(tmp_path):
    counts = shell("counts", f"echo x >> {tmp_path}/times")
    fails = shell("fails", f"[ -e {tmp_path}/mended ]")
    assert [result.status for result in session(tmp_path).run([counts, fails])] == ["done", "failed"]
    (tmp_path / "mended").touch()
    later = shell("later", "true")
    (result,) = session(tmp_path, out="second").run([later], [counts, fails])
    assert result.status == "done"
    assert (tmp_path / "times").read_text() == "x\n", "what is done is not run again"
    assert told(tmp_path / "second", "fails")["status"] == "done"
    steps = {step["step"]: step["status"] for step in told(tmp_path / "second", "session")["steps"]}
    assert steps == dict.fromkeys(["counts", "fails", "later"], "done")


def test_the_state_travels_to_another_machine(tmp_path):
    counts = shell("counts", f"mkdir {tmp_path}/state/tests; echo x >> {tmp_path}/times")
    session(tmp_path).run([counts])
    elsewhere = tmp_path / "elsewhere"
    other = session(elsewhere)
    other.unpack(tmp_path / "out" / "state.tar.gz")
    assert (elsewhere / "state" / "tests").is_dir()
    other.run([counts])
    assert (tmp_path / "times").read_text() == "x\n"
    other.unpack(tmp_path / "missing.tar.gz")


def test_a_result_is_not_replaced_by_a_skip(tmp_path):
    step = shell("bench", "echo '{\"a\": 1}'; exit 1")
    session(tmp_path).run([step])
    session(tmp_path, seconds=1.0, out="second").run([step])
    assert told(tmp_path / "state", "bench")["status"] == "failed"


def test_no_more_files_come_back_than_may(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "log").touch()
    session(tmp_path).run([shell(f"step_{number}", "true", keep=kept) for number in range(9)])
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert len(files) == sessions.MOST_FILES
    assert {"session.json", "state.tar.gz", "step_0.json", "step_0.tar.gz"} <= files
    with tarfile.open(tmp_path / "out" / "state.tar.gz") as archive:
        assert "step_8.json" in archive.getnames(), "none is lost"


# --- the calls ---


@pytest.mark.parametrize("rehearsal", [False, True])
def test_calls(rehearsal, tmp_path):
    found = {call: steps(call, tmp_path, tmp_path / "state", tmp_path, rehearsal) for call in CALLS}
    names = [step.name for own in found.values() for step in own]
    assert len(set(names)) == len(names), "a step's name is its file's"
    for own in found.values():
        for step in own:
            assert step.least_s < step.limit_s
            for part in step.command:
                for path in shlex.split(part) if " " in part else [part]:
                    if path.startswith(str(ROOT)):
                        assert Path(path).exists(), f"{step.name} calls {path}"
                    if path.startswith(("tests.", "benchmarks.")):
                        assert (ROOT / f"{path.replace('.', '/')}.py").exists(), f"{step.name} calls {path}"


def test_each_call_fits_the_machines_limit():
    """A command may take 600 s, the installation of the wheels counted in."""
    for call in CALLS:
        assert SECONDS[call] <= 580
    assert sum(SECONDS.values()) <= 27 * 60, "machines take minutes to start, and there are 30 of them"


def test_the_command(tmp_path):
    """Without a GPU and without time: every step is skipped, and says so."""
    command = [sys.executable, "-m", "tests.gpu_session", "second", "--seconds", "5", "--rehearsal"]
    command += ["--out", tmp_path / "out", "--carried", tmp_path / "none", "--scratch", tmp_path / "scratch"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=ROOT)
    own = steps("second", tmp_path, tmp_path, tmp_path, rehearsal=True)
    assert done.returncode == len(own), done.stderr
    summary = told(tmp_path / "out", "session")
    assert {result["status"] for result in summary["steps"]} == {"skipped"}
    assert summary["rehearsal"]
