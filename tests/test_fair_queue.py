"""Owners take turns for threads that they share, and nobody is refused for what others have put."""

import gc
import itertools
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.fair_queue import FairQueue, QueueFull

OWNERS = "abcd"


@given(st.lists(st.sampled_from(OWNERS), max_size=40))
def test_each_owner_waits_for_one_piece_of_each_other_between_two_of_its_own(owners):
    queue, done = FairQueue(), []
    for number, owner in enumerate(owners):
        queue.put(owner, lambda owner=owner, number=number: done.append((owner, number)))
    for _ in owners:
        queue.do_next()
    assert queue.num_pieces == 0
    for owner in OWNERS:
        own = [place for place, (whose, _) in enumerate(done) if whose == owner]
        assert [done[place][1] for place in own] == [i for i, whose in enumerate(owners) if whose == owner]
        assert all(later - place <= len(OWNERS) for place, later in itertools.pairwise(own))
        assert not own or own[0] < len(OWNERS)


@given(st.lists(st.sampled_from(OWNERS) | st.none(), max_size=60), st.integers(1, 12))
def test_an_owner_has_its_share_and_all_together_have_few_more_than_one(actions, most):
    """None does a piece."""
    queue, counts, turns = FairQueue(most), dict.fromkeys(OWNERS, 0), []
    for owner in actions:
        if owner is None:
            if any(counts.values()):
                queue.do_next()
                counts[turns.pop()] -= 1
            continue
        num_owners = sum(count > 0 or whose == owner for whose, count in counts.items())
        if counts[owner] < max(most // num_owners, 1):
            queue.put(owner, lambda owner=owner: turns.append(owner))
            counts[owner] += 1
        else:
            with pytest.raises(QueueFull, match=f"{counts[owner]} calls of this owner wait"):
                queue.put(owner, str)
        assert queue.num_pieces == sum(counts.values())
        assert sum(counts.values()) <= sum(max(most // number, 1) for number in range(1, len(OWNERS) + 1))


def test_a_piece_that_was_cancelled_takes_its_turn_and_no_time():
    queue = FairQueue(1)
    future = queue.put("a", lambda: pytest.fail("it was cancelled"))
    assert future.cancel()
    assert queue.num_pieces == 1
    queue.do_next()
    assert queue.num_pieces == 0


def test_a_place_is_free_before_its_caller_hears_of_the_result():
    queue, places = FairQueue(1), []
    future = queue.put("a", threading.get_ident)
    future.add_done_callback(lambda _: places.append(queue.num_pieces))
    queue.do_next()
    assert places == [0]
    assert future.result() == threading.get_ident()


def test_an_error_holds_nothing_of_what_its_work_was_given():
    """A cycle would hold a body of megabytes until Python's collector comes."""

    class Body:
        pass

    def work(body):
        raise ValueError(type(body))

    body = Body()
    seen = weakref.ref(body)
    queue = FairQueue()
    future = queue.put("a", lambda body=body: work(body))
    del body
    gc.disable()
    try:
        queue.do_next()
        with pytest.raises(ValueError, match="Body"):
            future.result()
        del future
        assert seen() is None
    finally:
        gc.enable()
