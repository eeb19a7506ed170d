"""A pack keeps to its time, each result is there as soon as its step ends, and what has passed is not run again."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from tests import ROOT
from tests.gpu_session.code_hash import module_path
from tests.gpu_session.ledger import read_results
from tests.gpu_session.packs import SECONDS, Item, Step, packs
from tests.gpu_session.session import MOST_FILES, RESULTS, Session
from tests.support.eventually import eventually
from tests.support.processes import open_files

VERSIONS = {"torch": "2.11.0"}


def session(folder, seconds=30.0, rehearsal=False):
    folders = {"scratch": folder / "scratch", "carried": folder, "out": folder / "out"}
    quick = {"packing_s": 0.5, "interrupt_s": 1.5, "start_s": 0.5}
    machine = {"gpu": "NVIDIA H100", "versions": VERSIONS, "rehearsal": rehearsal}
    return Session("values", time.monotonic() + seconds, **folders, **machine, **quick)


def shell(name, script, limit_s=10.0, **options):
    return Step(name, ("sh", "-c", script), 1.0, limit_s, **{"least_s": 1.0, **options})


def lines(folder):
    return {result.step: result for result in read_results(folder / "out" / RESULTS)}


def test_what_a_step_gives_comes_back(tmp_path):
    step = shell("good", """echo '{"tok_s": 5}'; echo nothing; echo '{"tok'; echo warned >&2""")
    (result,) = session(tmp_path, rehearsal=True).run([step])
    assert (result.outcome, result.figures, result.exit_code, result.rehearsal) == ("passed", [{"tok_s": 5}], 0, True)
    assert (result.gpu, result.versions, result.pack) == ("NVIDIA H100", VERSIONS, "values")
    assert lines(tmp_path) == {"good": result}
    (failed,) = session(tmp_path).run([shell("bad", "echo it was so >&2; echo no JSON; exit 3")])
    assert (failed.outcome, failed.exit_code, failed.said) == ("failed", 3, "no JSON\nit was so\n")


def test_a_result_is_written_as_soon_as_its_step_ends(tmp_path):
    """A pack that is ended from outside leaves what it has: the second step looks for the first one's line."""
    looks = shell("second", f"grep -c first {tmp_path}/out/{RESULTS}")
    first, second = session(tmp_path).run([shell("first", "true"), looks])
    assert (first.outcome, second.outcome) == ("passed", "passed")


def test_each_file_of_tests_has_a_result_of_its_own(tmp_path):
    """As soon as it ends, and whatever becomes of the other files; those that have passed are not named again."""
    script = f"""echo '{{"file": "a.py", "outcome": "passed", "passed": 3, "seconds": 2.5}}'
    grep -c a.py {tmp_path}/out/{RESULTS} >&2
    echo '{{"file": "b.py", "outcome": "failed", "first_failing": {{"test": "t", "said": "wrong"}}}}'
    echo "$@" > {tmp_path}/named; exit 3"""
    items = tuple(Item(f"tests of {name}", file=f"{name}.py") for name in "abcd")
    step = Step("tests", ("bash", "-c", script, "sh", "{files}"), 1.0, 20.0, 1.0, items=items)
    done = {"tests of d": step.key(items[3], VERSIONS), "tests of c": "another key"}
    results = {result.step: result for result in session(tmp_path).run([step], done)}
    outcomes = {name: result.outcome for name, result in results.items()}
    assert outcomes == {"tests of a": "passed", "tests of b": "failed", "tests of c": "timed out"}
    assert (tmp_path / "named").read_text().split() == ["a.py", "b.py", "c.py"]
    assert results["tests of a"].seconds == 2.5
    assert "wrong" in results["tests of b"].said
    assert results["tests of c"].why == "it has not run"
    assert lines(tmp_path) == results


def test_a_step_that_has_passed_is_not_run_again(tmp_path):
    counts = shell("counts", f"echo x >> {tmp_path}/times")
    always = shell("machine", f"echo x >> {tmp_path}/machine", is_always_due=True)
    steps = [always, counts]
    for _ in range(2):
        done = {result.step: result.key for result in lines(tmp_path).values() if result.outcome == "passed"}
        session(tmp_path).run(steps, done)
    assert (tmp_path / "times").read_text() == "x\n"
    assert (tmp_path / "machine").read_text() == "x\nx\n", "it says where the other steps run"


@pytest.mark.slow
def test_a_step_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    """It may clean up first; what it printed before counts."""
    began = time.monotonic()
    body = f"echo '{{\"case\": 1}}'; trap 'touch {tmp_path}/cleaned; exit 1' INT; sleep 50 & wait"
    stubborn = "trap '' INT; (trap '' INT; sleep 47.11) & sleep 48"
    results = session(tmp_path).run([shell("long", body, 3.0), shell("stubborn", stubborn, 3.0)])
    assert [result.outcome for result in results] == ["timed out", "timed out"]
    assert results[0].figures == [{"case": 1}]
    assert (tmp_path / "cleaned").exists()
    assert time.monotonic() - began < 11
    assert not subprocess.run(["pgrep", "-f", "sleep 47.11"], check=False, capture_output=True).stdout


def test_nothing_runs_past_the_deadline(tmp_path):
    began = time.monotonic()
    steps = [shell("long", "sleep 60"), shell("next", f"touch {tmp_path}/started", least_s=2.0)]
    results = session(tmp_path, seconds=4.0).run(steps)
    assert time.monotonic() - began < 6.5
    assert [result.outcome for result in results] == ["timed out", "skipped"]
    assert "it takes 2 at least" in results[1].why
    assert not (tmp_path / "started").exists()


def test_placeholders(tmp_path):
    script = """echo '{"seconds": '{seconds}', "scratch": "{scratch}", "python": "{python}"}'"""
    (result,) = session(tmp_path).run([shell("good", script, 9.0)])
    assert result.figures == [{"seconds": 7, "scratch": str(tmp_path / "scratch"), "python": sys.executable}]


def test_a_program_that_is_not_there_fails_its_step_alone(tmp_path):
    missing = Step("missing", ("no-such-program",), 1.0, 10.0, 1.0)
    results = session(tmp_path).run([missing, shell("next", "true")])
    assert [(result.outcome, result.exit_code) for result in results] == [("failed", 127), ("passed", 0)]


def test_an_answer_may_have_another_exit_code(tmp_path):
    steps = [shell(f"exits {code}", f"exit {code}", settled=(0, 3)) for code in (0, 2, 3)]
    assert [result.outcome for result in session(tmp_path).run(steps)] == ["passed", "failed", "passed"]


def test_new_kernels_are_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    step = shell("compiles", f"mkdir -p {tmp_path}/cache/a {tmp_path}/cache/b")
    assert [result.new_kernels for result in session(tmp_path).run([step, shell("then", "true")])] == [2, 0]


def test_a_folder_that_is_kept_comes_back(tmp_path):
    step = shell("bench it", "mkdir -p {scratch}/traces; echo a > {scratch}/traces/log", keep="{scratch}/traces")
    steps = [step, *(shell(f"more {n}", "mkdir -p {scratch}/n", keep="{scratch}/n") for n in range(9))]
    session(tmp_path).run([Step(s.name, (*s.command[:2], s.command[2]), 1.0, 10.0, 1.0, keep=s.keep) for s in steps])
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert len(names) == MOST_FILES
    assert {RESULTS, "bench_it.tar.gz"} <= names
    with tarfile.open(tmp_path / "out" / "bench_it.tar.gz") as archive:
        assert "bench it/log" in archive.getnames()


# --- the packs ---


@pytest.mark.parametrize("rehearsal", [False, True])
def test_the_packs_fit(rehearsal):
    steps = [step for pack in packs(rehearsal).values() for step in pack]
    names = [item.name for step in steps for item in step.parts]
    assert len(set(names)) == len(names), "a name is that of a line in the ledger"
    assert len({step.name for step in steps}) == len(steps)
    for step in steps:
        assert step.least_s < step.limit_s
        assert step.predicted_s <= step.limit_s
        for name in (name for item in step.parts for name in item.code):
            assert module_path(name).is_file(), f"{step.name} depends on {name}"
        for part in step.command:
            for word in shlex.split(part) if " " in part else [part]:
                if word.startswith(("tests.", "benchmarks.")):
                    assert module_path(word).is_file(), f"{step.name} calls {word}"
                if word.startswith(("tests/", "benchmarks/", "tools/")):
                    assert (ROOT / word).exists(), f"{step.name} calls {word}"
    for name, pack in packs(rehearsal).items():
        assert sum(step.predicted_s for step in pack) <= SECONDS - 10, f"{name} has no time for its installation"


def test_every_file_with_a_marked_test_is_in_a_pack():
    from tests.gpu_session.by_file import marked_files

    files = {item.file for pack in packs().values() for step in pack for item in step.items}
    assert files == set(marked_files(ROOT))


def test_the_command(tmp_path):
    """Without a GPU and without time: every step is skipped, and says so."""
    command = [sys.executable, "-m", "tests.gpu_session", "run", "bench", "--seconds", "3", "--rehearsal"]
    command += ["--out", tmp_path / "out", "--carried", tmp_path, "--scratch", tmp_path / "scratch"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=ROOT)
    items = [item.name for step in packs(rehearsal=True)["bench"] for item in step.parts]
    assert done.returncode == len(items), done.stderr
    assert {name: result.outcome for name, result in lines(tmp_path).items()} == dict.fromkeys(items, "skipped")
    assert json.loads(done.stdout.splitlines()[-1])["pack"] == "bench"


def test_the_process_that_holds_the_gpu_holds_nothing_else(tmp_path):
    """Whoever reads a pack's output reads to its end, which comes when no process has it open any more."""
    text = (ROOT / "tools" / "gpu_session.sh").read_text()
    function = text[text.index("hold_gpu() {") : text.index("\ncase ")]
    (tmp_path / "device").touch()
    script = f"{function}\nhold_gpu {tmp_path}/missing; hold_gpu {tmp_path}/device; echo $!"
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, timeout=20)
    holder = int(done.stdout)
    try:
        # Before it is `sleep`, it is a shell that still closes what it has of its parent.
        eventually(lambda: set(open_files(holder).values()) == {str(tmp_path / "device"), "/dev/null"})
    finally:
        os.kill(holder, signal.SIGKILL)


def test_the_shell_script_knows_the_packs():
    text = (ROOT / "tools" / "gpu_session.sh").read_text()
    assert f"  {' | '.join(packs())})" in text
    for name in packs():
        assert f"bash tools/gpu_session.sh {name} " in text
    done = subprocess.run(["bash", ROOT / "tools" / "gpu_session.sh"], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "at most 270 s" in done.stderr
