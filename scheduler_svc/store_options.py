"""Options of the store. The scheduler has them, and passes them on to its frontends and to the background worker."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

RETENTION_DAYS = 30.0
DAY_S = 86_400.0
LIMIT_MB = 10_000  # of one API key
WORKER_SOCKET = "worker.sock"  # of the background worker, in the store's folder
MEGABYTE = 2**20


@dataclass(frozen=True)
class StoreOptions:
    """Where and how what outlives requests is kept.

    Attributes:
        folder: of the store; None where none is named.
        retention_s: seconds after which it is forgotten.
        limit_bytes: that each API key may have there; 0 for no limit.
        durable: whether each write waits for the disk.
    """

    folder: Path | None = None
    retention_s: float = RETENTION_DAYS * DAY_S
    limit_bytes: int = LIMIT_MB * MEGABYTE
    durable: bool = False

    def arguments(self) -> list[str]:
        """The same as arguments of a command."""
        folder = [] if self.folder is None else ["--store", str(self.folder)]
        retention, limit = repr(self.retention_s / DAY_S), str(self.limit_bytes // MEGABYTE)
        arguments = [*folder, "--store-retention", retention, "--store-limit", limit]
        return [*arguments, *(["--store-durable"] if self.durable else [])]


def state_folder() -> Path:
    """Return the folder of this user for journals and stores that have no other place. Raises RuntimeError for a user
    without a home."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "baton"


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as `store`."""

    @click.option("--store", "folder", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
                  help="Keep responses, files and batches in this folder.  [default: beside the journal]")  # fmt: skip
    @click.option("--store-retention", "retention_days", type=click.FloatRange(0.0, min_open=True), metavar="DAYS",
                  default=RETENTION_DAYS, show_default=True, help="Forget what is stored after so long.")  # fmt: skip
    @click.option("--store-limit", "limit_mb", type=click.IntRange(0), metavar="MiB", default=LIMIT_MB,
                  show_default=True, help="What each API key may have in the store; 0 for no limit.")  # fmt: skip
    @click.option("--store-durable", "durable", is_flag=True, help="Wait for the disk at each write to the store: "
                  "survives a power cut as well.")  # fmt: skip
    @wraps(command)
    def with_options(folder: Path | None, retention_days: float, limit_mb: int, durable: bool, **options: Any) -> Any:
        return command(store=StoreOptions(folder, retention_days * DAY_S, limit_mb * MEGABYTE, durable), **options)

    return with_options
