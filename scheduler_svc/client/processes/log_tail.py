"""Passes a child's log on, and remembers its last lines."""

import collections
import os
import sys
import threading

_END_TIMEOUT_S = 1.0  # for what is still in the pipe; a grandchild may hold it open
_MAX_LINE_BYTES = 500
_READ_BYTES = 2**16


class LogTail:
    """What a child writes to `descriptor` goes on to this process's stderr as it comes, progress bars too.

    Args:
        num_lines: how many are remembered.

    Attributes:
        descriptor: for the child.
    """

    def __init__(self, num_lines: int) -> None:
        self._lines: collections.deque[bytes] = collections.deque(maxlen=num_lines)
        self._read_end, self.descriptor = os.pipe()
        self._thread = threading.Thread(target=self._pass_on, name="log", daemon=True)

    def started(self) -> None:
        """The child has the descriptor, or could not be started; ours is closed."""
        os.close(self.descriptor)
        self._thread.start()

    def ended(self) -> None:
        """The child has ended: what it wrote last goes on before what others write from now on."""
        self._thread.join(_END_TIMEOUT_S)

    def text(self) -> str:
        """The last lines, once the child has ended."""
        self.ended()
        return b"\n".join(tuple(self._lines)).decode(errors="replace")

    def _pass_on(self) -> None:
        begun = b""  # a line
        with os.fdopen(self._read_end, "rb", buffering=0) as log:
            while data := log.read(_READ_BYTES):
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()
                *lines, begun = (begun + data).split(b"\n")
                self._lines.extend(line.rpartition(b"\r")[2].rstrip()[:_MAX_LINE_BYTES] for line in lines)
                begun = begun[-_READ_BYTES:]
        if begun:
            self._lines.append(begun[:_MAX_LINE_BYTES])
