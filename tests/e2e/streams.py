"""64 streams that go on while something is done to the service."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

NUM_STREAMS = 64
SPEAKERS = ("ROMEO", "JULIET", "KING RICHARD III", "First Citizen", "MENENIUS", "GLOUCESTER", "QUEEN", "HAMLET")


def requests() -> Iterator[dict[str, Any]]:
    """64 different requests: greedy ones, and seeded ones at temperature 0.8."""
    for i in range(NUM_STREAMS):
        sampled = {"temperature": 0.8, "seed": i, "top_p": 0.95} if i % 2 else {"temperature": 0}
        prompt = f"{SPEAKERS[i % len(SPEAKERS)]}:\nThe {i}th time I say, "
        yield {"model": "baton-demo", "prompt": prompt, "max_tokens": 80 + i, **sampled}


async def keep_streaming(
    text_of: Callable[[dict[str, Any]], Awaitable[str]], disturb: Callable[[], Awaitable[None]]
) -> int:
    """64 streams at once, each started anew when it ends, while `disturb` runs; the texts are those of calm runs.

    Returns:
        How many streams ended.
    """
    expected = await asyncio.gather(*(text_of(request) for request in requests()))
    disturbance = asyncio.ensure_future(disturb())
    finished = itertools.count()

    async def one(i: int, request: dict[str, Any]) -> None:
        while not disturbance.done():
            assert await text_of(request) == expected[i], f"request {i} was disturbed"
            next(finished)

    await asyncio.gather(*(one(i, request) for i, request in enumerate(requests())))
    await disturbance
    return next(finished)
