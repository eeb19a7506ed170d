"""Executors whose pools differ: defaults fit all of them, and no request waits for ever beside an idle one."""

import pytest

from common.errors import RequestRejected
from scheduler_svc.core.executor.capacity import DEFAULT_TOKENS, POOL_GRACE_S, Capacity
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import Earlier, State
from tests.support.chores import done
from tests.support.scheduling import Scheduling, limits
from tests.support.submits import submit

BLOCK = 4


def pool(num_blocks):
    return limits(num_blocks=num_blocks, block_size=BLOCK, max_model_len=num_blocks * BLOCK)


def chat(run, name, prompt=(1, 2, 3), now=0.0):
    """A request with a default `max_tokens`: what a frontend sends, as much as the largest executor holds."""
    most = run.scheduler.largest(now) - len(prompt)
    return run.add(name, list(prompt), max_tokens=most, may_shorten=True, stop_token_ids=(0,), now=now)[0]


def test_default_chats_run_on_both_of_two_pools_that_differ_by_a_block_and_survive_the_larger():
    run = Scheduling(pool(80), pool(79))
    chats = [chat(run, str(i), prompt=(i + 1, 5, 6)) for i in range(8)]
    assert {chat.max_length for chat in chats} == {79 * BLOCK}
    for _ in range(4):
        run.step()
    assert all(executor.num_running > 0 for executor in run.scheduler.executors)
    run.lose(1)
    for _ in range(4):
        run.step()
    assert run.scheduler.executor(2).num_running > 1
    run.finish()


@pytest.mark.parametrize(
    ("pools", "num_prompt", "expected"),
    [
        ((2000, 1999), 100, 1999),  # both hold the prompt and enough
        ((2000, 100), 100, 2000),  # the small one would leave nothing worth having
        ((2000, 1030, 500), 10, 1030),  # 4,096 tokens and the prompt fit 1,030 blocks, and not 500
        ((20, 12, 5), 3, 12),  # where no pool is large: half of what the largest leaves
        ((20, 19), 78, 20),  # a prompt that only the largest holds
    ],
)
def test_a_default_fits_each_pool_that_holds_the_prompt_and_enough(pools, num_prompt, expected):
    run = Scheduling(*(pool(size) for size in pools))
    assert DEFAULT_TOKENS == 4096
    assert chat(run, "a", prompt=[7] * num_prompt).max_length == expected * BLOCK


def test_a_default_that_is_smaller_stays():
    run = Scheduling(pool(200), pool(199))
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=5, may_shorten=True)
    assert sequence.params.max_tokens == 5


def test_an_explicit_max_tokens_is_accepted_if_a_pool_fits_it_that_is_there_or_left_a_moment_ago():
    run = Scheduling(pool(200), pool(100))
    run.add("first", [1], max_tokens=600)
    run.scheduler.remove_executor(1, 10.0)
    run.add("again", [1], max_tokens=600, now=9.0 + POOL_GRACE_S)
    with pytest.raises(RequestRejected, match="the limit is 400"):
        run.add("late", [1], max_tokens=600, now=11.0 + POOL_GRACE_S)
    run.scheduler.remove_executor(2, 500.0)
    run.add("nobody is there", [1], max_tokens=399, now=501.0 + POOL_GRACE_S)
    with pytest.raises(RequestRejected, match="the limit is 400"):
        run.add("forgotten", [1], max_tokens=600, now=501.0 + POOL_GRACE_S)


def test_one_that_comes_back_with_less_counts_with_that():
    run = Scheduling(pool(100))
    run.join(pool(200), name="large")
    run.scheduler.remove_executor(2, 10.0)
    assert run.scheduler.largest(11.0) == 800
    run.join(pool(150), name="large", now=12.0)
    assert run.scheduler.largest(13.0) == 600


def test_a_default_that_was_accepted_before_any_executor_was_seen_is_shortened_and_not_refused():
    scheduler = Scheduler()
    (default,) = scheduler.add(submit("a", [1, 2, 3], max_tokens=600, may_shorten=True))
    (explicit,) = scheduler.add(submit("b", [1, 2, 3], max_tokens=600, may_shorten=False))
    (too_long,) = scheduler.add(submit("c", [1] * 400, max_tokens=200, may_shorten=True))
    scheduler.add_executor(Membership(1, "", "", pool(100)))
    ends = done(scheduler.expire(0.0))
    assert [(end.sequence, end.code) for end in ends] == [
        (explicit, "context_length_exceeded"),
        (too_long, "context_length_exceeded"),
    ]
    assert default.max_length == 400
    assert scheduler.plan(1) is not None


def test_what_fits_an_executor_that_came_and_went_in_one_turn_waits_for_it():
    scheduler = Scheduler()
    (sequence,) = scheduler.add(submit("a", [1, 2, 3], max_tokens=150, may_shorten=False))
    for epoch, name, num_blocks in ((1, "small", 20), (2, "large", 40)):
        scheduler.add_executor(Membership(epoch, name, "", pool(num_blocks)), 1.0)
    scheduler.remove_executor(2, 1.0)
    assert not done(scheduler.expire(1.0))
    assert not done(scheduler.expire(0.9 + POOL_GRACE_S))
    assert sequence.state is State.WAITING
    (end,) = done(scheduler.expire(1.0 + POOL_GRACE_S))
    assert end.code == "capacity_lost"


def test_what_waited_for_an_executor_that_came_and_went_in_one_turn_waits_anew():
    run = Scheduling(pool(40), pool(20))
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=150)
    run.scheduler.remove_executor(1, 1.0)
    assert not done(run.scheduler.expire(1.0))
    back_at = 1.0 + POOL_GRACE_S  # a turn that comes late hears of both at once
    run.scheduler.add_executor(Membership(3, "large", "", pool(40)), back_at)
    run.scheduler.remove_executor(3, back_at)
    assert not done(run.scheduler.expire(back_at))
    (end,) = done(run.scheduler.expire(back_at + POOL_GRACE_S))
    assert (end.sequence, end.code) == (sequence, "capacity_lost")


def test_a_default_that_no_executor_can_take_for_another_reason_ends():
    """A token that is not in the vocabulary becomes none by fewer of them."""
    scheduler = Scheduler()
    scheduler.restore(submit("a", [1, pool(100).vocab_size], max_tokens=20, may_shorten=True), 0, [Earlier()], None)
    scheduler.remember({"gone": Capacity(("generate",), 400, pool(100).vocab_size + 1)})
    scheduler.add_executor(Membership(1, "", "", pool(100)))
    assert done(scheduler.expire(0.0)) == []
    (end,) = done(scheduler.expire(POOL_GRACE_S))
    assert end.code == "capacity_lost"


def test_time_in_which_no_executor_is_there_is_not_counted():
    run = Scheduling(pool(200), pool(100))
    run.scheduler.remove_executor(1, 10.0)
    run.scheduler.remove_executor(2, 20.0)
    run.join(pool(100), now=1020.0)
    run.add("again", [1], max_tokens=600, now=1009.0 + POOL_GRACE_S)
    with pytest.raises(RequestRejected, match="the limit is 400"):
        run.add("late", [1], max_tokens=600, now=1011.0 + POOL_GRACE_S)


def test_what_needs_a_pool_that_is_gone_ends_with_an_error_or_is_shortened_beside_an_idle_executor():
    run = Scheduling(pool(200))
    (explicit,) = run.add("explicit", [1, 2, 3], max_tokens=600)
    default = chat(run, "default", now=0.0)
    for _ in range(6):
        run.step()
    run.join(pool(100))
    done(run.scheduler.expire(5.0))
    run.lose(1)
    while run.step():
        pass
    assert (explicit.state, default.state) == (State.WAITING, State.WAITING)
    run.end(done(run.scheduler.expire(4.0 + POOL_GRACE_S)))
    assert not run.ends, "it may come back"
    run.end(done(run.scheduler.expire(5.0 + POOL_GRACE_S)))
    assert run.ends[explicit].code == "capacity_lost"
    assert "needs 602 positions; the largest executor has 400" in run.ends[explicit].error
    run.finish()
    assert default.max_length == 400
    assert run.ends[default].reason in ("stop", "length")


def test_a_default_answer_that_is_longer_than_what_is_left_ends_as_it_is():
    run = Scheduling(pool(200))
    (answer,) = run.add("a", [1, 2, 3], max_tokens=700, may_shorten=True)
    while len(run.outputs[answer]) < 100:
        run.step()
    run.join(pool(20))
    run.lose(1)
    run.end(done(run.scheduler.expire(POOL_GRACE_S)))
    assert run.ends[answer].reason == "length"
    assert len(run.outputs[answer]) >= 100


def test_the_clock_of_a_lost_pool_runs_only_while_another_executor_is_there():
    run = Scheduling(pool(200))
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=600)
    run.lose(1)
    run.end(done(run.scheduler.expire(1000.0)))
    run.join(pool(100))
    run.end(done(run.scheduler.expire(999.0 + POOL_GRACE_S)))
    assert not run.ends, "no executor was there for it to wait beside"
    run.join(pool(200))
    run.end(done(run.scheduler.expire(2000.0)))
    run.finish()
    assert run.ends[sequence].reason == "length"


def test_the_clock_of_a_lost_pool_starts_when_the_smaller_executor_joins():
    """Not when the scheduler last looked at the time: it may have stood still since, or have just started."""
    run = Scheduling(pool(200))
    run.add("a", [1, 2, 3], max_tokens=600)
    run.lose(1)
    run.join(pool(100), now=1000.0)
    run.end(done(run.scheduler.expire(1000.0)))
    assert not run.ends, "the larger one may come back"
    run.end(done(run.scheduler.expire(1000.0 + POOL_GRACE_S)))
    assert len(run.ends) == 1


def test_an_executor_that_leaves_takes_no_sequence_with_it():
    """It still runs its own, and others no longer wait for it."""
    run = Scheduling(pool(200), pool(100))
    run.take_no_new(1)
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=600)
    run.step()
    assert sequence.state is State.WAITING
    run.end(done(run.scheduler.expire(POOL_GRACE_S)))
    assert run.ends[sequence].code == "capacity_lost"
