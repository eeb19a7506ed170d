"""The core's socket for many peers, in the test's thread: a router, and the connections behind it."""

import selectors
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from common import messages as m
from common.logging import DropLog, get_logger
from scheduler_svc.server.connections import Connections
from scheduler_svc.server.doorway import Doorway
from scheduler_svc.server.router import Router
from scheduler_svc.server.strangers import StrangerBudget
from tests.support.clock import Clock
from tests.support.eventually import eventually

ANY_PORT = "tcp://127.0.0.1:0"


class Door:
    """A router whose turns the test takes, and whose clock is the test's. There is no core: the test admits peers.

    Args:
        budget: of strangers, who may do as much as they like without one.
        doorway: where they come in; None for a port of this machine.
    """

    def __init__(
        self,
        budget: StrangerBudget | None = None,
        doorway: Doorway | None = None,
        incoming: Any = m.ExecutorToScheduler,
        new_selector: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector,
        *,
        trusts_all: bool = False,
    ) -> None:
        self.clock = Clock(1000.0)
        self.drops = DropLog(get_logger("test"), "executors")
        self.budget = budget or StrangerBudget(1e9, 1e9)
        self.doorway = doorway or Doorway(ANY_PORT, None)
        self.connections = Connections(self.doorway, self.budget, new_selector)
        self.endpoint = self.doorway.endpoint
        self.router: Router[Any] = Router(
            self.endpoint,
            incoming,
            self.drops,
            connections=self.connections,
            trusts_all=trusts_all,
            clock=self.clock.monotonic,
        )

    def turn(self) -> list[tuple[bytes, Any]]:
        """What one turn of the core hears, and from whom."""
        return list(self.router.receive())

    def turn_until(self, condition: Callable[[list[tuple[bytes, Any]]], object]) -> list[tuple[bytes, Any]]:
        """Turn until what was heard since the call, which is returned, fulfils a condition."""
        found: list[tuple[bytes, Any]] = []

        def has_come() -> object:
            found.extend(self.turn())
            return condition(found)

        eventually(has_come)
        return found

    def hear(self, count: int = 1) -> list[tuple[bytes, Any]]:
        """So many messages, or more."""
        return self.turn_until(lambda found: len(found) >= count)

    def losses(self, count: int = 1) -> list[bytes]:
        """Peers whose connections have broken, at least so many; nothing is heard meanwhile."""
        lost: list[bytes] = []

        def are_lost(_: object) -> bool:
            lost.extend(self.router.lost_connections())
            return len(lost) >= count

        assert not self.turn_until(are_lost)
        return lost


@contextmanager
def opened(*arguments: Any, **named: Any):
    """A door that is closed afterwards."""
    door = Door(*arguments, **named)
    try:
        yield door
    finally:
        door.router.close()
