"""Streams that go on while something is done to the service: a few, or 64."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import openai

from scheduler_svc.client.processes.local_fleet import LocalFleet

NUM_STREAMS = 64
FEW = 4
NUM_TOKENS = 60  # of the few, half a second of work,
PIECES_BEFORE = 8  # and so many of them before something is done
SPEAKERS = ("ROMEO", "JULIET", "KING RICHARD III", "First Citizen", "MENENIUS", "GLOUCESTER", "QUEEN", "HAMLET")


def requests(shortest: int = 80) -> Iterator[dict[str, Any]]:
    """64 different requests: greedy ones, and seeded ones at temperature 0.8; the first one has `shortest` tokens."""
    for i in range(NUM_STREAMS):
        sampled = {"temperature": 0.8, "seed": i, "top_p": 0.95} if i % 2 else {"temperature": 0}
        prompt = f"{SPEAKERS[i % len(SPEAKERS)]}:\nThe {i}th time I say, "
        yield {"model": "baton-demo", "prompt": prompt, "max_tokens": shortest + i, **sampled}


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


async def texts(fleet: LocalFleet, disturb: Callable[[], object] | None = None) -> list[str]:
    """The texts of a few streams, with something done to the service when they are under way."""
    under_way = asyncio.Event()
    num_pieces = 0

    async def one(client: openai.AsyncOpenAI, request: dict[str, Any]) -> str:
        nonlocal num_pieces
        text = ""
        async for chunk in await client.completions.create(**request, stream=True):
            text += chunk.choices[0].text if chunk.choices else ""
            num_pieces += 1
            if num_pieces == PIECES_BEFORE * FEW:
                under_way.set()
        return text

    async with openai.AsyncOpenAI(base_url=f"{fleet.spec.url}/v1", api_key="x", max_retries=0, timeout=120) as client:
        streaming = asyncio.gather(*(one(client, request) for request in itertools.islice(requests(NUM_TOKENS), FEW)))
        if disturb is not None:
            await under_way.wait()
            await asyncio.to_thread(disturb)
        return await streaming
