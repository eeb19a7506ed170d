"""What frontends with open pages are told: everything once, then what changes, and nothing where nobody looks."""

import numpy as np
import pytest

from common import messages as m
from scheduler_svc.core.executor.block_manager import BlockManager
from scheduler_svc.core.observability.block_watch import BLOCKS_AT_ONCE
from scheduler_svc.core.scheduling.config import SchedulerConfig
from tests.support.chores import tick
from tests.support.hello import hello
from tests.support.service import Service

SEND = m.SendViews(interval_s=0.25, is_fresh=False)
SEND_ALL = m.SendViews(interval_s=0.25, is_fresh=True)


def views(service: Service, peer: bytes = b"web") -> list[m.View]:
    return [told for told in service.said.get(peer, []) if isinstance(told, m.View)]


def watch(service: Service, seconds: float = 0.5, peer: bytes = b"web", wish: m.SendViews = SEND) -> list[m.View]:
    """The Views of so much time, in which the frontend watches."""
    before = len(views(service, peer))
    service.say(wish, peer)
    service.wait(seconds)
    return views(service, peer)[before:]


def states(told: list[m.View], epoch: int, num_blocks: int) -> list[int]:
    """The map that these Views draw."""
    drawn = np.zeros(num_blocks, np.uint8)
    for changes in (changes for view in told for changes in view.blocks if changes.epoch == epoch):
        for values in (np.frombuffer(changes.found, np.int32), np.frombuffer(changes.changed, np.int32)):
            drawn[values // 8] = values % 8
    return drawn.tolist()


def blocks_of(blocks: BlockManager) -> list[int]:
    """What the blocks of a pool are now."""
    used = len(blocks.ref_counts)
    return blocks.states(range(used)).tolist() + [0] * (blocks.num_blocks - used)


def test_a_frontend_that_asks_is_told_everything_and_then_only_what_changes():
    service = Service()
    service.join("one")
    service.submit("a")
    first, *_ = watch(service, wish=SEND_ALL)
    assert (first.number, first.is_fresh) == (0, True)
    assert [executor.executor for executor in first.report.executors] == ["one"]
    assert [(w.request, w.tokens, w.output, w.reason) for w in first.waiting] == [("a", 3, 0, "turn")]
    assert [(event.kind, event.executor, event.epoch) for event in first.events] == [("joined", "one", 1)]
    assert first.running == ()
    service.turn(num_answers=1)
    (second,) = watch(service)
    assert (second.number, second.is_fresh, second.waiting) == (1, False, ())
    assert [(r.request, r.epoch) for r in second.running] == [("a", 1)]
    assert second.report.running == 1
    assert not second.events


def test_a_sequence_is_shown_with_the_time_since_which_it_waits_or_runs():
    service = Service(step_s=0.125)
    service.join("one")
    service.now = asked = 7.0
    service.submit("a", max_tokens=50)
    first, *_ = watch(service, 1.0, wish=SEND_ALL)
    assert [waiting.since for waiting in first.waiting] == [asked]
    admitted = service.now
    service.turn(num_answers=3)
    *_, last = watch(service)
    assert [running.since for running in last.running] == [admitted], "not since its first token"
    assert admitted > asked


def test_nothing_is_told_to_frontends_that_do_not_ask_nor_where_nothing_happens():
    service = Service()
    service.join("one")
    service.say(m.FrontendHello(pid=1), b"other")
    watch(service, wish=SEND_ALL)
    watch(service, 3.0)  # rates and their seconds have come to rest
    assert watch(service, 2.0) == []
    assert views(service, b"other") == []
    service.submit("a")
    assert len(watch(service)) == 1


def test_who_does_not_ask_again_is_forgotten_and_blocks_are_watched_no_more():
    service = Service()
    service.join("one")
    blocks = service.core.scheduler.executor(1).blocks
    assert blocks.touched is None
    watch(service, wish=SEND_ALL)
    assert blocks.touched == {}
    service.wait(m.WATCH_S + 1)
    assert blocks.touched is None
    before = len(views(service))
    service.submit("a")
    service.turn()
    service.wait(1.0)
    assert len(views(service)) == before


def test_views_keep_the_interval_that_was_asked_for():
    service = Service()
    service.join("one")
    watch(service, wish=SEND_ALL)
    slow = m.SendViews(interval_s=2.0, is_fresh=False)
    told = []
    for i in range(8):  # something happens in every half second
        service.submit(f"r{i}")
        told += watch(service, wish=slow)
    assert len(told) == 2
    assert all(view.report is not None for view in told)


def test_a_fresh_view_begins_all_maps_anew_and_frontends_in_step_miss_nothing():
    service = Service()
    service.join("one")
    service.submit("a", max_tokens=8)
    service.turn(num_answers=4)
    one = watch(service, wish=SEND_ALL, peer=b"one")
    service.turn(num_answers=2)
    one += watch(service, peer=b"one")
    service.say(SEND_ALL, b"two")
    one += watch(service, peer=b"one")
    two = views(service, b"two")
    assert [view.is_fresh for view in two] == [True]
    num_blocks = service.core.scheduler.executor(1).blocks.num_blocks
    assert states(one, 1, num_blocks) == states(two, 1, num_blocks)
    assert sum(state > 0 for state in states(two, 1, num_blocks)) == 2
    assert [view.number for view in one] == list(range(len(one)))


def test_fresh_views_are_no_more_frequent_than_others():
    service = Service()
    service.join("one")
    for _ in range(40):
        service.say(SEND_ALL)
        service.now += 0.005
        service.do(tick(service.core, service.now))
    assert len(views(service)) == 1


def test_a_watch_that_ran_out_leaves_a_gap():
    service = Service()
    service.join("one")
    (first,) = watch(service, wish=SEND_ALL)
    service.wait(m.WATCH_S + 1)
    service.submit("a")
    assert watch(service)[0].number > first.number + 1


def test_all_pools_share_what_one_view_tells():
    service = Service()
    for name in ("one", "two", "three"):
        service.join(name, num_blocks=BLOCKS_AT_ONCE)
    pools = [executor.blocks for executor in service.core.scheduler.executors]
    for pool in pools:
        pool.allocate(BLOCKS_AT_ONCE)
    told = watch(service, 0.3, wish=SEND_ALL)
    for _ in range(4):
        told += watch(service, 0.3)
    sizes = [sum(len(changes.changed) + len(changes.found) for changes in view.blocks) // 4 for view in told]
    assert max(sizes) == BLOCKS_AT_ONCE
    for epoch in (1, 2, 3):
        assert states(told, epoch, BLOCKS_AT_ONCE) == [2] * BLOCKS_AT_ONCE


def test_a_block_that_changes_again_and_again_takes_no_more_room():
    service = Service()
    service.join("one")
    watch(service, wish=SEND_ALL)
    blocks = service.core.scheduler.executor(1).blocks
    for i in range(200):
        service.submit(f"r{i}")
        service.turn()
    assert len(blocks.touched) <= blocks.num_blocks


def test_a_map_goes_on_in_the_next_epoch_of_its_pool():
    service = Service()
    pool = m.Pool(pool="p" * 32, lease=1, layout="x", epoch=0)
    service.join("one", pool=pool)
    watch(service, wish=SEND_ALL)
    service.submit("a", max_tokens=20)
    service.turn(num_answers=10)
    blocks = service.core.scheduler.executor(1).blocks
    kept = service.executors["one"]
    service.lose("one")
    watch(service)
    assert blocks.touched is None
    service.join("one", pool=m.Pool(pool="p" * 32, lease=2, layout="x", epoch=1))
    service.executors["one"].slots = kept.slots
    service.turn(num_answers=2)
    told = watch(service)
    assert service.core.scheduler.executor(2).blocks is blocks
    assert [event.kind for view in told for event in view.events] == ["joined"]
    assert states(told, 2, blocks.num_blocks) == blocks_of(blocks)
    assert 2 in states(told, 2, blocks.num_blocks)


def test_a_large_pool_is_walked_over_in_slices():
    service = Service()
    num_blocks = 3 * BLOCKS_AT_ONCE
    service.join("one", num_blocks=num_blocks)
    blocks = service.core.scheduler.executor(1).blocks
    taken = blocks.allocate(num_blocks)
    told = watch(service, wish=SEND_ALL)
    assert len(told[0].blocks[0].found) == 4 * BLOCKS_AT_ONCE
    for _ in range(4):
        told += watch(service)
    assert states(told, 1, num_blocks) == [2] * num_blocks
    assert len(taken) == num_blocks


@pytest.mark.parametrize("cause", ["lost", "left"])
def test_events_say_what_the_log_says(cause):
    service = Service()
    service.join("one")
    service.submit("a", max_tokens=20)
    service.turn(num_answers=3)
    watch(service, wish=SEND_ALL)
    if cause == "lost":
        service.lose("one")
    else:
        service.say(m.DrainExecutor(query_id=1, executor="one"))
        service.turn()
    events = [event for view in watch(service) for event in view.events]
    expected = {"lost": ["lost"], "left": ["draining", "left"]}[cause]
    assert [event.kind for event in events] == expected
    last = events[-1]
    assert (last.executor, last.epoch, last.sequences) == ("one", 1, 1)
    assert last.cause == {"lost": "disconnected", "left": "drained"}[cause]
    assert last.reason
    text = service.say(m.StatusQuery(query_id=1)).report.events[-1].reason
    assert text == {"lost": "connection broke", "left": "drained"}[cause], "and not of the connection of one that left"


def test_an_executor_that_is_rejected_again_and_again_is_one_event_a_minute():
    service = Service()
    service.join("one")
    for _ in range(100):
        service.now += 1.0
        service.do(service.core.from_executor(b"odd", hello("odd", vocab_size=3), service.now))
        service.do(service.core.from_executor(b"one", m.ExecutorHeartbeat(epoch=1), service.now))
    (view, *_) = watch(service, wish=SEND_ALL)
    assert [event.kind for event in view.events] == ["joined", "rejected", "rejected"]
    assert view.events[-1].reason


def test_preemptions_of_a_second_are_one_event():
    service = Service(scheduler=SchedulerConfig(look_ahead=False))
    service.join("one", num_blocks=16, max_model_len=60)
    for i in range(8):
        service.submit(f"r{i}", max_tokens=50)
    watch(service, wish=SEND_ALL)
    service.turn(num_answers=60)
    events = [event for view in watch(service) for event in view.events]
    assert [event.kind for event in events] == ["preempted"]
    assert events[0].sequences == service.core.scheduler.stats.preemptions > 0
    assert (events[0].executor, events[0].epoch) == ("one", 1)


def test_the_shown_part_of_a_long_queue_is_its_head():
    service = Service()
    for i in range(m.MAX_SHOWN + 5):
        service.submit(f"r{i}", client=f"{i}", client_name=f"c{i}")
    (view,) = watch(service, wish=SEND_ALL)
    assert [waiting.request for waiting in view.waiting] == [f"r{i}" for i in range(m.MAX_SHOWN)]
    assert view.waiting[3].client == "c3"
    assert {waiting.reason for waiting in view.waiting} == {"no_executor"}
    assert view.report.waiting == m.MAX_SHOWN + 5
    assert view.report.waits_for == "no_executor"


def test_a_frontend_that_is_gone_is_told_nothing():
    service = Service()
    service.join("one")
    service.say(SEND_ALL)
    service.wait(0.5)
    blocks, before = service.core.scheduler.executor(1).blocks, len(views(service))
    assert blocks.touched is not None
    service.do(service.core.frontend_gone(b"web", service.now))
    service.wait(0.5)
    assert len(views(service)) == before
    assert blocks.touched is None


def test_who_has_a_block_can_be_asked():
    service = Service()
    service.join("one")
    for name in ("a", "b"):  # three blocks, of which the second request shares what is full
        service.submit(name, prompt=range(5, 17), max_tokens=9, client="1", client_name="c")
        service.turn(num_answers=2)
    first = service.say(m.BlockQuery(query_id=4, epoch=1, block=0))
    assert first.query_id == 4
    assert [(holder.request, holder.client, holder.blocks[0]) for holder in first.holders] == [
        ("a", "c", 0),
        ("b", "c", 0),
    ]
    for epoch, block in ((1, 63), (2, 0), (1, 2**30)):
        assert service.say(m.BlockQuery(query_id=4, epoch=epoch, block=block)).holders == ()
