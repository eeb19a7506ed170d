"""Which of several executors of one command line waits: the pure keeper."""

import pytest

from common import messages as m
from tests.keeper_svc.world import NUM_BLOCKS, OTHER_POOL, POOL, Executor, World

SERVE, WAIT = m.RoleGiven(waits=False), m.RoleGiven(waits=True)


@pytest.fixture
def world() -> World:
    return World()


def ask(executor: Executor, kind: m.PoolKind = POOL) -> m.FromKeeper:
    return executor.send(m.AskRole(kind=kind))


def pool_of(executor: Executor) -> str:
    """The pool that it was given."""
    (pool,) = (message.pool for message in executor.received if isinstance(message, m.PoolLeased))
    return pool


def test_of_those_that_start_together_the_second_one_waits(world):
    """None of them has a pool, or waits for one, when the next one asks."""
    assert [ask(Executor(world)) for _ in range(4)] == [SERVE, WAIT, SERVE, SERVE]


def test_the_one_that_is_started_again_takes_the_place_of_its_standby(world):
    first, second = Executor(world), Executor(world)
    assert [ask(first), ask(second)] == [SERVE, WAIT]
    pool = first.deposit().pool
    second.lease(wait=True)
    for _ in range(3):  # the one that serves is killed, and started again
        first.end()
        assert world.inboxes[second.connection][-1][0].pool == pool
        first, second = second, Executor(world)
        assert ask(second) == WAIT
        second.lease(wait=True)
    second.end()  # and a standby
    assert ask(Executor(world)) == WAIT


def test_an_answer_counts_until_its_receiver_is_gone(world):
    first, second = Executor(world), Executor(world)
    assert [ask(first), ask(second)] == [SERVE, WAIT]
    second.disconnect()
    assert ask(Executor(world)) == WAIT
    first.disconnect()
    fourth, fifth = Executor(world), Executor(world)
    assert [ask(fourth), ask(fifth)] == [SERVE, SERVE]  # the third one waits


def test_an_answer_ends_with_the_connection_though_the_executor_is_known(world):
    """The keeper waits for the end of its process, as it uses weights."""
    only = Executor(world)
    assert ask(only) == SERVE
    only.deposit_weights()
    only.disconnect()
    first, second = Executor(world), Executor(world)
    assert [ask(first), ask(second)] == [SERVE, WAIT]


def test_one_waits_also_where_pools_are_left_over(world):
    """Two executors have gone. Of three that come one waits, and does not take what another one was to have."""
    old = [Executor(world), Executor(world)]
    pools = {executor.deposit().pool for executor in old}
    world.now += 1.0
    for executor in old:
        executor.end()
    world.now += 1.0
    first, second, third = new = [Executor(world) for _ in range(3)]
    assert [ask(executor) for executor in new] == [SERVE, WAIT, SERVE]
    assert second.send(m.FindPool(kind=POOL)) == m.PoolFound(num_blocks=0)  # it waits for the size of one that serves
    first.lease()
    assert second.send(m.FindPool(kind=POOL)) == m.PoolFound(num_blocks=NUM_BLOCKS)
    for asked in (m.LeasePool(kind=POOL, num_blocks=NUM_BLOCKS, wait=True), m.Alive(state="seeking")):
        assert not isinstance(second.send(asked), m.PoolLeased)
    third.lease()
    taken = [pool_of(executor) for executor in (first, third)]
    assert {*taken} == pools
    world.now += 1.0
    first.end()
    assert pool_of(second) == taken[0]


def test_one_that_is_to_wait_has_what_is_freed_while_it_starts(world):
    first, second = Executor(world), Executor(world)
    pool = first.deposit().pool
    assert ask(second) == WAIT
    world.now += 1.0
    first.end()
    world.now += 1.0
    assert second.lease(wait=True).pool == pool
    assert ask(Executor(world)) == WAIT  # it serves now


def test_one_that_asks_again_is_not_its_own_standby(world):
    only = Executor(world)
    assert [ask(only), ask(only)] == [SERVE, SERVE]


def test_kinds_are_apart_and_a_silent_standby_is_none(world):
    holder, standby = Executor(world), Executor(world)
    holder.deposit()
    assert ask(standby) == WAIT
    standby.lease(wait=True)
    assert ask(Executor(world), OTHER_POOL) == SERVE
    assert ask(Executor(world)) == SERVE
    world.pass_time(3.0, holder)
    assert ask(Executor(world)) == WAIT
