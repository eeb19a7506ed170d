"""A stored response that is sent while it is read: piece by piece, what it would be as a whole."""

import asyncio
import time

import pytest
from msgspec.structs import replace

from scheduler_svc.frontend.answers.responses.objects import NO_ITEMS, NO_TAIL, response_json
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.storing.responses import PIECE_BYTES, ResponseStore
from scheduler_svc.store import responses
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions
from tests.store.rows import response

SIZES = [0, 10, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 17]


@pytest.fixture
def thread(tmp_path):
    thread = StoreThread(tmp_path / "store")
    yield thread
    thread.close()


def json_of(size: int) -> bytes:
    """An object of about so many bytes, no part of which is like another."""
    numbers = b",".join(b"%d" % number for number in range(size // 6))
    return b'{"n":[%b]}' % numbers


async def stored(thread: StoreThread, **facts) -> ResponseStore:
    record = response("resp_0", "ann", created_at=time.time(), expires_at=None, **facts)
    await thread.run("ann", responses.add, record)
    return ResponseStore(thread, StoreOptions())


@pytest.mark.parametrize("head", SIZES)
@pytest.mark.parametrize("output", SIZES)
@pytest.mark.parametrize("status", ["completed", "cancelled", "queued"])
def test_pieces_are_the_whole(thread, head: int, output: int, status: str):
    async def run() -> None:
        is_open = status == "queued"
        items = b"" if is_open or not output else b"[%b]" % json_of(output)
        tail = b"" if is_open else b'{"completed_at":1}'
        facts = {"status": status, "head": json_of(head), "output_items": items, "tail": tail}
        store = await stored(thread, **facts)
        answer = await store.answer("ann", "resp_0")
        pieces = [piece async for piece in answer.json()]
        whole = bytes(response_json(facts["head"], status, items or NO_ITEMS, tail or NO_TAIL))
        assert b"".join(pieces) == whole
        assert len(whole) == answer.num_bytes
        assert max(map(len, pieces)) <= PIECE_BYTES
        beginning = b"".join([piece async for piece in answer.json("in_progress")])
        assert beginning == bytes(response_json(facts["head"], "in_progress"))

    asyncio.run(run())


def test_one_that_is_short_is_read_at_once(thread):
    reads = []

    class Counting(ResponseStore):
        async def read(self, *args):
            reads.append(args)
            return await super().read(*args)

    async def run() -> None:
        await stored(thread, status="completed", output_items=b"[1]", tail=b"{}")
        answer = await Counting(thread, StoreOptions()).answer("ann", "resp_0")
        assert len([piece async for piece in answer.json()]) == len(reads) == 1

    asyncio.run(run())


def test_one_that_is_deleted_meanwhile_breaks_off(thread):
    async def run() -> None:
        store = await stored(thread, status="completed", head=json_of(5 * PIECE_BYTES), output_items=b"[]", tail=b"{}")
        pieces = (await store.answer("ann", "resp_0")).json()
        await anext(pieces)
        await store.delete("ann", "resp_0")
        with pytest.raises(ApiError) as missing:
            async for _ in pieces:
                pass
        assert missing.value.status == 404

    asyncio.run(run())


def test_one_that_ends_meanwhile_is_sent_as_it_was(thread):
    async def run() -> None:
        store = await stored(thread)
        answer = await store.answer("ann", "resp_0")
        end = {"status": "completed", "output_items": b"[2]", "tail": b'{"a":1}', "tokens": b""}
        assert await thread.run("ann", responses.finish, "ann", "resp_0", time.time(), **end)
        whole = b"".join([piece async for piece in answer.json()])
        assert whole == bytes(response_json(replace(response("resp_0")).head, "queued"))

    asyncio.run(run())
