"""What the core wants done: messages to send and lines to log. `event_loop.py` carries these actions out."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal

from common import messages as m

Peer = bytes


@dataclass(frozen=True, slots=True)
class SendToExecutor:
    """Send a message to an executor."""

    peer: Peer
    message: m.SchedulerToExecutor


@dataclass(frozen=True, slots=True)
class AdmitExecutor:
    """From now on a peer of the executors' port is a member of the fleet, and no stranger."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class DismissExecutor:
    """From now on a peer of the executors' port is a stranger."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class SendToFrontend:
    """Send a message to a frontend now or never: what must not be lost waits in the outbox."""

    peer: Peer
    message: m.CoreToFrontend


@dataclass(frozen=True, slots=True)
class EndFrontend:
    """Close the connection to a frontend that hangs, and kill its process if it is one of ours (0 if unknown)."""

    peer: Peer
    pid: int


Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class WriteLog:
    """Log an event for the operator.

    Attributes:
        is_seldom: at most one line a second of this event is written: anyone can bring it about.
    """

    level: Level
    event: str
    facts: dict[str, Any]
    is_seldom: bool = False


Action = SendToExecutor | AdmitExecutor | DismissExecutor | SendToFrontend | EndFrontend | WriteLog


class Sent(Enum):
    """What became of a message that was to be sent."""

    OK = auto()
    FULL = auto()  # the peer's queue is full; try again later
    GONE = auto()  # there is no such connection


def log_line(level: Level, event: str, **facts: Any) -> WriteLog:
    """The action that logs an event with its facts."""
    return WriteLog(level, event, facts)
