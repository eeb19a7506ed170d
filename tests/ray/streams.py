"""Streams that are read while things happen to a fleet, each started anew when it ends: their texts and pauses."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise

from scheduler_svc.client.http.event_stream import EventStreams
from scheduler_svc.client.http.sse import DONE
from scheduler_svc.client.service_address import ServiceAddress
from tests.e2e.streams import requests

PAUSE_LIMIT_S = 120.0


class Readers:
    """So many of the end-to-end tests' requests at once.

    Args:
        url: of the service, which may restart and come back there.

    Attributes:
        finished: answers that have ended, all of them as in a calm run.
        arrivals: when each stream's events came.
    """

    def __init__(self, url: str, count: int) -> None:
        self.url = url
        self._streams = EventStreams(ServiceAddress(url, timeout_s=PAUSE_LIMIT_S, reconnect_timeout_s=PAUSE_LIMIT_S))
        self._requests = [request for request, _ in zip(requests(), range(count), strict=False)]
        self.finished = 0
        self.arrivals: list[list[float]] = [[] for _ in self._requests]

    async def while_(self, disturb: Callable[[], Awaitable[None]]) -> None:
        """Read while `disturb` runs. Raises AssertionError if a text is not what it is when nothing happens."""
        expected = await asyncio.gather(*(self._text(i) for i in range(len(self._requests))))
        disturbance = asyncio.ensure_future(disturb())

        async def one(i: int) -> None:
            while not disturbance.done():
                assert await self._text(i) == expected[i], f"stream {i} was disturbed"
                self.finished += 1

        readers = [asyncio.ensure_future(one(i)) for i in range(len(self._requests))]
        try:
            await asyncio.gather(disturbance, *readers)
        finally:
            for task in (disturbance, *readers):
                task.cancel()

    async def progress(self, num_events: int = 3) -> None:
        """Wait until every stream has gone on."""
        marks = [len(arrivals) for arrivals in self.arrivals]
        while any(len(arrivals) < mark + num_events for arrivals, mark in zip(self.arrivals, marks, strict=True)):
            await asyncio.sleep(0.02)

    def pauses_since(self, at: float) -> list[float]:
        """Of each stream, the longest time between two events of which the second came after a time, in seconds."""
        return [max((b - a for a, b in pairwise(arrivals) if b > at), default=0.0) for arrivals in self.arrivals]

    async def _text(self, i: int) -> str:
        texts: list[str] = []

        def take(data: bytes) -> None:
            self.arrivals[i].append(time.monotonic())
            if data != DONE:
                texts.extend(choice["text"] for choice in json.loads(data)["choices"])

        await self._streams.post("/v1/completions", {**self._requests[i], "stream": True}, take)
        return "".join(texts)
