"""The KV events that were sent last, numbered, so that a router that has missed some can have them again. No I/O."""

from collections import deque

from scheduler_svc.server.kv_event_format import SEQUENCE_BYTES

MAX_BATCHES = 10_000  # as vLLM keeps
MAX_BYTES = 2**26


class EventLog:
    """A bounded log of encoded batches.

    Args:
        max_batches, max_bytes: older batches are forgotten beyond either; the newest one stays in any case.
    """

    def __init__(self, max_batches: int = MAX_BATCHES, max_bytes: int = MAX_BYTES) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._batches: deque[bytes] = deque()
        self._num_bytes = 0
        self.next = 0

    @property
    def first(self) -> int:
        """The number of the oldest batch that is kept; `next` if none is."""
        return self.next - len(self._batches)

    def append(self, batch: bytes) -> int:
        """Keep a batch; returns its number."""
        self._batches.append(batch)
        self._num_bytes += len(batch)
        self.next += 1
        while len(self._batches) > 1 and (len(self._batches) > self._max_batches or self._num_bytes > self._max_bytes):
            self._num_bytes -= len(self._batches.popleft())
        return self.next - 1

    def __getitem__(self, number: int) -> bytes:
        """A batch that is kept."""
        return self._batches[number - self.first]


def encode_number(number: int) -> bytes:
    """A batch's number as it stands in a message."""
    return number.to_bytes(SEQUENCE_BYTES, "big")
