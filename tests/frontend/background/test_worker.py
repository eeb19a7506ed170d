"""The background worker beside a core that refuses, forgets, goes and comes back: each response ends once, as it was
asked for, and the store has it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from common import messages as m
from scheduler_svc.frontend.background import worker
from scheduler_svc.store import owners, responses
from scheduler_svc.store.database import connect
from scheduler_svc.store.records import StoredResponse
from scheduler_svc.store.store_thread import StoreThread
from tests.frontend.answers.responses.told import ID
from tests.frontend.background.working import (
    CLIENT,
    CORE_ID,
    SOON,
    WORDS,
    ended,
    keep,
    stored,
    worker_beside,
    working,
)
from tests.frontend.keys import Keys
from tests.frontend.links import in_event_loop, linked_core, until
from tests.support.fake_core import FakeCore, delta, outputs, refuse, say, silence

TEXT = "one two three four five six seven"
NEW_VERSION = msgspec.msgpack.encode([99])


def text_of(record: StoredResponse) -> str:
    return msgspec.json.decode(record.output_items)[0]["content"][0]["text"]


@in_event_loop
async def test_what_an_earlier_worker_left_is_taken_up(tmp_path: Path):
    with closing(StoreThread(tmp_path / "store")) as store:
        await keep(store)
    async with worker_beside(tmp_path, say(WORDS)) as (core, _, again):
        record = await ended(again)
    assert (record.status, text_of(record), record.work) == ("incomplete", TEXT, b"")
    assert len(core.submits) == 1


@in_event_loop
async def test_a_core_that_is_full_is_asked_again(tmp_path: Path):
    async with worker_beside(tmp_path, refuse("full", "queue_full")) as (core, made, store):
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits)
        core.script = say(WORDS)
        core.stories.clear()
        assert text_of(await ended(store)) == TEXT


@asynccontextmanager
async def left_by_its_core(folder: Path) -> AsyncIterator[tuple[FakeCore, StoreThread]]:
    """A response that runs, whose core has ended after three of its words."""
    async with worker_beside(folder, say(WORDS, pause_s=0.02)) as (core, made, store):
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits and len(core.stories[CORE_ID].told[0].token_ids) >= 3)
        await asyncio.to_thread(core.close)
        yield core, store


@in_event_loop
async def test_a_core_that_comes_back_goes_on(tmp_path: Path):
    async with left_by_its_core(tmp_path) as (core, store):
        rest = say(WORDS[len(core.stories[CORE_ID].told[0].token_ids) :])
        with closing(FakeCore(tmp_path, script=rest, stories=core.stories)) as again:
            assert text_of(await ended(store)) == TEXT, "each token once"
        assert not again.submits, "it was attached to"


@in_event_loop
async def test_a_core_that_has_forgotten_gets_the_request_anew(tmp_path: Path):
    async with left_by_its_core(tmp_path) as (_, store):
        with closing(FakeCore(tmp_path, script=say(WORDS))) as again:
            assert text_of(await ended(store)) == TEXT
        assert [submit.request_id for submit in again.submits] == [CORE_ID]


@in_event_loop
async def test_a_request_that_the_core_gave_up_is_sent_under_another_id(tmp_path: Path):
    """The worker was away for longer than the core keeps what is not read."""

    def script(submit: m.Submit):
        yield from say(WORDS, "cancelled" if submit.request_id == CORE_ID else "length")(submit)

    async with worker_beside(tmp_path, script) as (core, made, store):
        await keep(store)
        made.start("", ID)
        assert text_of(await ended(store)) == TEXT
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
    async with worker_beside(tmp_path, refuse("no executor can", "capacity_lost")) as (_, made, store):
        await keep(store)
        made.start("", ID)
        record = await ended(store)
    assert record.status == "failed"
    assert msgspec.json.decode(record.tail)["error"] == {"code": "server_error", "message": "no executor can"}


@pytest.mark.parametrize("what", [{"work": NEW_VERSION}, {"context": NEW_VERSION}], ids=["work", "answer"])
@in_event_loop
async def test_what_another_version_asked_for_fails_and_says_so(tmp_path: Path, what: dict[str, bytes]):
    async with worker_beside(tmp_path) as (core, made, store):
        await keep(store, **what)
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
    async with worker_beside(tmp_path, silence) as (core, _, store):
        with closing(StoreThread(tmp_path / "store")) as frontend:
            await keep(frontend)
            await until(lambda: core.submits)
            await frontend.run("", responses.cancel, "", ID, time.time())
            await until(lambda: core.cancels)
            assert (await stored(store)).status == "cancelled"


@in_event_loop
async def test_a_response_that_is_cancelled_while_it_begins_does_not_run(tmp_path: Path):
    has_begun, goes_on = asyncio.Event(), asyncio.Event()

    class SlowToTell(StoreThread):
        async def run(self, owner, function, *args, **kwargs):
            answer = await super().run(owner, function, *args, **kwargs)
            if function is responses.begin:
                has_begun.set()
                await goes_on.wait()
            return answer

    async with worker_beside(tmp_path, silence, store_thread=SlowToTell) as (core, made, store):
        await keep(store)
        made.start("", ID)
        await has_begun.wait()
        await made.cancel("", ID)
        assert (await stored(store)).status == "cancelled"
        goes_on.set()
        await until(lambda: made.is_idle)
        assert not core.submits


@in_event_loop
async def test_cancelled_while_the_core_is_asked_for_it(tmp_path: Path):
    """The core has the request, and says so a little later than the client cancels."""
    async with linked_core(tmp_path, silence) as (core, link):
        async with working(link, tmp_path) as (made, store):
            await keep(store)
            made.start("", ID)
            await until(lambda: core.submits)
        await until(lambda: core.detaches)
        core.answers_attaches = False
        async with working(link, tmp_path) as (made, store):
            await until(lambda: len(core.attaches) == 2)
            cancelling = asyncio.create_task(made.cancel("", ID))
            await asyncio.sleep(0)
            core.answers_attaches = True
            await cancelling
            assert (await stored(store)).status == "cancelled"
            assert core.cancels, "it is not computed any more"


@in_event_loop
async def test_a_stop_string_that_is_found_after_the_connection_broke_ends_it_in_the_core(tmp_path: Path):
    """The text is read a moment after the tokens have come. No pause is made before the core is told."""

    def script(submit: m.Submit):
        lost = delta(submit, [], "error", error="it broke", code="reader_too_slow")
        of_another = m.TokenDelta(request_id="another", index=0, token_ids=b"")  # so the fake core goes on with it
        yield outputs(delta(submit, WORDS[:5] * 20), lost, of_another)
        yield 3600.0

    async with worker_beside(tmp_path, script, tempo=replace(SOON, retry_s=3600.0)) as (core, made, store):
        await keep(store, stop=("three",))
        made.start("", ID)
        record = await ended(store)
        assert (record.status, text_of(record)) == ("completed", "one two ")
        await until(lambda: core.cancels)


@pytest.mark.parametrize("code", ["too_many_requests", "rate_limit_exceeded"])
@in_event_loop
async def test_an_owner_at_its_limit_keeps_no_other_waiting(tmp_path: Path, code: str):
    """All that may run at once is asked for by one owner, whom the core refuses."""
    async with worker_beside(tmp_path, tempo=replace(SOON, most=2)) as (core, made, store):

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
        assert text_of(await ended(store)) == TEXT
        core.script = say(WORDS)
        for other in others:
            assert (await ended(store, "busy", other)).status == "incomplete", "its turn comes"


@in_event_loop
async def test_the_work_of_an_owner_without_a_key_waits_until_it_has_one_again(tmp_path: Path):
    """A start with another file of keys ends nothing of anybody."""
    keys = Keys("ann", **CLIENT)
    async with worker_beside(tmp_path, say(WORDS), keys=keys) as (core, made, store):
        for owner in ("ann", "bob"):
            await keep(store, owner=owner)
            made.start(owner, ID)
        assert text_of(await ended(store, "bob")) == TEXT
        assert (await stored(store, "ann")).status == "queued"
        assert {submit.client for submit in core.submits} == {"bob"}
        keys.taken.clear()
        assert text_of(await ended(store, "ann")) == TEXT
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
    async with worker_beside(tmp_path, say(WORDS), keys=Keys("ann", **CLIENT)) as (core, made, store):
        await keep(store, owner="ann")
        made.start("ann", ID)
        await made.cancel("ann", ID)
        await until(lambda: made.is_idle)
    assert not core.submits


@in_event_loop
async def test_a_revoked_owner_s_responses_end_and_do_not_begin_anew(tmp_path: Path):
    """Those that run, and those that wait; the worker need not look at its keys for that."""
    async with worker_beside(tmp_path, silence, tempo=replace(SOON, most=1)) as (core, made, store):
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
async def test_a_successor_ends_what_a_worker_began_once(tmp_path: Path):
    async with linked_core(tmp_path, say(WORDS, pause_s=0.02)) as (core, link):
        async with working(link, tmp_path) as (made, store):
            await keep(store)
            made.start("", ID)
            await until(lambda: core.submits and len(core.stories[CORE_ID].told[0].token_ids) >= 3)
            made.stop()
            await until(lambda: made.is_idle)
            assert (await stored(store)).status == "in_progress"
        async with working(link, tmp_path) as (made, store):
            record = await ended(store)
            await until(lambda: made.is_idle)
    assert (record.status, text_of(record)) == ("incomplete", TEXT)
    assert len(core.submits) == 1
    assert not core.cancels
