"""The thread: one call after the other, bounded, with errors that reach the caller, and an end."""

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest

from scheduler_svc.store import database, responses
from scheduler_svc.store.database import connect
from scheduler_svc.store.errors import NotFound, StoreBusy, StoreClosed, StoreError
from scheduler_svc.store.store_thread import StoreThread
from tests.store.rows import response
from tests.support.eventually import eventually


@pytest.fixture
def thread(tmp_path):
    """A thread for at most three calls."""
    thread = StoreThread(tmp_path, max_calls=3)
    yield thread
    assert thread.close()


class Gate:
    """A call that says that it runs, and waits to be let through."""

    def __init__(self):
        self.runs, self.opens = threading.Event(), threading.Event()

    def __call__(self, connection):
        self.runs.set()
        assert self.opens.wait(60)
        return "through"


def test_calls_are_made_in_order_by_one_thread(thread):
    async def main():
        await asyncio.gather(*(thread.run("ann", responses.add, response(f"r{i}")) for i in range(3)))
        keys = await thread.run(
            "ann", lambda store: store.execute("SELECT response_id FROM responses ORDER BY key").fetchall()
        )
        assert keys == [("r0",), ("r1",), ("r2",)]
        assert await thread.run("ann", responses.get_status, "ann", "r1", now=2.0) == "queued"
        assert await thread.run("ann", lambda _: threading.current_thread().name) == "store"

    asyncio.run(main())


def test_errors_reach_the_caller_and_the_thread_goes_on(thread):
    def fail(connection):
        raise ZeroDivisionError

    async def main():
        with pytest.raises(NotFound, match="'r'"):
            await thread.run("ann", responses.measure, "ann", "r", 2.0)
        with pytest.raises(ZeroDivisionError):
            await thread.run("ann", fail)
        with pytest.raises(StoreError, match=r"the store failed: no such table: x \(SQLITE_ERROR\)"):
            await thread.run("ann", lambda store: store.execute("SELECT * FROM x"))
        assert await thread.run("ann", lambda _: "fine") == "fine"
        assert thread.num_calls == 0

    asyncio.run(main())


def test_more_calls_than_the_limit_are_refused_and_a_place_is_free_at_once(thread):
    async def main():
        gate = Gate()
        tasks = [
            asyncio.ensure_future(thread.run("ann", gate)),
            *(asyncio.ensure_future(thread.run("ann", str)) for _ in range(2)),
        ]
        await asyncio.to_thread(gate.runs.wait, 60)
        with pytest.raises(StoreBusy, match="the store: 3 calls of this owner wait, which is its limit at the moment"):
            await thread.run("ann", str)
        gate.opens.set()
        assert (await asyncio.gather(*tasks))[0] == "through"
        for _ in range(100):
            await asyncio.gather(*(thread.run("ann", str) for _ in range(3)))

    asyncio.run(main())


def test_an_owner_with_many_calls_delays_another_s_by_one_and_refuses_none(thread):
    async def main():
        gate, order = Gate(), []

        def call(owner):
            return asyncio.ensure_future(thread.run(owner, lambda _: order.append(owner)))

        running = asyncio.ensure_future(thread.run("ann", gate))
        await asyncio.to_thread(gate.runs.wait, 60)
        calls = [call(owner) for owner in ("ann", "ann", "bob", "cid")]
        await asyncio.sleep(0)
        with pytest.raises(StoreBusy, match="3 calls of this owner"):
            await thread.run("ann", str)
        gate.opens.set()
        await asyncio.gather(running, *calls)
        assert order == ["ann", "bob", "cid", "ann"]

    asyncio.run(main())


def test_a_cancelled_call_is_not_begun_and_leaves_its_place(thread):
    async def main():
        gate = Gate()
        running = asyncio.ensure_future(thread.run("ann", gate))
        await asyncio.to_thread(gate.runs.wait, 60)
        waiting = [asyncio.ensure_future(thread.run("ann", responses.add, response(f"r{i}"))) for i in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        running.cancel()
        await asyncio.gather(running, waiting[0], return_exceptions=True)
        assert thread.num_calls == 3, "it holds its place until the thread has seen that it was cancelled"
        gate.opens.set()
        await waiting[1]
        assert await thread.run("ann", responses.get_status, "ann", "r0", 2.0) is None
        assert await thread.run("ann", responses.get_status, "ann", "r1", 2.0) == "queued"

    asyncio.run(main())
    assert thread.num_calls == 0


def test_closing_does_what_waits_and_takes_no_more(tmp_path):
    thread = StoreThread(tmp_path)

    async def main():
        gate = Gate()
        tasks = [
            asyncio.ensure_future(thread.run("ann", gate)),
            asyncio.ensure_future(thread.run("ann", responses.add, response("r"))),
        ]
        await asyncio.to_thread(gate.runs.wait, 60)
        closing = asyncio.ensure_future(asyncio.to_thread(thread.close))
        gate.opens.set()
        assert await closing
        await asyncio.gather(*tasks)
        with pytest.raises(StoreClosed):
            await thread.run("ann", str)

    asyncio.run(main())
    assert thread.close(), "a second time"
    with closing(connect(tmp_path)) as store:
        assert responses.get_status(store, "ann", "r", 2.0) == "queued"


def test_closing_gives_up_on_a_disk_that_does_not_answer(tmp_path):
    thread = StoreThread(tmp_path)

    async def main():
        gate = Gate()
        task = asyncio.ensure_future(thread.run("ann", gate))
        await asyncio.to_thread(gate.runs.wait, 60)
        assert not thread.close(timeout_s=0.0)
        gate.opens.set()
        assert await task == "through"

    asyncio.run(main())
    assert eventually(thread.close)


def test_a_store_that_others_keep_is_busy_and_nothing_was_done(tmp_path):
    thread = StoreThread(tmp_path)

    async def main():
        await thread.run("ann", lambda store: store.execute("PRAGMA busy_timeout = 0").fetchall())
        with closing(connect(tmp_path)) as other:
            with database.writing(other), pytest.raises(StoreBusy, match="SQLITE_BUSY"):
                await thread.run("ann", responses.add, response("r"))
            await thread.run("ann", responses.add, response("r"))

    asyncio.run(main())
    assert thread.close()


def test_a_store_that_cannot_be_opened_is_told_by_the_constructor(tmp_path):
    with closing(sqlite3.connect(tmp_path / "store.db")) as other:
        other.execute("CREATE TABLE theirs (a)")
    with pytest.raises(StoreError, match="another program"):
        StoreThread(tmp_path)
    assert "store" not in {thread.name for thread in threading.enumerate()}
