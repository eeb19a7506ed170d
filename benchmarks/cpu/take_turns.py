"""Sides of a comparison that take turns on one machine, whose memory is measured around each run.

A host moves a virtual machine's CPUs: within seconds the memory can become half as fast, or twice as fast. If all runs
of one side came after all runs of another, they would compare unequal machines. So all sides are up all the time, and
each runs once a round. Only runs of one round are compared, and a run around which the memory changed is marked.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from benchmarks.rig.process_times import children, cpu_time_s
from benchmarks.rig.runs import TimedRun

SAME_MACHINE = 1.2
IDLE_CPUS = 0.2
IDLE_WINDOW_S = 0.1
IDLE_TIMEOUT_S = 20.0
CLOCK_TOLERANCE = 0.01

RunRequests = Callable[[str, int | None], TimedRun]
"""Runs all requests, each to its end or to this number of tokens; the name says which run it is."""


@dataclass(frozen=True)
class Side:
    """One side of the comparison, which is up.

    Attributes:
        run: runs its requests.
        pids: ids of the processes that we started for it, which may have started further ones.
    """

    run: RunRequests
    pids: frozenset[int]


@dataclass(frozen=True)
class Turn:
    """One run of a side.

    Attributes:
        read_before, read_after: bytes of memory read a second, just before and after the run.
        others_cpus: CPUs that the other sides used during the run, on average; it should be about 0.
    """

    run: TimedRun
    read_before: float
    read_after: float
    others_cpus: float

    @property
    def read(self) -> float:
        """The higher rate of the two."""
        return max(self.read_before, self.read_after)

    @property
    def straddles(self) -> bool:
        """Whether the memory's rates differ so much that the machine changed during the run."""
        return self.read > SAME_MACHINE * min(self.read_before, self.read_after)


@contextmanager
def started(context: AbstractContextManager[RunRequests]) -> Iterator[Side]:
    """A side that is up until the end of the `with` block."""
    before = children()
    with context as run:
        yield Side(run, frozenset(children() - before))


def take_turns(
    sides: Mapping[str, Side], num_rounds: int, read_bandwidth: Callable[[], float]
) -> list[dict[str, Turn]]:
    """Each round's turns by side, in the order in which they were taken: each round begins with the next side.

    Args:
        read_bandwidth: measures the memory, in bytes a second.

    Raises:
        RuntimeError: a side computes out of its turn, or a run's times do not fit when it was asked for.
    """
    names = list(sides)
    rounds = []
    for number in range(num_rounds):
        first = number % len(names)
        order = names[first:] + names[:first]
        rounds.append({name: _take_turn(sides, name, f"run-{number}", read_bandwidth) for name in order})
    return rounds


def ratios(rounds: Sequence[Mapping[str, Turn]], one: str, other: str) -> list[float]:
    """The rate of one side over the rate of the other, for each round."""
    return [turns[one].run.tokens_per_s / turns[other].run.tokens_per_s for turns in rounds]


def wait_idle(sides: Mapping[str, Side]) -> None:
    """Wait until no side computes. After a run, threads spin for a while to be ready for more work.

    Raises:
        RuntimeError: a side does not stop computing.
    """
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    while busy := {name: cpus for name, cpus in _cpus(sides).items() if cpus > IDLE_CPUS}:
        if time.monotonic() > deadline:
            raise RuntimeError(f"sides should be idle but use so many CPUs: {busy}")


def _take_turn(sides: Mapping[str, Side], name: str, run_name: str, read_bandwidth: Callable[[], float]) -> Turn:
    others = {pid for other, side in sides.items() if other != name for pid in side.pids}
    wait_idle(sides)
    read_before = read_bandwidth()
    others_s, wall_s, asked_s = cpu_time_s(others), time.time(), time.monotonic()
    run = sides[name].run(run_name, None)
    answered_s, wall_s, others_s = time.monotonic(), time.time() - wall_s, cpu_time_s(others) - others_s
    check_clocks(run, asked_s, answered_s, wall_s)
    wait_idle(sides)
    return Turn(run, read_before, read_bandwidth(), others_s / (answered_s - asked_s))


def check_clocks(run: TimedRun, asked_s: float, answered_s: float, wall_s: float) -> None:
    """Check that a run's times can be right.

    Args:
        asked_s, answered_s: when the run was asked for and had ended, by the monotonic clock, which this process shares
            with the run's process.
        wall_s: seconds in between, by the wall clock.

    Raises:
        RuntimeError: the times are of another run or of another clock, or one of our two clocks was set during the run.
    """
    if not asked_s <= run.start_s < run.end_s <= answered_s:
        raise RuntimeError(f"a run from {asked_s} s to {answered_s} s says it was from {run.start_s} to {run.end_s} s")
    took_s = answered_s - asked_s
    if abs(took_s - wall_s) > CLOCK_TOLERANCE * (1 + took_s):
        raise RuntimeError(f"a run took {took_s:.2f} s by the monotonic clock and {wall_s:.2f} s by the wall clock")


def _cpus(sides: Mapping[str, Side]) -> dict[str, float]:
    """How many CPUs each side uses now."""
    before = {name: cpu_time_s(side.pids) for name, side in sides.items()}
    time.sleep(IDLE_WINDOW_S)
    return {name: (cpu_time_s(side.pids) - before[name]) / IDLE_WINDOW_S for name, side in sides.items()}
