"""What a host is told to run. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

HEALTH_FILE = "health"
ADDRESS_FILE = "scheduler"


@dataclass(frozen=True)
class Task:
    """What a host runs.

    `{python}`, `{folder}`, `{shared}` and `{host}` in a command are replaced: by the interpreter, by a folder of this
    host's own, by one that all hosts of the fleet on this node share, and by the node's address, as it is in a URL.

    Attributes:
        command: of the process.
        again: of the process when it is started again.
        without: variables that it does not inherit.
        files: what is to lie in `{folder}`, by path; only this user can read it.
        public_key: of the executor, for the scheduler's list.
    """

    command: tuple[str, ...]
    again: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    public_key: str = ""


def in_url(address: str) -> str:
    """A node's address as a part of a URL or endpoint."""
    return f"[{address}]" if ":" in address else address
