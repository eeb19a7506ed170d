"""Pages share what a frontend is told: each gets all once and then what changes, and no more than it may see."""

import asyncio
import base64
import contextlib
import json
import zlib
from contextlib import ExitStack, asynccontextmanager

import msgspec
import pytest

from common import messages as m
from common.clocks import Clocks
from scheduler_svc.frontend.live.hub import MAX_UNREAD, LiveHub
from scheduler_svc.frontend.live.page_events import Reader, core_names, shown_name
from tests.frontend.links import in_event_loop, until
from tests.support.instructions import instructions_of
from tests.support.link import Link
from tests.support.status_reports import executor_status
from tests.support.views import EPOCH, NUM_BLOCKS, REPORT, blocks, change, event, fresh, running, waiting

ALL = Reader("", sees_all=True)
WALL_S = 1_795_000_000.0  # Unix time at the core's second 100


@pytest.fixture
def link() -> Link:
    return Link()


def clocks(wall_s: float = WALL_S) -> Clocks:
    return Clocks(wall_s, 0.0, 1000.0)


@pytest.fixture
def hub(link) -> LiveHub:
    return LiveHub(link, ask_interval_s=0.01, linger_s=0.0, clocks=clocks)


@asynccontextmanager
async def opened(hub: LiveHub, reader: Reader = ALL):
    with hub.page(reader) as page:
        await asyncio.sleep(0)  # it asks
        yield page


async def told(page) -> list[tuple[str, object]]:
    """Events that wait for a page."""
    events = []
    for part in (await asyncio.wait_for(page.next(), 60)).decode().split("\n\n")[:-1]:
        name, data = part.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def _beginning(page) -> None:
    """Have the page's beginning written; nothing is waited for."""
    with contextlib.suppress(StopIteration):
        page.next().send(None)


def states(data) -> list[int]:
    return [byte % 8 for byte in zlib.decompress(base64.b64decode(data["states"]))]


def ages(data) -> list[int]:
    return [byte // 8 for byte in zlib.decompress(base64.b64decode(data["states"]))]


@in_event_loop
async def test_without_pages_the_core_is_asked_for_nothing(hub, link):
    link.on_view(fresh())  # a late one
    await asyncio.sleep(0.03)
    assert link.told == []
    async with opened(hub):
        assert link.told == [m.SendViews(interval_s=0.25, is_fresh=True)]
    asked = len(link.told)
    await asyncio.sleep(0.03)
    assert len(link.told) == asked


@in_event_loop
async def test_a_page_gets_everything_and_then_what_changes(hub, link):
    async with opened(hub) as page:
        link.on_view(
            fresh(
                waiting=(waiting("a-0"), waiting("b-3", index=2)),
                running=(running("c-0"),),
                events=(event(0), event(1, kind="lost", cause="hung", reason="why", sequences=2)),
                history=(m.HistorySample(99.0, 1.0, 2.0, -1.0, 3, 4),),
                blocks=(blocks({1: 2}, {3: 1}),),
            )
        )
        everything = await told(page)
        assert [name for name, _ in everything] == ["status", "waiting", "running", "events", "history", "map"]
        by_name = dict(everything)
        assert by_name["status"]["executors"][0]["epoch"] == EPOCH
        since = {"priority": 0, "since": WALL_S - 10, "reason": "memory"}
        assert by_name["waiting"] == [
            {"request": "a", "index": 0, "client": "", "tokens": 12, "output": 0, **since},
            {"request": "b-3", "index": 2, "client": "", "tokens": 12, "output": 0, **since},
        ]
        assert by_name["running"] == [{"request": "c", "index": 0, "client": "", "epoch": EPOCH, "since": WALL_S - 5}]
        joined = {"number": 0, "at": WALL_S - 20, "kind": "joined", "executor": "one", "epoch": EPOCH}
        lost = {"kind": "lost", "number": 1, "cause": "hung", "reason": "why", "sequences": 2}
        assert by_name["events"] == [joined, joined | lost]
        assert by_name["history"] == [[WALL_S - 1, 1.0, 2.0, -1.0, 3, 4]]
        assert states(by_name["map"]) == [0, 2, 0, 1, 0, 0, 0, 0]
        assert ages(by_name["map"]) == [31, 0, 31, 31, 31, 31, 31, 31]
        assert by_name["map"]["num_blocks"] == NUM_BLOCKS
        link.on_view(change(1, waiting=()))
        link.on_view(change(2, events=(event(2, kind="draining"),), blocks=(blocks({1: 1}),)))
        (first, nothing), (second, events), (third, changes) = await told(page)
        assert (first, nothing, second, third) == ("waiting", [], "events", "blocks")
        assert [told["number"] for told in events] == [2]
        assert changes == {"epoch": EPOCH, "changed": base64.b64encode(b"\x09\0\0\0").decode(), "found": ""}


@in_event_loop
async def test_pages_that_come_later_get_what_is_known_by_then(hub, link):
    async with opened(hub) as one:
        link.on_view(fresh(events=(event(0),)))
        await told(one)
        link.on_view(change(1, events=(event(1),), blocks=(blocks({2: 3}),)))
        await told(one)
        num_asked = len(link.told)
        async with opened(hub) as two:
            by_name = dict(await told(two))
            assert [told["number"] for told in by_name["events"]] == [0, 1]
            assert states(by_name["map"])[2] == 3
            assert not any(asked.is_fresh for asked in link.told[num_asked:])


@in_event_loop
async def test_a_view_that_was_missed_is_noticed_and_everything_is_told_anew(hub, link):
    async with opened(hub) as page:
        link.on_view(change(5))  # from before it asked
        link.on_view(fresh(6))
        await told(page)
        link.on_view(change(8, waiting=(waiting("x-0"),)))
        assert link.told[-1].is_fresh
        link.on_view(change(9))  # on its way already
        link.on_view(fresh(10, waiting=(waiting("y-0"),)))
        by_name = dict(await told(page))
        assert [told["request"] for told in by_name["waiting"]] == ["y"]
        assert states(by_name["map"]) == [0] * NUM_BLOCKS


@in_event_loop
async def test_a_fresh_view_that_another_frontend_asked_for_begins_no_map_anew(hub, link):
    async with opened(hub) as page:
        link.on_view(fresh(blocks=(blocks({1: 2}),), events=(event(0),)))
        await told(page)
        link.on_view(fresh(1, blocks=(blocks({}, {4: 1}),), events=(event(0), event(1))))
        await told(page)
        async with opened(hub) as later:
            by_name = dict(await told(later))
            assert states(by_name["map"]) == [0, 2, 0, 0, 1, 0, 0, 0]
            assert [told["number"] for told in by_name["events"]] == [0, 1]


@in_event_loop
async def test_a_page_that_does_not_read_is_told_everything_later_and_takes_no_memory(hub, link):
    async with opened(hub) as page:
        link.on_view(fresh())
        await told(page)
        for number in range(1, 5 * MAX_UNREAD):
            link.on_view(change(number, waiting=(waiting(f"r{number}-0"),)))
        assert (await told(page))[0][0] == "status"
        link.on_view(change(5 * MAX_UNREAD, waiting=()))
        assert await told(page) == [("waiting", [])]


@in_event_loop
async def test_readers_see_their_own_requests_only_unless_they_may_see_all(hub, link):
    alice, root = Reader("alice", sees_all=False), Reader("root", sees_all=True)
    async with opened(hub, alice) as hers, opened(hub, root) as roots, opened(hub, alice) as hers_too:
        view = {
            "waiting": (waiting("alice/a-0", "alice"), waiting("bob/b-0", "bob"), waiting("root/c-0", "root")),
            "running": (running("bob/d-0", "bob"), running("alice/e-0", "alice")),
            "events": (event(0, kind="lost", reason="step 3 failed: of bob's"),),
        }
        link.on_view(fresh(**view))
        link.on_view(change(1, **view | {"events": (event(1, kind="lost", reason="again"),)}))
        for page in (hers, hers_too):
            seen = dict(await told(page))
            assert [told["request"] for told in seen["waiting"]] == ["a"]
            assert [told["request"] for told in seen["running"]] == ["e"]
            assert "reason" not in seen["events"][0]
            assert b"bob" not in json.dumps(seen).encode()
        seen = dict(await told(roots))
        assert [told["request"] for told in seen["waiting"]] == ["alice/a", "bob/b", "c"]
        assert seen["events"][0]["reason"] == "step 3 failed: of bob's"


@in_event_loop
async def test_the_more_pages_the_less_often_they_are_told(hub, link):
    with ExitStack() as pages:
        for _ in range(100):
            pages.enter_context(hub.page(ALL))
        await until(lambda: link.told and link.told[-1].interval_s == pytest.approx(1.0))


@in_event_loop
async def test_a_core_that_is_away_is_told_once_and_comes_back_with_everything(hub, link):
    async with opened(hub) as page:
        link.on_view(fresh())
        await told(page)
        link.is_up = False
        assert await told(page) == [("gone", {})]
        await asyncio.sleep(0.03)
        link.told.clear()
        link.is_up = True
        await until(lambda: link.told)
        assert link.told[-1].is_fresh
        link.on_view(fresh())
        assert (await told(page))[0][0] == "status"


@pytest.mark.parametrize("nonsense", [b"abc", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff"])
@in_event_loop
async def test_blocks_that_make_no_sense_harm_nothing(hub, link, nonsense):
    async with opened(hub) as page:
        link.on_view(fresh())
        await told(page)
        link.on_view(change(1, blocks=(m.BlockChanges(epoch=EPOCH, changed=nonsense),)))
        link.on_view(change(2, blocks=(m.BlockChanges(epoch=99, changed=b"abcd"),)))
        await asyncio.sleep(0.03)
        link.on_view(fresh(3))
        async with opened(hub) as later:
            assert states(dict(await told(later))["map"]) == [0] * NUM_BLOCKS


@in_event_loop
async def test_a_page_that_is_opened_while_the_core_is_away_is_told_so(hub, link):
    link.is_up = False
    async with opened(hub) as page:
        assert await told(page) == [("gone", {})]
        link.is_up = True
        link.on_view(fresh())
        assert (await told(page))[0][0] == "status"


@in_event_loop
async def test_pages_of_equal_readers_cost_one_beginning(hub, link):
    report = msgspec.structs.replace(REPORT, executors=[executor_status(epoch=e, num_blocks=8) for e in range(50)])
    alice = Reader("alice", sees_all=False)
    async with opened(hub) as one, opened(hub) as two, opened(hub, alice) as hers, opened(hub, alice) as hers_too:
        link.on_view(fresh(report=report))
        costs = [instructions_of(lambda page=page: _beginning(page)) for page in (one, two, hers, hers_too)]
    assert costs[0] > 50 * 20, "it is written"
    assert max(costs[1:]) < costs[0] / 3, "and once: the maps for all, the rest for readers of equal rights"
    assert abs(costs[1] - costs[3]) < 20


@in_event_loop
async def test_after_the_last_page_what_is_known_is_kept_for_a_moment(link):
    hub = LiveHub(link, ask_interval_s=0.01, linger_s=60.0, clocks=clocks)
    async with opened(hub) as page:
        link.on_view(fresh())
        assert (await told(page))[0][0] == "status"
    for _ in range(4):
        await asyncio.sleep(0.03)
        async with opened(hub) as page:
            assert (await told(page))[0][0] == "status"
    assert sum(asked.is_fresh for asked in link.told) == 1


@in_event_loop
async def test_a_fresh_view_after_one_that_was_missed_begins_everything_anew(hub, link):
    async with opened(hub) as page:
        link.on_view(fresh(blocks=(blocks({1: 2}),), events=(event(40),)))
        await told(page)
        link.on_view(fresh(2, events=(event(0), event(1))))  # another life of the core, which another frontend asked
        by_name = dict(await told(page))
        assert [told["number"] for told in by_name["events"]] == [0, 1]
        assert states(by_name["map"]) == [0] * NUM_BLOCKS


@in_event_loop
async def test_a_clock_that_was_set_is_noticed(link):
    set_s = 0.0
    async with opened(LiveHub(link, clocks=lambda: clocks(WALL_S + set_s))) as page:
        link.on_view(fresh())
        await told(page)
        set_s = 100.0
        link.on_view(change(1, at=100.2))
        assert link.told[-1].is_fresh


@in_event_loop
async def test_pages_end_when_the_frontend_does(hub, link):
    async with opened(hub) as page:
        hub.stop()
        assert await told(page) == []
        assert page.has_ended
    async with opened(hub) as page:
        assert page.has_ended


@in_event_loop
async def test_an_executor_that_left_takes_its_map_along(hub, link):
    async with opened(hub) as page:
        link.on_view(fresh(blocks=(blocks({1: 2}),)))
        await told(page)
        link.on_view(change(1, report=msgspec.structs.replace(REPORT, executors=[])))
        await told(page)
        async with opened(hub) as later:
            assert "map" not in dict(await told(later))


def test_names_of_requests():
    assert shown_name("a-0", "") == "a"
    assert shown_name("a-3", "") == "a-3"
    assert shown_name("alice/a-0", "alice") == "a"
    assert shown_name("alice/a-0", "root") == "alice/a"
    assert core_names("a", "", sees_all=True) == ["a-0", "a"]
    assert core_names("a", "alice", sees_all=False) == ["alice/a-0", "alice/a"]
    assert core_names("bob/a", "root", sees_all=True) == ["root/bob/a-0", "root/bob/a", "bob/a-0", "bob/a"]
    for reader, request in (("", "x-0"), ("alice", "alice/x-2"), ("root", "bob/x-0")):
        assert request in core_names(shown_name(request, reader), reader, sees_all=True)
