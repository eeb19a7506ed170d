"""A fleet on this machine whose executors go away, and come again."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import click
import httpx

from scheduler_svc.client.http.api import Api
from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, executor_name, free_ports
from scheduler_svc.client.service_address import ServiceAddress

START_TIMEOUT_S = 600.0


class Setting(Enum):
    """What runs, and how an executor goes: see `bench_failover.py`."""

    SIBLING = "sibling"
    ALONE = "alone"
    KEEPER = "keeper"
    KEEPER_AND_SIBLING = "keeper+sibling"
    STANDBY = "standby"
    ROLLOUT = "rollout"

    @property
    def num_executors(self) -> int:
        """That compute at a time."""
        return 2 if self in (Setting.SIBLING, Setting.KEEPER_AND_SIBLING) else 1

    @property
    def num_standbys(self) -> int:
        """That wait beside them."""
        return int(self in (Setting.STANDBY, Setting.ROLLOUT))

    @property
    def has_keeper(self) -> bool:
        """Whether weights and KV memory are kept."""
        return self not in (Setting.SIBLING, Setting.ALONE)


@contextlib.contextmanager
def started(
    setting: Setting, model: str | None, executor_options: tuple[str, ...], scheduler_options: tuple[str, ...] = ()
) -> Iterator[tuple[LocalFleet, Path]]:
    """The processes of a setting on free ports, ready, and the folder of their logs. Both end with the context.

    Args:
        model: folder of a checkpoint; None for the demo model.
    """
    port, executor_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as name:
        folder = Path(name)
        spec = FleetSpec(
            model=model,
            port=port,
            executor_port=executor_port,
            executors=setting.num_executors,
            standbys=setting.num_standbys,
            keeper=folder / "keeper.sock" if setting.has_keeper else None,
            scheduler_options=("--journal", str(folder / "journal.sqlite3"), *scheduler_options),
            executor_options=executor_options,
        )
        with LocalFleet(spec, folder) as fleet:
            fleet.wait_ready(START_TIMEOUT_S)
            yield fleet, folder


def served_model(fleet: LocalFleet) -> str:
    """The name by which requests ask for the model."""
    with Api(ServiceAddress(fleet.spec.url)) as api:
        return api.model_name(None)


class DisturbedFleet:
    """Strikes one executor at a time.

    Attributes:
        signals: when each executor was told to go or killed, in seconds since 1970.
    """

    def __init__(self, fleet: LocalFleet, setting: Setting) -> None:
        self.url = fleet.spec.url
        self.signals: list[float] = []
        self._fleet = fleet
        self._setting = setting
        self._index = 0  # of the executor that goes
        self._started_at = 0.0
        self._is_started = False

    async def status(self, http: httpx.AsyncClient) -> dict[str, Any]:
        """The scheduler's report."""
        report: dict[str, Any] = (await http.get("/status")).json()
        return report

    async def wait_until_whole(self, http: httpx.AsyncClient) -> None:
        """Wait until all executors are ready, and a standby waits if there is to be one.

        Raises:
            click.ClickException: there is a keeper, and it does not keep the pool of each executor.
        """
        while True:
            executors = (await self.status(http))["executors"]
            waits = [executor["has_standby"] for executor in executors]
            if len(executors) == self._setting.num_executors and (all(waits) or not self._setting.num_standbys):
                if self._setting.has_keeper and not all(executor["keeps_pool"] for executor in executors):
                    raise click.ClickException("the keeper has no room for the pool of each executor")
                return
            await asyncio.sleep(0.05)

    async def strike(self, http: httpx.AsyncClient) -> int:
        """Let the busiest executor go. Returns how many sequences it ran."""
        busiest = max((await self.status(http))["executors"], key=lambda executor: executor["running"])
        self._index = int(busiest["executor"].rpartition("-")[2])
        self._is_started = False
        self.signals.append(time.time())
        if self._setting is Setting.ROLLOUT:
            self._fleet.terminate_executor(self._index)
            return int(busiest["running"])
        self._fleet.kill_executor(self._index)
        if self._setting not in (Setting.SIBLING, Setting.STANDBY):
            self._start()
        return int(busiest["running"])

    async def mend(self, http: httpx.AsyncClient) -> float:
        """See to it that everything is as before. Returns how long the new process's start took, in seconds."""
        if self._setting is Setting.ROLLOUT:
            code = await asyncio.to_thread(self._fleet.wait_executor, self._index)
            assert code == 0, f"it left with exit code {code}"
        if not self._is_started:
            self._start()
        name = executor_name(self._index)
        while True:
            executors = {executor["executor"]: executor for executor in (await self.status(http))["executors"]}
            if name in executors or any(executor["has_standby"] for executor in executors.values()):
                return self._ready_at(executors.get(name)) - self._started_at
            await asyncio.sleep(0.01)

    def _ready_at(self, executor: dict[str, Any] | None) -> float:
        now = time.monotonic()
        return now if executor is None else now - executor["uptime_s"]

    def _start(self) -> None:
        self._started_at, self._is_started = time.monotonic(), True
        self._fleet.start_executor(self._index)
