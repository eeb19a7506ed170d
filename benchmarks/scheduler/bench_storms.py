"""What storms cost the core's thread: many things that come at once. Prints a JSON line for each.

    python benchmarks/bench_storms.py
    python benchmarks/bench_storms.py --storm restart --executors 256 --waiting 10000

`storm_machine.py` says what is real. Times are CPU time of the core's thread: of the longest turn (in `phase` of the
storm) and the 99th percentile of turns, of all turns (`s_cpu`), and, where executors have to join again, of the turns
until each has joined and had a plan (`s_planning`; null if that took more than a minute).
"""

import gc
import json
from collections.abc import Callable

import click
import numpy as np

from benchmarks.scheduler.storm_machine import WEB, StormMachine
from common import messages as m
from scheduler_svc.core.requests.group_commit import RETRY_AFTER_S, JournalState
from scheduler_svc.core.requests.request_manager import RECONNECT_GRACE_S
from scheduler_svc.server.garbage import spare_the_old

GIVE_UP_S = 60.0  # of the machine's time
AFTER_S = 3.0
TIMEOUT_S = 10.0
FEW_EXECUTORS = 8  # where it is not they that come at once
OTHER = b"other"


def restart(machine: StormMachine, waiting: int) -> None:
    """All executors say Hello to a core that has taken up its requests from the journal."""
    before = StormMachine(0, waiting, 1.0, JournalState.OK)
    before.submit(waiting, is_resumable=True)
    while before.core.scheduler.num_waiting < waiting:
        before.turn()
    machine.core.restore(before.records(), machine.now)
    machine.disk.write(machine.core.new_journal(machine.now))
    machine.run_executors()
    machine.phase = "joining"


def freeze(machine: StormMachine, waiting: int) -> None:
    """The core does not run for 10 s."""
    _begin(machine, waiting)
    machine.freeze(10.0)
    machine.phase = "joining"


def network(machine: StormMachine, waiting: int) -> None:
    """Nothing reaches executors or comes from them for 5 s; then all connections are made again."""
    _begin(machine, waiting)
    machine.phase = "loss"
    machine.cut_off(5.0)
    for executor in machine.executors:
        executor.lose_connection(machine.now)
    machine.run_executors()
    machine.phase = "joining"


def cancels(machine: StormMachine, waiting: int) -> None:
    """A frontend cancels each of its requests."""
    _begin(machine, waiting)
    for i in range(waiting):
        machine.web.put(WEB, m.Cancel(request_id=f"r{i}"))
    machine.phase = "cancels"


def deadlines(machine: StormMachine, waiting: int) -> None:
    """The time of all requests is up."""
    _begin(machine, waiting, timeout_s=TIMEOUT_S)
    machine.phase = "deadlines"
    _pass(machine, TIMEOUT_S)


def plain_gone(machine: StormMachine, waiting: int) -> None:
    """A frontend dies whose clients cannot come back."""
    _begin(machine, waiting)
    _lose_web(machine)


def resumable_gone(machine: StormMachine, waiting: int) -> None:
    """A frontend dies whose clients could come back, and do not."""
    _begin(machine, waiting, is_resumable=True)
    _lose_web(machine)
    _pass(machine, RECONNECT_GRACE_S - 1.0)
    machine.phase = "late"


def attaches(machine: StormMachine, waiting: int) -> None:
    """A frontend dies, and all its clients come back by another."""
    _begin(machine, waiting, is_resumable=True)
    for i in range(waiting):
        machine.web.put(OTHER, m.Attach(request_id=f"r{i}"))
    _lose_web(machine)


def disk_fails(machine: StormMachine, waiting: int) -> None:
    """A write fails that all announcements wait for; 5 s later the journal is begun anew with all requests."""
    _begin(machine, 0)
    machine.disk.is_stopped = True
    machine.submit(waiting, is_resumable=True)
    machine.phase = "arrivals"
    while machine.web.incoming:
        machine.turn()
    machine.disk.fail()
    machine.phase = "failure"
    _pass(machine, RETRY_AFTER_S - 0.5)
    machine.phase = "begun anew"


STORMS: dict[str, tuple[Callable[[StormMachine, int], None], JournalState]] = {
    "restart": (restart, JournalState.OK),
    "freeze": (freeze, JournalState.OFF),
    "network": (network, JournalState.OFF),
    "cancels": (cancels, JournalState.OFF),
    "deadlines": (deadlines, JournalState.OFF),
    "plain-gone": (plain_gone, JournalState.OFF),
    "resumable-gone": (resumable_gone, JournalState.OK),
    "attaches": (attaches, JournalState.OK),
    "disk-fails": (disk_fails, JournalState.OK),
}
OF_EXECUTORS = ("restart", "freeze", "network")


def _begin(machine: StormMachine, waiting: int, *, is_resumable: bool = False, timeout_s: float | None = None) -> None:
    """Executors join, and a frontend sends so many requests."""
    machine.submit(waiting, is_resumable=is_resumable, timeout_s=timeout_s)
    if waiting:
        _plan(machine)
    _pass(machine, 1.0)


def _lose_web(machine: StormMachine) -> None:
    machine.has_web = False
    machine.web.lost.append(WEB)
    machine.phase = "gone"


def _pass(machine: StormMachine, seconds: float) -> None:
    """Take turns for so long at least, and until all that the frontend says is taken in."""
    until = machine.now + seconds
    while machine.now < until or machine.web.incoming:
        machine.turn()


def _plan(machine: StormMachine) -> None:
    """Take turns until each executor has joined and had a plan, or it has taken too long."""
    until = machine.now + GIVE_UP_S
    while not machine.is_planning and machine.now < until:
        machine.turn()


def measure(storm: str, num_executors: int, waiting: int, speed: float) -> dict[str, object]:
    """Have a storm, and return what it costs."""
    begin, journal = STORMS[storm]
    machine = StormMachine(num_executors, waiting, speed, journal)
    begin(machine, waiting)
    gc.collect()
    num_before = len(machine.turns)
    _plan(machine)
    is_planning, planning_ms = machine.is_planning, sum(ms for _, ms in machine.turns[num_before:])
    _pass(machine, AFTER_S)
    turns = [(phase, ms) for phase, ms in machine.turns if phase]
    phase, longest = max(turns, key=lambda turn: turn[1])
    figures: dict[str, object] = {"storm": storm, "executors": num_executors, "waiting": waiting, "turns": len(turns)}
    figures |= {"ms_turn_max": round(longest, 1), "ms_turn_p99": round(np.percentile([ms for _, ms in turns], 99), 1)}
    figures |= {"phase": phase, "s_cpu": round(sum(ms for _, ms in turns) / 1e3, 2)}
    if storm in OF_EXECUTORS:
        figures["s_planning"] = round(planning_ms / 1e3, 4) if is_planning else None
    return figures


@click.command(context_settings={"show_default": True})
@click.option("--storm", type=click.Choice(list(STORMS)), multiple=True, default=list(STORMS), help="Which storms.")
@click.option("--executors", type=click.IntRange(1), multiple=True, default=[8, 64, 256], help="That come back.")
@click.option("--waiting", type=click.IntRange(1), default=10_000, help="Requests.")
@click.option(
    "--speed", type=click.FloatRange(0, min_open=True), default=1.0, help="Of other machines, over this one's."
)
def main(storm: tuple[str, ...], executors: tuple[int, ...], waiting: int, speed: float) -> None:
    """Have storms, and print what they cost."""
    spare_the_old()
    for name in storm:
        for num_executors in executors if name in OF_EXECUTORS else [FEW_EXECUTORS]:
            print(json.dumps(measure(name, num_executors, waiting, speed)), flush=True)


if __name__ == "__main__":
    main()
