"""The background worker beside a core that refuses, forgets, goes and comes back: each response ends once, as it was
asked for, and the store has it."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.background import pace, response_run, turns, worker
from scheduler_svc.frontend.background.token_log import TokenLog
from scheduler_svc.store import owners, responses
from scheduler_svc.store.database import connect
from scheduler_svc.store.records import StoredResponse
from scheduler_svc.store.store_thread import StoreThread
from tests.frontend.answers.responses.told import ID
from tests.frontend.background.working import CORE_ID, WORDS, Keys, ended, keep, stored, working
from tests.frontend.links import in_event_loop, linked_core, until
from tests.support.fake_core import FakeCore, refuse, say, silence


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """What is tried again is tried soon."""
    monkeypatch.setattr(response_run, "RETRY_S", 0.01)
    monkeypatch.setattr(worker, "RESCAN_S", 0.02)
    monkeypatch.setattr(worker, "TURN_S", 0.01)
    monkeypatch.setattr(pace, "FIRST_REST_S", 0.01)
    monkeypatch.setattr(pace, "LONGEST_REST_S", 0.05)


def text_of(record: StoredResponse) -> str:
    return msgspec.json.decode(record.output_items)[0]["content"][0]["text"]


@in_event_loop
async def test_what_an_earlier_worker_left_is_taken_up(tmp_path: Path):
    async with linked_core(tmp_path, say(WORDS)) as (core, link):
        store = StoreThread(tmp_path / "store")
        await keep(store)
        store.close()
        async with working(link, tmp_path) as (_, again):
            record = await ended(again)
    assert (record.status, text_of(record), record.work) == ("incomplete", "one two three four five six seven", b"")
    assert len(core.submits) == 1


@in_event_loop
async def test_a_core_that_is_full_is_asked_again(tmp_path: Path):
    async with linked_core(tmp_path) as (core, link), working(link, tmp_path) as (made, store):
        core.script = refuse("full", "queue_full")
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits)
        core.script = say(WORDS)
        core.stories.clear()
        assert text_of(await ended(store)).startswith("one two")


@asynccontextmanager
async def left_by_its_core(folder: Path) -> AsyncIterator[tuple[FakeCore, StoreThread]]:
    """A response that runs, whose core has ended after three of its words."""
    async with (
        linked_core(folder, say(WORDS, pause_s=0.02)) as (core, link),
        working(link, folder) as (made, store),
    ):
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits and len(core.stories[CORE_ID].told[0].token_ids) >= 3)
        await asyncio.to_thread(core.close)
        yield core, store


async def ended_under(core: FakeCore, store: StoreThread) -> StoredResponse:
    """The response, once it has under this core, which is closed then."""
    with contextlib.closing(core):
        return await ended(store)


@in_event_loop
async def test_a_core_that_comes_back_goes_on(tmp_path: Path):
    async with left_by_its_core(tmp_path) as (core, store):
        rest = say(WORDS[len(core.stories[CORE_ID].told[0].token_ids) :])
        again = FakeCore(tmp_path, script=rest, stories=core.stories)
        record = await ended_under(again, store)
        assert text_of(record) == "one two three four five six seven", "each token once"
        assert not again.submits, "it was attached to"


@in_event_loop
async def test_a_core_that_has_forgotten_gets_the_request_anew(tmp_path: Path):
    async with left_by_its_core(tmp_path) as (_, store):
        again = FakeCore(tmp_path, script=say(WORDS))
        record = await ended_under(again, store)
        assert text_of(record) == "one two three four five six seven"
        assert [submit.request_id for submit in again.submits] == [CORE_ID]


@in_event_loop
async def test_a_request_that_the_core_gave_up_is_sent_under_another_id(tmp_path: Path):
    """The worker was away for longer than the core keeps what is not read."""
    async with linked_core(tmp_path, silence) as (core, link), working(link, tmp_path) as (made, store):
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits)
        core.script = say(WORDS)
        link._send(m.Cancel(request_id=CORE_ID))
        assert text_of(await ended(store)).startswith("one two")
        assert [submit.request_id for submit in core.submits] == [CORE_ID, f"{ID}-1"]


@in_event_loop
async def test_cancelled_while_it_runs_and_while_the_core_is_away(tmp_path: Path):
    async with (
        linked_core(tmp_path, say(WORDS, pause_s=0.05)) as (core, link),
        working(link, tmp_path) as (made, store),
    ):
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits and core.stories[CORE_ID].told[0].token_ids)
        await made.cancel("", ID)
        record = await stored(store)
        assert record.status == "cancelled"
        assert text_of(record).startswith("one"), "what it has said is kept"
        assert core.cancels
        await store.run("", responses.delete, "", ID, time.time())
        await keep(store)
        core.stories.clear()
        core.script = silence
        made.start("", ID)
        await until(lambda: len(core.submits) == 2)
        await asyncio.to_thread(core.close)
        await until(lambda: not link.is_up)
        await made.cancel("", ID)
        assert (await stored(store)).status == "cancelled"


@in_event_loop
async def test_a_failure_is_stored(tmp_path: Path):
    script = refuse("no executor can", "capacity_lost")
    async with linked_core(tmp_path, script) as (_, link), working(link, tmp_path) as (made, store):
        await keep(store)
        made.start("", ID)
        record = await ended(store)
    assert record.status == "failed"
    assert msgspec.json.decode(record.tail)["error"] == {"code": "server_error", "message": "no executor can"}


@in_event_loop
async def test_work_of_another_version_fails_and_says_so(tmp_path: Path):
    async with linked_core(tmp_path) as (core, link), working(link, tmp_path) as (made, store):
        await keep(store, msgspec.msgpack.encode([99]))
        made.start("", ID)
        record = await ended(store)
        assert record.status == "failed"
        assert "version" in msgspec.json.decode(record.tail)["error"]["message"]
        assert not core.submits


@in_event_loop
async def test_a_worker_that_ends_lets_the_request_go_on(tmp_path: Path):
    async with linked_core(tmp_path, silence) as (core, link):
        async with working(link, tmp_path) as (made, store):
            await keep(store)
            made.start("", ID)
            await until(lambda: core.submits)
        await until(lambda: core.detaches)
        assert not core.cancels
        async with working(link, tmp_path) as (_, store):
            core.script = say(WORDS)
            await until(lambda: len(core.attaches) == 2)
            assert (await stored(store)).status == "in_progress"
    assert len(core.submits) == 1


@in_event_loop
async def test_what_the_worker_was_not_told_of_is_found(tmp_path: Path):
    """A frontend was killed between the store and the worker: before a response ran, and before it was cancelled."""
    async with (
        linked_core(tmp_path, silence) as (core, link),
        working(link, tmp_path) as (_, store),
    ):
        frontend = StoreThread(tmp_path / "store")
        await keep(frontend)
        await until(lambda: core.submits)
        await frontend.run("", responses.cancel, "", ID, time.time())
        await until(lambda: core.cancels)
        assert (await stored(store)).status == "cancelled"
        frontend.close()


@in_event_loop
async def test_a_response_that_is_cancelled_while_it_begins_does_not_run(tmp_path: Path):
    async with linked_core(tmp_path, silence) as (core, link), working(link, tmp_path) as (made, store):
        has_begun, goes_on = asyncio.Event(), asyncio.Event()
        ask = made._patient.ask

        async def slow(owner, function, *args, **kwargs):
            answer = await ask(owner, function, *args, **kwargs)
            if function is responses.begin:
                has_begun.set()
                await goes_on.wait()
            return answer

        made._patient.ask = slow
        await keep(store)
        made.start("", ID)
        await has_begun.wait()
        await made.cancel("", ID)
        assert (await stored(store)).status == "cancelled"
        goes_on.set()
        await until(lambda: not made._places)
        assert not core.submits


@in_event_loop
async def test_cancelled_while_the_core_is_asked_for_it(tmp_path: Path, monkeypatch):
    """The core has the request, and says so a little later than the client cancels."""
    async with linked_core(tmp_path, silence) as (core, link):
        async with working(link, tmp_path) as (made, store):
            await keep(store)
            made.start("", ID)
            await until(lambda: core.submits)
        await until(lambda: core.detaches)
        answers, attach = threading.Event(), core._attach
        monkeypatch.setattr(core, "_attach", lambda *args: answers.wait(10) and attach(*args))
        async with working(link, tmp_path) as (made, store):
            await until(lambda: len(core.attaches) == 2)
            cancelling = asyncio.create_task(made.cancel("", ID))
            await asyncio.sleep(0)
            answers.set()
            await cancelling
            assert (await stored(store)).status == "cancelled"
            assert core.cancels, "it is not computed any more"


@in_event_loop
async def test_a_stop_string_that_is_found_after_the_connection_broke_ends_it_in_the_core(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(response_run, "RETRY_S", 60.0)
    put = TokenLog.put

    def put_and_break(self, delta: m.TokenDelta) -> None:
        put(self, delta)
        raise RequestRejected("it broke", "unavailable")

    monkeypatch.setattr(TokenLog, "put", put_and_break)
    script = say(WORDS[:5] * 20, per_step=50, pause_s=60.0)
    async with linked_core(tmp_path, script) as (core, link), working(link, tmp_path) as (made, store):
        await keep(store, stop=("three",))
        made.start("", ID)
        record = await ended(store)
        assert (record.status, text_of(record)) == ("completed", "one two ")
        await until(lambda: core.cancels)


@pytest.mark.parametrize("code", ["too_many_requests", "rate_limit_exceeded"])
@in_event_loop
async def test_an_owner_at_its_limit_keeps_no_other_waiting(tmp_path: Path, monkeypatch, code: str):
    """All that may run at once is asked for by one owner, whom the core refuses."""
    monkeypatch.setattr(turns, "MOST", 2)
    async with linked_core(tmp_path) as (core, link), working(link, tmp_path) as (made, store):

        def script(submit: m.Submit):
            if submit.request_id != CORE_ID:
                yield from refuse("too many", code)(submit)
                del core.stories[submit.request_id]  # as the core keeps nothing of what it refuses
            else:
                yield from say(WORDS)(submit)

        core.script = script
        others = [f"resp_{number:024x}" for number in range(5)]
        for other in others:
            await keep(store, owner="busy", response_id=other)
            made.start("busy", other)
        await until(lambda: len(core.submits) > 5)
        await keep(store)
        made.start("", ID)
        assert text_of(await ended(store)).startswith("one two")
        core.script = say(WORDS)
        for other in others:
            assert (await ended(store, "busy", other)).status == "incomplete", "its turn comes"


@in_event_loop
async def test_the_work_of_an_owner_without_a_key_waits_until_it_has_one_again(tmp_path: Path):
    """A start with another file of keys ends nothing of anybody."""
    keys = Keys()
    keys.taken.add("ann")
    async with linked_core(tmp_path, say(WORDS)) as (core, link), working(link, tmp_path, keys=keys) as (made, store):
        for owner in ("ann", "bob"):
            await keep(store, owner=owner)
            made.start(owner, ID)
        assert text_of(await ended(store, "bob")).startswith("one two")
        assert (await stored(store, "ann")).status == "queued"
        assert {submit.client for submit in core.submits} == {"bob"}
        keys.taken.clear()
        assert text_of(await ended(store, "ann")).startswith("one two")
    hers = core.submits[-1]
    assert (hers.request_id, hers.client, hers.client_name, hers.client_limit) == (
        f"ann/{CORE_ID}",
        "ann",
        "ann's name",
        9,
    ), "whatever the release that kept it called her"
    assert (hers.weight, hers.address) == (2.5, "")
    assert hers.charge == m.Charge(tokens=hers.most_tokens, tokens_per_minute=7)


@in_event_loop
async def test_what_ends_while_its_owner_has_no_key_is_forgotten(tmp_path: Path):
    keys = Keys()
    keys.taken.add("ann")
    async with linked_core(tmp_path, say(WORDS)) as (core, link), working(link, tmp_path, keys=keys) as (made, store):
        await keep(store, owner="ann")
        made.start("ann", ID)
        await made.cancel("ann", ID)
        await until(lambda: not made._places)
    assert not core.submits


@in_event_loop
async def test_a_revoked_owner_s_responses_end_and_do_not_begin_anew(tmp_path: Path, monkeypatch):
    """Those that run, and those that wait; the worker need not look at its keys for that."""
    monkeypatch.setattr(turns, "MOST", 1)
    async with linked_core(tmp_path, silence) as (core, link), working(link, tmp_path) as (made, store):
        other = f"resp_{1:024x}"
        for response_id in (ID, other):
            await keep(store, owner="ann", response_id=response_id)
            made.start("ann", response_id)
        await until(lambda: core.submits)
        with closing(connect(tmp_path / "store")) as frontend:
            assert owners.revoke(frontend, "ann", time.time(), errors=b"[]") == 2
        made.look()
        await until(lambda: core.cancels)
        core.script = say(WORDS)
        await keep(store, owner="bob")
        made.start("bob", ID)
        await ended(store, "bob")
        assert [(await stored(store, "ann", each)).status for each in (ID, other)] == ["cancelled"] * 2
    assert [submit.client for submit in core.submits] == ["ann", "bob"]


@in_event_loop
async def test_a_fault_of_ours_ends_the_response_and_says_so(tmp_path: Path, monkeypatch):
    def broken(*args, **kwargs):
        raise KeyError("a fault")

    async with linked_core(tmp_path) as (_, link), working(link, tmp_path) as (made, store):
        monkeypatch.setattr(link, "open", broken)
        await keep(store)
        made.start("", ID)
        assert (await ended(store)).status == "failed"
        await store.run("", responses.delete, "", ID, time.time())
        monkeypatch.setattr(worker, "ResponseRun", broken)
        await keep(store)
        made.start("", ID)
        record = await ended(store)
        assert record.status == "failed"
        assert "log" in msgspec.json.decode(record.tail)["error"]["message"]


@in_event_loop
async def test_a_response_whose_answer_another_version_asked_for_fails_and_says_so(tmp_path: Path):
    async with linked_core(tmp_path) as (core, link), working(link, tmp_path) as (made, store):
        await keep(store, context=msgspec.msgpack.encode([99]))
        made.start("", ID)
        record = await ended(store)
        assert record.status == "failed"
        assert "version" in msgspec.json.decode(record.tail)["error"]["message"]
        assert not core.submits


@in_event_loop
async def test_a_successor_ends_what_a_worker_began_once(tmp_path: Path):
    script = say(WORDS, pause_s=0.02)
    async with linked_core(tmp_path, script) as (core, link):
        async with working(link, tmp_path) as (made, store):
            await keep(store)
            made.start("", ID)
            await until(lambda: core.submits and len(core.stories[CORE_ID].told[0].token_ids) >= 3)
            made.stop()
            await until(lambda: not made._places)
            assert (await stored(store)).status == "in_progress"
        async with working(link, tmp_path) as (made, store):
            record = await ended(store)
            await until(lambda: not made._places)
    assert (record.status, text_of(record)) == ("incomplete", "one two three four five six seven")
    assert len(core.submits) == 1
    assert not core.cancels
