"""Whose work is done next, where there is one place for it: clients take turns.

One that asks for much delays another by one piece of work.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from scheduler_svc.frontend.errors import ApiError


@dataclass(slots=True)
class _Queue:
    """A client's pieces of work: the first waits for the turn, the others for the first."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_waiting: int = 0


class ClientTurns:
    """One turn at a time. A client stands in the queue for it once at most, whatever it asks for.

    Args:
        max_waiting: pieces of a client; with the time of one and the number of clients, this bounds the wait. None
            leaves that to the limits of requests.
        too_many: the error for one more.
    """

    def __init__(self, max_waiting: int | None = None, too_many: str = "") -> None:
        self._turn = asyncio.Lock()
        self._queues: dict[str, _Queue] = {}
        self._max_waiting = max_waiting
        self._too_many = too_many

    @property
    def is_idle(self) -> bool:
        """Whether nothing is done or waits."""
        return not self._queues

    @contextlib.asynccontextmanager
    async def take(self, client: str) -> AsyncIterator[None]:
        """Wait for the client's turn, and keep it for the `async with` block. Raises ApiError (503) if too many of its
        pieces are waiting."""
        queue = self._queues.setdefault(client, _Queue())
        if self._max_waiting is not None and queue.num_waiting >= self._max_waiting:
            raise ApiError(503, self._too_many, code="unavailable", retry=True)
        queue.num_waiting += 1
        try:
            async with queue.lock, self._turn:
                yield
        finally:
            queue.num_waiting -= 1
            if queue.num_waiting == 0:
                del self._queues[client]
