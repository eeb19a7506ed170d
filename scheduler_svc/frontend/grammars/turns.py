"""Whose grammar is compiled next: clients take turns, so one that asks for many delays another by one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from scheduler_svc.frontend.errors import ApiError

MAX_WAITING = 16  # compilations of a client; with the time of one and the number of clients, this bounds the wait


@dataclass(slots=True)
class _Queue:
    """A client's compilations: the first waits for the turn, the others for the first."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_waiting: int = 0


class Turns:
    """One turn at a time. A client stands in the queue for it once at most, whatever it asks for."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._queues: dict[str, _Queue] = {}

    @contextlib.asynccontextmanager
    async def take(self, client: str) -> AsyncIterator[None]:
        """Wait for the client's turn, and keep it for the `async with` block. Raises ApiError (503) if too many of its
        grammars are waiting."""
        queue = self._queues.setdefault(client, _Queue())
        if queue.num_waiting >= MAX_WAITING:
            raise ApiError(503, "Too many grammars are being compiled.", code="unavailable", retry=True)
        queue.num_waiting += 1
        try:
            async with queue.lock, self._turn:
                yield
        finally:
            queue.num_waiting -= 1
            if queue.num_waiting == 0:
                del self._queues[client]
