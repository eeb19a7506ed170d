"""A cache that is larger than what is kept for a subscriber is told anew at the pace of those that read."""

from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from scheduler_svc.server.kv_events import TELL_ANEW_EVERY_S, TellingLimits
from tests.support.kv_turning import SlowRouter, Turning

LIMIT = 2**19
READ_BYTES = 2**15  # a turn: a fifth of a part
BLOCK_SIZE = 64
NUM_BLOCKS = 5 * LIMIT // (5 * BLOCK_SIZE)  # a token of five bytes: five times the limit
FIRST = 2**16  # keys are tokens, too


LIMITS = TellingLimits(LIMIT, LIMIT // 16)


@pytest.fixture
def limits():
    return LIMITS


@pytest.fixture
def turning(limits):
    """A twentieth of a second for a turn, and one that holds a large cache, of which all was told to no one."""
    with Turning(turn_s=0.05, limits=limits) as turning:
        turning.store(FIRST, NUM_BLOCKS, BLOCK_SIZE)
        turning.turn()
        assert sum(len(turning.publisher.log[i]) for i in range(turning.publisher.log.next)) > 5 * LIMIT
        yield turning


def knows_all(turning, router):
    return not turning.events.has_more and len(router.known.blocks) == turning.events.num_blocks


def turns_until(turning, condition, read):
    """Turn, and let routers read as much as they do in a turn; returns how many turns it took."""
    for turns in range(2000):
        turning.turn()
        read()
        if condition():
            return turns
    raise AssertionError("it did not happen")


def test_a_reader_slower_than_the_core_is_told_a_large_cache_once(turning):
    with closing(SlowRouter(turning)) as router:
        turns = turns_until(turning, lambda: knows_all(turning, router), lambda: router.read(READ_BYTES))
        assert turns > 5 * LIMIT // READ_BYTES
        assert router.known.num_clears == 1
        assert not turning.publisher.behind
        number = turning.publisher.log.next
        turning.now += 2 * TELL_ANEW_EVERY_S
        turning.turn()
        assert turning.publisher.log.next == number, "no more is told"


def test_the_loop_rests_while_a_reader_is_waited_for_and_news_is_told(turning):
    with closing(SlowRouter(turning)) as router:
        turns_until(turning, lambda: router.place.num_unsent_bytes > LIMIT // 16, lambda: None)
        turning.publisher.turn()
        assert turning.events.has_untold
        assert not turning.publisher.has_more
        number = turning.publisher.log.next
        turning.store(1, 1)
        assert turning.publisher.has_more
        turning.publisher.turn()
        assert turning.publisher.log.next == number + 1
        assert not turning.publisher.has_more
        turns_until(turning, lambda: knows_all(turning, router), lambda: router.read(READ_BYTES))


def test_a_subscriber_that_does_not_read_holds_nobody_up_for_long(turning):
    with closing(SlowRouter(turning)) as stalled:
        turns_until(turning, lambda: stalled.place.num_unsent_bytes > LIMIT // 16, lambda: None)
        with closing(SlowRouter(turning)) as router:
            turns = turns_until(turning, lambda: knows_all(turning, router), lambda: router.read(READ_BYTES))
            assert turning.turn_s * turns < 5 * LIMIT / READ_BYTES * turning.turn_s + 2 * TELL_ANEW_EVERY_S
            assert router.known.num_clears == 1
            assert stalled.place.num_unsent_bytes < LIMIT // 2
            before = router.known.num_clears
            both = (stalled, router)
            turns_until(turning, lambda: knows_all(turning, stalled), lambda: [each.read(2**16) for each in both])
            assert router.known.num_clears == before + 1, "it is told anew once it reads, with all others"


@pytest.mark.parametrize("limits", [replace(LIMITS, patience_s=3.0)])
def test_who_reads_too_slowly_for_long_is_left_behind(turning):
    """Fast enough for each part, but not for all of them."""
    with closing(SlowRouter(turning)) as router:
        turns_until(turning, lambda: turning.events.has_untold, lambda: None)
        turns = turns_until(turning, lambda: bool(turning.publisher.behind), lambda: router.read(READ_BYTES // 2))
        assert 2.9 <= turns * turning.turn_s < 3.0 + LIMITS.part_patience_s
        turns_until(turning, lambda: not turning.events.has_more, lambda: None)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [replace(LIMITS, patience_s=1000.0, part_patience_s=1000.0)])
def test_one_telling_ends_before_the_next_begins(turning):
    """Newcomers that come one after the other keep nobody from hearing the end."""
    with ExitStack() as stack:
        routers = [stack.enter_context(closing(SlowRouter(turning)))]
        first = routers[0]
        turns_until(turning, lambda: turning.events.has_untold, lambda: None)
        while first.most_known < turning.events.num_blocks:
            assert first.known.num_clears <= 1
            if len(routers) < 4:
                routers.append(stack.enter_context(closing(SlowRouter(turning))))
            turning.now += TELL_ANEW_EVERY_S
            turning.turn()
            for router in routers:
                router.read(8 * READ_BYTES)
        assert len(routers) == 4
        turns_until(
            turning,
            lambda: all(knows_all(turning, router) for router in routers),
            lambda: [router.read(8 * READ_BYTES) for router in routers],
        )
        assert first.known.num_clears == 2, "one for all newcomers"
