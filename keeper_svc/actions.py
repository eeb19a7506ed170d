"""What a keeper is told about descriptors, and what it wants done. A descriptor is a number here, its handle: only the
server knows the file behind it.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from common import messages as m

Connection = int
Handle = int


@dataclass(frozen=True)
class ProcessHandle:
    """A pidfd that came beside a message.

    Attributes:
        can_signal: whether this keeper can kill the process: it cannot in another PID namespace.
    """

    handle: Handle
    can_signal: bool


@dataclass(frozen=True)
class MemoryHandle:
    """Any other descriptor that came beside a message.

    Attributes:
        num_bytes: size of the file; None where a file has none (memory of a GPU).
    """

    handle: Handle
    num_bytes: int | None


Descriptor = ProcessHandle | MemoryHandle


@dataclass(frozen=True)
class Send:
    """Send this message, and the files behind `handles` beside it. If that cannot be done at once, close the connection
    and call `Keeper.connection_closed`.
    """

    connection: Connection
    message: m.FromKeeper
    handles: tuple[Handle, ...] = ()


@dataclass(frozen=True)
class Disconnect:
    """Close this connection, which the keeper has forgotten. `reason`: what its peer did wrong, if it did."""

    connection: Connection
    reason: str = ""


@dataclass(frozen=True)
class CloseHandle:
    """Close the file behind this handle, which is not named again."""

    handle: Handle


@dataclass(frozen=True)
class Kill:
    """Send SIGKILL to the process behind this handle. If that is not permitted, call `Keeper.kill_failed`."""

    handle: Handle


@dataclass(frozen=True)
class WriteLog:
    """Write a line to the log. `is_seldom`: at most once a second, for what a peer can bring about at will."""

    level: Literal["info", "warning"]
    event: str
    facts: dict[str, Any] = field(default_factory=dict)
    is_seldom: bool = False


KeeperAction = Send | Disconnect | CloseHandle | Kill | WriteLog
