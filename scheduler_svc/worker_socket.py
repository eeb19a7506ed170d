"""The Unix socket of the background worker, in the folder of the store: where it is, for those at both ends."""

import os
from pathlib import Path

NAME = "worker.sock"
MAX_PATH_BYTES = 103  # that a socket's name may have everywhere; Linux takes 107


class WorkerSocketPath:
    """The path of the socket as a socket takes it.

    A longer one leads by a descriptor of the folder, where the system has these as files; it is this process's alone,
    and nothing is left of it.

    Args:
        folder: of the store; it is there.

    Attributes:
        path: valid until `close`.
    """

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / NAME)
        self._folder: int | None = None
        descriptors = Path("/proc/self/fd")
        if len(os.fsencode(self.path)) > MAX_PATH_BYTES and descriptors.is_dir():
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.path = str(descriptors / str(self._folder) / NAME)

    def close(self) -> None:
        """Let the descriptor go."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None
