"""Both services as processes of a test."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports


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
) -> Iterator[LocalFleet]:
    """Scheduler and executors on free ports; their logs are printed if the test fails.

    Args:
        standbys: executors beside the others that wait for their pools.
        keeps: whether a keeper is there for the executors.
        keeper: socket of one that runs already.
        ranks: processes of each executor.
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
