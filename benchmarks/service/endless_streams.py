"""Streams that are read as a client reads them, each started again when it ends."""

import asyncio
import random
import time
from itertools import pairwise

from scheduler_svc.client.http.event_stream import EventStreams
from scheduler_svc.client.service_address import ServiceAddress

PAUSE_LIMIT_S = 300.0
VOCABULARY = range(300, 2000)  # of prompts: token ids that any model has


class EndlessStreams:
    """So many streams at once, with prompts of token ids that differ from the first one on.

    Attributes:
        arrivals: when each stream's tokens came since `progress` was called last, newest last.
    """

    def __init__(self, url: str, model: str, count: int, prompt_tokens: int, max_tokens: int) -> None:
        self.arrivals: list[list[float]] = [[] for _ in range(count)]
        self._url = url
        rng = random.Random(0)
        asked = {"model": model, "max_tokens": max_tokens, "ignore_eos": True, "stream": True, "temperature": 0.8}
        self._bodies = [asked | {"prompt": rng.choices(VOCABULARY, k=prompt_tokens), "seed": i} for i in range(count)]

    async def run(self) -> None:
        """Stream until cancelled."""
        streams = EventStreams(ServiceAddress(self._url, timeout_s=PAUSE_LIMIT_S))
        await asyncio.gather(*(self._one(streams, i) for i in range(len(self.arrivals))))

    async def progress(self, num_tokens: int, streaming: "asyncio.Task[None]") -> None:
        """Wait until so many more tokens of each stream have come; what came before this is kept until then."""
        marks = [len(arrivals) for arrivals in self.arrivals]
        while not all(len(a) >= mark + num_tokens for a, mark in zip(self.arrivals, marks, strict=True)):
            if streaming.done():
                streaming.result()
            await asyncio.sleep(0.005)
        for arrivals in self.arrivals:
            del arrivals[: -4 * num_tokens]

    def longest_since(self, at: float) -> list[float]:
        """Of each stream, the longest time between two tokens of which the second came after a time, in seconds."""
        return [
            max(later - earlier for earlier, later in pairwise(arrivals) if later > at) for arrivals in self.arrivals
        ]

    async def _one(self, streams: EventStreams, i: int) -> None:
        while True:
            await streams.post("/v1/completions", self._bodies[i], lambda _: self.arrivals[i].append(time.monotonic()))
