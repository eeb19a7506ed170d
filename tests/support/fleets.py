"""Both services as processes of a test."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, executor_name, free_ports
from tests.support.eventually import eventually


@contextlib.contextmanager
def running_fleet(
    log_dir: Path,
    *,
    model: Path | None = None,
    executors: int = 1,
    standbys: int = 0,
    keeps: bool = False,
    keeper: Path | None = None,
    ranks: int = 1,
    executor_options=(),
    scheduler_options=(),
    scheduler_environment: Mapping[str, str] | None = None,
) -> Iterator[LocalFleet]:
    """Scheduler and executors on free ports; their logs are printed if the test fails.

    Args:
        standbys: executors beside the others that wait for their pools.
        keeps: whether a keeper is there for the executors.
        keeper: socket of one that runs already.
        ranks: processes of each executor.
        scheduler_environment: variables of the scheduler and of what it starts.
    """
    port, executor_port = free_ports(2)
    spec = FleetSpec(
        model=None if model is None else str(model),
        port=port,
        executor_port=executor_port,
        executors=executors,
        standbys=standbys,
        ranks=ranks,
        keeper=keeper or (log_dir / "keeper.sock" if keeps or standbys else None),
        starts_keeper=keeper is None,
        scheduler_command=(
            *("env", *(f"{name}={value}" for name, value in (scheduler_environment or {}).items())),
            *(sys.executable, "-m", "scheduler_svc"),
        ),
        scheduler_options=("--journal", str(log_dir / "journal.sqlite3"), *scheduler_options),
        executor_options=("--threads", "1", "--num-blocks", "2048", *executor_options),
    )
    with LocalFleet(spec, log_dir) as fleet:
        try:
            fleet.wait_ready()
            yield fleet
        except BaseException:
            for log in sorted(log_dir.glob("*.log")):
                print(f"--- {log.name} ---\n{log.read_text()[-6000:]}")
            raise


def report(fleet: LocalFleet) -> dict[str, Any]:
    """What `GET /status` says, of a fleet without API keys."""
    answer: dict[str, Any] = httpx.get(f"{fleet.spec.url}/status").json()
    return answer


def active(fleet: LocalFleet) -> int:
    """Index of the only executor that computes."""
    (executor,) = report(fleet)["executors"]
    return int(executor["executor"].rpartition("-")[2])


def standby_waits(fleet: LocalFleet) -> bool:
    """Whether each executor that computes has one that waits for its end."""
    executors = report(fleet)["executors"]
    return bool(executors) and all(executor["has_standby"] for executor in executors)


def wait_for_standby(fleet: LocalFleet) -> None:
    """Return when each executor that computes has one that waits for its end."""
    eventually(lambda: standby_waits(fleet))


def rank_pids(fleet: LocalFleet, index: int) -> list[int]:
    """Return the process ids of an executor's ranks, in their order."""
    torchrun = fleet.pids[executor_name(index)]
    found = subprocess.run(["pgrep", "--parent", str(torchrun)], capture_output=True, text=True, check=True)
    ranks = {}
    for pid in map(int, found.stdout.split()):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ranks[next(int(line[5:]) for line in environment if line.startswith(b"RANK="))] = pid
    return [ranks[rank] for rank in sorted(ranks)]
