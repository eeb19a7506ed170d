"""Thousands of small services in virtual time: nothing is lost, doubled, wrong or left behind, whatever goes wrong."""

import json
import os
import subprocess
import sys
import time
from functools import cache
from types import SimpleNamespace

import pytest

from tests import ROOT
from tests.sim import cli
from tests.sim.cli import how_to_replay, main, run_seeds
from tests.sim.profiles import EVERYTHING, LIBRARIES
from tests.sim.simulation import simulate

RANGES, RUNS_A_RANGE = 9, 70
EVERY_PROFILE = range(7, 26)  # of the first range: these seeds choose every profile in turn
WIDE_PROFILES = ("everything", "files", "flood", "grammars", "keepers", "tasks")  # each fault is common in one
CASES = [
    # After a restart five ended requests proved what an executor could hold; the witness counted the open ones only.
    (83_119_619, "everything"),
    # The run was taken for over though a connection had just broken, of which the core had not heard.
    (1_795_385_917_298, "spaced"),
    # A journal that was copied before a long absence came back after it: it was rightly too old.
    (5_104, "files"),
    # The witness took a journal that was not true for a death, and a client that was away for one that was back.
    (358, "files"),
    # The journal was gone and the disk stuck, and the witness counted time in which the scheduler was stopped.
    (1_795_421_848_574, "everything"),
    # A request that was lost was asked for again, and its client left before it heard of that: the time began anew.
    (1_795_475_696_249, "everything"),
    # A sequence sat out one of two plans of a turn, and had its last token in the other: the witness saw it in neither.
    (1_795_639_918_409, "everything"),
    # A pooled stream heard of its acceptance and lost its reader; its result came, and a restart rightly forgot it.
    (100_731, "tasks"),
    # A cut journal had lost its record of executors; the request that it kept rightly proved how large one was.
    (1_795_903_424_040, "everything"),
    # A life that was back after hours died before its journal was whole; the next one rightly found a deadline passed.
    (21_072, "everything"),
    # A sequence had made way and began anew in its pool, and the witness took it for as long as it had been before.
    (1_796_060_264_109, "standbys"),
]


def check(seeds, profile=""):
    """Run seeds and return what happened, if nothing failed."""
    tally = run_seeds(seeds, profile)
    told = [f"{outcome.failure}\n{how_to_replay(outcome)}" for outcome in tally.failures[:3]]
    assert not tally.failures, f"{len(tally.failures)} of {tally.runs} runs failed\n" + "\n".join(told)
    return tally


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, RANGES))])
def test_no_run_fails(part):
    seeds = range(part * RUNS_A_RANGE, (part + 1) * RUNS_A_RANGE)
    if part == 0:
        tally = check(range(EVERY_PROFILE.start)) + every_profile() + check(range(EVERY_PROFILE.stop, seeds.stop))
    else:
        tally = check(seeds)
    assert tally.runs == RUNS_A_RANGE


@cache
def every_profile():
    return check(EVERY_PROFILE)


@pytest.mark.parametrize(("seed", "profile"), CASES)
def test_a_seed_that_has_failed_once_no_longer_fails(seed, profile):
    check([seed], profile)


@pytest.mark.slow
def test_everything_that_can_happen_happens():
    """A simulator that injects nothing finds nothing."""
    tally = check(range(100_000, 100_010), "everything")
    for first in range(100_010, 100_700, 10):
        if not (missing := missing_from(tally)):
            return
        tally += check(range(first, first + 10), WIDE_PROFILES[first // 10 % len(WIDE_PROFILES)])
    pytest.fail(f"these never came: {missing}")


def missing_from(tally):
    """Name what can happen and has not, in a tally of runs."""
    moments = ("strikes", "preemptions", "model_changes", "resumed", "restored", "attached", "restored in the prompt")
    moments += ("prompt positions asked", "told of acceptance", "pooled results", "refused: no_executor")
    moments += ("rows of grammars in another library", "rows without a library", "grammars relaxed", "grammars lost")
    moments += ("steps overlap", "goes to its prefix", "stays where it waits")
    moments += ("adopted", "resumed where they were", "not adopted: another kind", "not adopted: another writer")
    moments += ("not adopted: step_failed", "not adopted: untrusted", "rows without numbers", "late rows")
    moments += ("keeper: holder is killed", "keeper: pool dropped", "keeper: executor refused")
    moments += ("keeper: its holder has ended", "keeper: its holder has released it")
    codes = ("queue_full", "too_many_requests", "request_exists", "context_length_exceeded", "invalid_value")
    moments += tuple(f"refused: {code}" for code in codes)
    wanted = (
        (tally.faults, {**EVERYTHING, **LIBRARIES}),
        (tally.endings, ("stop", "length", "cancelled", "error")),
        (tally.clients, ("done", "left", "lost", "refused")),
        (tally.moments, moments),
    )
    return [name for counts, names in wanted for name in names if not counts[name]]


def test_a_seed_is_always_the_same_run():
    """In another process, with other hashes of strings and bytes."""
    command = [sys.executable, "-m", "tests.sim", "--seeds", f"{EVERY_PROFILE.start}:{EVERY_PROFILE.stop}"]
    environment = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    other = json.loads(done.stdout.splitlines()[-1])
    assert other == json.loads(json.dumps(every_profile().report(other["wall_s"])))


def test_seeds_and_profiles_differ():
    outcomes = [simulate(1, "kills"), simulate(2, "kills"), simulate(1, "calm")]
    assert len({outcome.digest for outcome in outcomes}) == 3


def test_the_command_says_what_it_did(capsys):
    assert main(["--seeds", "3:6"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["runs"], report["failures"]) == (3, 0)
    assert report["requests"] > 0
    assert report["faults"] == sum(report["faults_by_kind"].values())


def test_the_story_of_a_run_can_be_read(capsys):
    assert main(["--seeds", "13:14", "--profile", "kills", "-v"]) == 0
    story = capsys.readouterr().out
    assert "executor joined" in story
    assert "fault" in story


@pytest.mark.slow
def test_fresh_seeds_stop_when_the_time_is_up(capsys, monkeypatch):
    day_one = SimpleNamespace(time=lambda: 0.0, monotonic=time.monotonic)
    monkeypatch.setattr(cli, "time", day_one)  # seeds that every run of this test has, for they must not fail
    assert main(["--fresh", "0.01"]) == 0
    said, *_, report = capsys.readouterr().out.splitlines()
    assert said.startswith("seeds from ")
    assert json.loads(report)["runs"] > 0
