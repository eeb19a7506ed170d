"""What faults happen to."""

from collections.abc import Callable
from random import Random
from typing import Protocol

from tests.sim.clients import Client
from tests.sim.disk import Disk
from tests.sim.executors import ExecutorProcess
from tests.sim.frontends import FrontendProcess
from tests.sim.keepers import KeeperHost
from tests.sim.machine import Machine
from tests.sim.models import Build
from tests.sim.rack import Rack
from tests.sim.service import Service
from tests.sim.sockets import Port
from tests.sim.world import World


class Scene(Protocol):
    """Everything that a run has."""

    world: World
    service: Service
    disk: Disk | None
    machine: Machine
    keepers: list[KeeperHost]
    rack: Rack
    frontends: list[FrontendProcess]
    clients: list[Client]
    builds: list[Build]
    executor_port: Port

    def add_client(self) -> Client:
        """A client comes, with a request like any other."""

    def ask_again(self, client: Client) -> None:
        """A client comes, with a new request for what another one had asked for."""

    def restart_frontend(self, frontend: FrontendProcess, after_s: float | None = None) -> None:
        """A frontend dies, and another takes its place, by default soon."""

    def call_unknown(self) -> None:
        """A client attaches to a request that never was."""

    def call_twin(self, client: Client) -> None:
        """A client submits a request with the id of another."""


Kind = Callable[[Scene, Random], bool]


def to_an_executor(scene: Scene, rng: Random, do: Callable[[ExecutorProcess], object]) -> bool:
    """Do it to an executor, if one runs."""
    alive = scene.rack.alive
    if alive:
        do(rng.choice(alive))
    return bool(alive)


def moment(scene: Scene, rng: Random, shortest_s: float, longest_s: float) -> float:
    """A time that is so many seconds away."""
    return scene.world.now + rng.uniform(shortest_s, longest_s)
