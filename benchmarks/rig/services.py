"""Both services as they are deployed, each in processes of its own, with a recorder in the executor."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rig.children import module_arguments
from benchmarks.rig.front_client import FrontClient
from benchmarks.rig.recorded_executor import STEPS_FILE
from benchmarks.rig.step_profiler import ARMED, KINDS, trace_file
from benchmarks.rig.step_records import RecordedStep, load_steps
from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports

READY_TIMEOUT_S = 420.0
_RECORDED_EXECUTOR = module_arguments("rig.recorded_executor")


@dataclass(frozen=True)
class Profiled:
    """What to profile: `num_steps` decode steps of at least `num_rows` rows, and some mixed steps."""

    num_rows: int
    num_steps: int


_NOTHING = Profiled(num_rows=0, num_steps=0)


@dataclass(frozen=True)
class Services:
    """What to start.

    Attributes:
        executor_arguments: the executor's command line.
        scheduler_options: further options of the scheduler. It serves no HTTP, and by default it has a journal.
        ranks: the executor's ranks; torchrun starts them if there is more than one.
    """

    executor_arguments: tuple[str, ...]
    scheduler_options: tuple[str, ...]
    ranks: int

    @property
    def has_journal(self) -> bool:
        """Whether the scheduler keeps a journal."""
        return "--no-journal" not in self.scheduler_options

    @contextmanager
    def running(self, folder: Path, profiled: Profiled = _NOTHING) -> Iterator[FrontClient]:
        """Start the services and wait until they are ready. When they have stopped, `steps_in` reads what ran.

        Args:
            folder: for logs, and for what the executor records. It is made if it is missing.
            profiled: what becomes traces in the folder, once the folder has a file `armed`.

        Raises:
            FleetError: a service ended.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name in (STEPS_FILE, ARMED, *map(trace_file, KINDS)):  # of an earlier run
            (folder / name).unlink(missing_ok=True)
        recorded = (*_RECORDED_EXECUTOR, str(folder.resolve()), str(profiled.num_rows), str(profiled.num_steps))
        torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}")
        (executor_port,) = free_ports(1)
        with tempfile.TemporaryDirectory() as private:  # a socket's path may not be long
            front = f"ipc://{private}/front"
            journal = ("--journal", f"{private}/journal.sqlite3") if self.has_journal else ()
            spec = FleetSpec(
                executor_port=executor_port,
                scheduler_options=(
                    *("--frontends", "0", "--frontend-endpoint", front),
                    *journal,
                    *self.scheduler_options,
                ),
                executor_options=self.executor_arguments,
                executor_command=(sys.executable, *(torchrun if self.ranks > 1 else ()), *recorded),
            )
            with LocalFleet(spec, folder) as fleet, FrontClient(front) as client:
                client.wait_ready(lambda: _check(fleet), READY_TIMEOUT_S)
                yield client


def steps_in(folder: Path) -> list[RecordedStep]:
    """The steps that the executor recorded in this folder."""
    return load_steps(folder / STEPS_FILE)


def _check(fleet: LocalFleet) -> None:
    for end in fleet.poll():
        raise fleet.failure(end)
