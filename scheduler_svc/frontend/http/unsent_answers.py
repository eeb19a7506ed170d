"""How much of large answers a frontend holds for clients that have not read it."""

import contextlib
from collections.abc import Iterator

from common.errors import RequestRejected

MAX_UNSENT_BYTES = 2**28


class UnsentAnswers:
    """Counts the bytes of answers that are whole and on their way. Their requests have ended, so the limit of open ones
    does not bound them.

    Args:
        max_bytes: from so many on, no request for another large answer is taken.
    """

    def __init__(self, max_bytes: int = MAX_UNSENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def check(self) -> None:
        """Raise RequestRejected (`queue_full`) if too much is unsent for another answer."""
        if self._num_bytes >= self._max_bytes:
            message = f"{self._num_bytes} bytes of answers wait for their readers, the limit is {self._max_bytes}"
            raise RequestRejected(message, "queue_full")

    @contextlib.contextmanager
    def counted(self, num_bytes: int) -> Iterator[None]:
        """An answer of so many bytes is being sent."""
        self._num_bytes += num_bytes
        try:
            yield
        finally:
            self._num_bytes -= num_bytes
