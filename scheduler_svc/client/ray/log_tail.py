"""Passes a child's log on, and remembers its last lines."""

import collections
import os
import sys
import threading

_END_TIMEOUT_S = 1.0  # for what is still in the pipe; a grandchild may hold it open
_MAX_LINE_CHARS = 500


class LogTail:
    """What a child writes to `descriptor` goes on to this process's stderr, which Ray keeps and its dashboard shows.

    Args:
        num_lines: how many are remembered.

    Attributes:
        descriptor: for the child.
    """

    def __init__(self, num_lines: int) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=num_lines)
        self._read_end, self.descriptor = os.pipe()
        self._thread = threading.Thread(target=self._pass_on, name="log", daemon=True)

    def started(self) -> None:
        """The child has the descriptor, or could not be started; ours is closed."""
        os.close(self.descriptor)
        self._thread.start()

    def text(self) -> str:
        """The last lines, once the child has ended."""
        self._thread.join(_END_TIMEOUT_S)
        return "\n".join(tuple(self._lines))

    def _pass_on(self) -> None:
        with os.fdopen(self._read_end, errors="replace") as lines:
            for line in lines:
                self._lines.append(line.rstrip()[:_MAX_LINE_CHARS])
                sys.stderr.write(line)
                sys.stderr.flush()
