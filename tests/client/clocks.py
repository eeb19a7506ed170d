"""Clocks for commands, so that no test waits as long as a person would."""

import asyncio
import threading
import time

from scheduler_svc.client.clock import Clock
from tests.client.fleet_model import FleetModel

WATCH_S = 0.05


class HurriedClock(Clock):
    """Sleeps no longer than it takes others to go on, and counts as if it had. What waits for an event looks often.

    It does not hurry time-outs of sockets, nor processes.
    """

    def __init__(self) -> None:
        self.slept_s = 0.0

    def now_s(self) -> float:
        return time.monotonic() + self.slept_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        time.sleep(0)

    async def pause(self, seconds: float) -> None:
        self.slept_s += seconds
        await asyncio.sleep(0)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(min(seconds, WATCH_S))


class RacingClock(Clock):
    """Runs fifty times as fast as the machine's, for processes that are started again after seconds."""

    def now_s(self) -> float:
        return time.monotonic() * 50


class FleetClock(Clock):
    """Shows the time of a fleet, which passes with each look at it: a time-out is as many looks on any machine."""

    def __init__(self, fleet: FleetModel) -> None:
        self._fleet = fleet

    def now_s(self) -> float:
        return self._fleet.now

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.001))  # for processes that a test starts
