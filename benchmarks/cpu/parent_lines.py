"""The child's end of a `SideProcess`: the parent's JSON lines, and our answers. Standard library only, for any Python.

The first line says what all runs have in common; it is answered when everything is ready. Each further line asks for a
run: `{"name": "run-0", "limit": null}`. A limit is the most tokens of a request. The answer is a `TimedRun`'s fields.
"""

import json
import os
import socket
from collections.abc import Iterator
from typing import Any


class ParentLines:
    """A socket to the parent process.

    Args:
        fd: the socket's file descriptor. Children do not inherit it, so the parent sees when this process ends.
    """

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._lines = socket.socket(fileno=fd).makefile("rw", encoding="utf-8")

    def messages(self) -> Iterator[dict[str, Any]]:
        """The parent's messages, until the parent closes the socket or ends."""
        for line in iter(self._lines.readline, ""):
            yield json.loads(line)

    def answer(self, answer: dict[str, Any]) -> None:
        """Answer the last message.

        Raises:
            BrokenPipeError: the parent has ended.
        """
        self._lines.write(json.dumps(answer) + "\n")
        self._lines.flush()
