"""What the core wants done: messages to send and lines to log. `event_loop.py` carries them out."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal

from common import messages as m

Peer = bytes


@dataclass(frozen=True, slots=True)
class ToExecutor:
    """Send a message to an executor."""

    peer: Peer
    message: m.SchedulerToExecutor


@dataclass(frozen=True, slots=True)
class ToFrontend:
    """Send a message to a frontend now or never: what must not be lost waits in the outbox."""

    peer: Peer
    message: m.CoreToFrontend


Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Log:
    """An event for the operator."""

    level: Level
    event: str
    facts: dict[str, Any]


Effect = ToExecutor | ToFrontend | Log


class Sent(Enum):
    """What became of a message that was to be sent."""

    OK = auto()
    FULL = auto()  # the peer's queue is full; try again later
    GONE = auto()  # there is no such connection


def log(level: Level, event: str, **facts: Any) -> Log:
    """A line with its facts."""
    return Log(level, event, facts)
