"""Clients take turns where there is one place for their work."""

import asyncio

import pytest

from scheduler_svc.frontend.client_turns import ClientTurns
from scheduler_svc.frontend.errors import ApiError
from tests.frontend.links import in_event_loop


class Work:
    """Pieces of work that wait for their turns; each is done in a turn of the loop."""

    def __init__(self, turns: ClientTurns) -> None:
        self.turns = turns
        self.done: list[str] = []

    async def do(self, client: str, fault: Exception | None = None) -> None:
        async with self.turns.take(client):
            await asyncio.sleep(0)
            if fault is not None:
                raise fault
            self.done.append(client)


@in_event_loop
async def test_a_client_that_asks_for_much_delays_another_by_one_piece():
    work = Work(ClientTurns())
    await asyncio.gather(*(work.do(client) for client in ["many"] * 3 + ["few"] * 2))
    assert work.done == ["many", "few", "many", "few", "many"]
    assert work.turns.is_idle


@in_event_loop
async def test_so_many_of_a_client_wait():
    work = Work(ClientTurns(2, "too many"))
    asked = await asyncio.gather(*(work.do(client) for client in ["a"] * 3 + ["b"]), return_exceptions=True)
    assert [type(each) for each in asked] == [type(None), type(None), ApiError, type(None)]
    assert (asked[2].status, asked[2].message) == (503, "too many")
    await work.do("a")
    assert work.turns.is_idle


@in_event_loop
async def test_what_fails_or_is_cancelled_leaves_the_turn_to_the_next():
    work = Work(ClientTurns())
    tasks = [asyncio.create_task(work.do(client)) for client in "aab"]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    with pytest.raises(KeyError):
        await work.do("c", KeyError("a fault"))
    await tasks[2]
    assert work.done == ["b"]
    assert work.turns.is_idle
