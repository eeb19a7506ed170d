"""Runs many seeds and says what came of them."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial

import xxhash

from tests.sim.profiles import PROFILES
from tests.sim.simulation import Outcome, simulate

CHUNK = 50  # seeds handed to a process in one go
PROGRESS_S = 10.0
FAILURES_SHOWN = 20
SEEDS_A_SECOND = 1000  # more than a machine runs: what begins later has other seeds


@dataclass
class Tally:
    """Many outcomes."""

    runs: int = 0
    requests: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    clients: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    digest: str = ""
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """One more."""
        self.runs += 1
        self.requests += outcome.requests
        self.virtual_s += outcome.virtual_s
        self.faults += outcome.faults
        self.endings += outcome.endings
        self.clients += outcome.clients
        self.moments += outcome.moments
        self.digest = xxhash.xxh3_64_hexdigest((self.digest + outcome.digest).encode())
        if outcome.failure:
            self.failures.append(outcome)

    def __add__(self, other: "Tally") -> "Tally":
        """Both."""
        return Tally(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def report(self, wall_s: float) -> dict[str, object]:
        """The last line."""
        return {
            "runs": self.runs,
            "requests": self.requests,
            "faults": self.faults.total(),
            "failures": len(self.failures),
            "failing_seeds": [outcome.seed for outcome in self.failures[:FAILURES_SHOWN]],
            "faults_by_kind": dict(sorted(self.faults.items())),
            "endings": dict(sorted(self.endings.items())),
            "clients": dict(sorted(self.clients.items())),
            "moments": dict(sorted(self.moments.items())),
            "digest": self.digest,
            "virtual_s": round(self.virtual_s),
            "wall_s": round(wall_s, 1),
        }


def run_seeds(seeds: Iterable[int], profile: str = "") -> Tally:
    """Run seeds one after the other."""
    tally = Tally()
    for seed in seeds:
        tally.add(simulate(seed, profile))
    return tally


def outcomes(seeds: range, profile: str, num_jobs: int) -> Iterator[Outcome]:
    """The outcome of each seed, in order."""
    run = partial(simulate, profile=profile)
    if num_jobs == 1:
        yield from map(run, seeds)
    else:
        with ProcessPoolExecutor(num_jobs) as pool:
            yield from pool.map(run, seeds, chunksize=CHUNK)


def fresh_outcomes(seconds: float, profile: str, num_jobs: int) -> Iterator[Outcome]:
    """The outcomes of seeds that no run has had before, until the time is up."""
    first, until = int(time.time()) * SEEDS_A_SECOND, time.monotonic() + seconds
    print(f"seeds from {first} on, for {seconds:.0f} s", flush=True)
    while time.monotonic() < until:
        seeds = range(first, first + CHUNK * num_jobs)
        yield from outcomes(seeds, profile, num_jobs)
        first = seeds.stop


def chosen_outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    """The outcomes that the command line asks for."""
    if options.fresh is not None:
        return fresh_outcomes(options.fresh, options.profile, options.jobs)
    if options.verbose:
        return (simulate(seed, options.profile, print) for seed in options.seeds)
    return outcomes(options.seeds, options.profile, options.jobs)


def seed_range(text: str) -> range:
    """FIRST:LAST as a range."""
    first, _, last = text.partition(":")
    return range(int(first), int(last))


def how_to_replay(outcome: Outcome) -> str:
    """What to type to see the story of a run."""
    seed, profile = outcome.seed, outcome.profile
    return f"python -m tests.sim --seeds {seed}:{seed + 1} --profile {profile} -v"


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.sim", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seeds", type=seed_range, metavar="FIRST:LAST", help="LAST is not run")
    which.add_argument("--fresh", type=float, metavar="SECONDS", help="seeds that no run has had before, for so long")
    parser.add_argument("--profile", choices=PROFILES, default="", help="a mix of faults; else the seed chooses")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the story of each run")
    options = parser.parse_args(arguments)
    started = said = time.monotonic()
    tally = Tally()
    for outcome in chosen_outcomes(options):
        tally.add(outcome)
        if outcome.failure and len(tally.failures) <= FAILURES_SHOWN:
            print(f"seed {outcome.seed} ({outcome.profile}) failed: {outcome.failure}")
            print(f"replay it with: {how_to_replay(outcome)}\n")
        if time.monotonic() - said > PROGRESS_S:
            said = time.monotonic()
            num_runs = f" of {len(options.seeds)}" if options.seeds else ""
            print(f"{tally.runs}{num_runs} runs, {len(tally.failures)} failed", flush=True)
    print(json.dumps(tally.report(time.monotonic() - started)))
    sys.stdout.flush()
    return 1 if tally.failures else 0
