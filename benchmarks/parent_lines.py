"""The far end of a `SideProcess`: the parent's JSON lines, and our answers. Standard library only, for any Python.

The first line says what all runs are about; it is answered when everything is ready. Each further one asks for a run:
`{"name": "run-0", "limit": null}`, with a limit of each request's tokens or none. The answer is a `Run`'s fields.
"""

import json
import os
import socket
from collections.abc import Iterator
from typing import Any


class ParentLines:
    """A socket to the process that started this one.

    Args:
        fd: of the socket. What this process starts does not get it: the parent is to see when this one ends.
    """

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._lines = socket.socket(fileno=fd).makefile("rw", encoding="utf-8")

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the parent asks, one after the other, until it closes the socket or ends."""
        for line in iter(self._lines.readline, ""):
            yield json.loads(line)

    def answer(self, answer: dict[str, Any]) -> None:
        """To the message before.

        Raises:
            BrokenPipeError: the parent is gone.
        """
        self._lines.write(json.dumps(answer) + "\n")
        self._lines.flush()
