"""One client floods a real service; another one's request is served at once, by its key or by its address."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from scheduler_svc.client.processes.local_fleet import LocalFleet
from tests.e2e.conftest import LANES
from tests.support.eventually import eventually
from tests.support.fleets import running_fleet

pytestmark = pytest.mark.anyio

FLOOD = 40
BODY = {"model": "baton-demo", "prompt": "ROMEO:", "stream": True, "ignore_eos": True}


class Flood:
    """Many long streams of one client. `begun` counts those that have had a token."""

    def __init__(self, fleet: LocalFleet, client: httpx.AsyncClient) -> None:
        self.begun = 0
        self._url = f"{fleet.spec.url}/v1/completions"
        self._client = client

    async def stream(self) -> None:
        """One of them, to its end."""
        async with self._client.stream("POST", self._url, json=BODY | {"max_tokens": 150}) as answer:
            has_begun = False
            async for line in answer.aiter_lines():
                self.begun += line.startswith("data: {") and not has_begun
                has_begun |= line.startswith("data: {")


@contextlib.asynccontextmanager
async def flooded(fleet: LocalFleet, client: httpx.AsyncClient) -> AsyncIterator[Flood]:
    """All lanes are taken, and more wait."""
    flood = Flood(fleet, client)
    async with asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(flood.stream()) for _ in range(FLOOD)]
        while flood.begun < LANES:
            await asyncio.sleep(0.01)
        yield flood
        for stream in streams:
            stream.cancel()


async def answer_beside(fleet: LocalFleet, flooding: httpx.AsyncClient, other: httpx.AsyncClient) -> int:
    """How many of a flood had begun when another client's answer was there."""
    async with flooded(fleet, flooding) as flood:
        body = BODY | {"stream": False, "max_tokens": 5}
        answer = await other.post(f"{fleet.spec.url}/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 5, answer.text
        return flood.begun


def with_key(key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=120)


def from_address(address: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(local_address=address, limits=limits), timeout=120)


async def test_a_keys_request_does_not_wait_for_another_keys_forty(keyed, keys):
    async with with_key(keys.heavy) as heavy, with_key(keys.light) as light:
        assert await answer_beside(keyed, heavy, light) <= 2 * LANES


async def test_without_keys_an_address_is_a_client(tmp_path):
    options = ("--max-num-seqs", str(LANES))
    with running_fleet(tmp_path, executor_options=options) as fleet:
        async with from_address("127.0.0.1") as heavy, from_address("127.0.0.2") as light:
            assert await answer_beside(fleet, heavy, light) <= 2 * LANES
        state = b"".join(path.read_bytes() for path in tmp_path.glob("journal*") if path.is_file())
        assert b"127.0.0.2" not in state
        eventually(lambda: httpx.get(f"{fleet.spec.url}/status").json()["waiting"] == 0)
