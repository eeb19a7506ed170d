"""The name of an executor that was given none: the same after a restart, and of no other executor on this machine.

What the scheduler learns of an executor (how long its steps take, that it only fails) is kept by its name, so a name
with a process id in it would be forgotten at each start.
"""

import os
import socket
import sys

MAX_NAMES = 1024
MAX_HOST_CHARS = 100


class NameClaim:
    """A host's lowest free name, `HOST-0`, `HOST-1` and so on, held until the process ends, however it ends.

    On Linux the claim is a socket in the abstract namespace, which the kernel frees. Elsewhere the name has the process
    id in it.

    Attributes:
        name: it.
    """

    def __init__(self) -> None:
        host = socket.gethostname()[:MAX_HOST_CHARS] or "executor"
        self._socket = socket.socket(socket.AF_UNIX)
        self.name = f"{host}-{os.getpid()}"
        if sys.platform != "linux":
            return
        for number in range(MAX_NAMES):
            try:
                self._socket.bind(f"\0baton-executor/{host}/{number}")
            except OSError:
                continue
            self.name = f"{host}-{number}"
            return

    def release(self) -> None:
        """Leave the name to another process."""
        self._socket.close()
