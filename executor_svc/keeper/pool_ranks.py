"""What the pools of several ranks need of the ranks."""

import os
from collections.abc import Sequence
from typing import Protocol

from common.errors import KeeperError


class Ranks(Protocol):
    """See `executor_svc.model.rank_group.RankGroup`, whose room this one does not know."""

    @property
    def rank(self) -> int:
        """Number of this process among the ranks, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """What every rank gives, in order of rank."""
        ...


def without(flags: Sequence[int]) -> str:
    """The ranks whose flag is not set, for a person to read."""
    lacking = [str(rank) for rank, flag in enumerate(flags) if not flag]
    return ("rank " if len(lacking) == 1 else "ranks ") + ", ".join(lacking)


def open_file_of(pid: int, fd: int) -> int:
    """A descriptor of a file that another rank has open. Ranks of one machine and user see each other's in /proc.

    Raises:
        KeeperError: it cannot be opened: the rank is on another machine, or in another container.
    """
    try:
        return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise KeeperError(f"a file of rank 0 (process {pid}) cannot be opened: {error.strerror}") from error
