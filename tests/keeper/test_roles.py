"""Which of several executors of one command line waits: the pure keeper."""

import pytest

from common import messages as m
from tests.keeper.world import OTHER_POOL, POOL, Executor, World

SERVE, WAIT = m.RoleGiven(waits=False), m.RoleGiven(waits=True)


@pytest.fixture
def world() -> World:
    return World()


def ask(executor: Executor, kind: m.PoolKind = POOL) -> m.FromKeeper:
    return executor.send(m.AskRole(kind=kind))


def test_of_those_that_start_together_the_second_one_waits(world):
    """None of them has a pool, or waits for one, when the next one asks."""
    assert [ask(Executor(world)) for _ in range(4)] == [SERVE, WAIT, SERVE, SERVE]


def test_the_one_that_is_started_again_takes_the_place_of_its_standby(world):
    first, second = Executor(world), Executor(world)
    assert [ask(first), ask(second)] == [SERVE, WAIT]
    pool = first.deposit().pool
    second.lease(wait=True)
    for _ in range(3):  # whoever serves is killed, and started again
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


def test_left_pools_are_taken_before_anyone_waits(world):
    """Two of three were serving, and all are replaced at once."""
    old = [Executor(world), Executor(world)]
    pools = {executor.deposit().pool for executor in old}
    for executor in old:
        executor.end()
    new = [Executor(world) for _ in range(3)]
    roles = []
    for executor in new:
        roles.append(ask(executor))
        if roles[-1] == SERVE:
            assert executor.lease().pool in pools
    assert roles == [SERVE, SERVE, WAIT]


def test_one_that_asks_again_is_not_its_own_standby(world):
    only = Executor(world)
    assert [ask(only), ask(only)] == [SERVE, SERVE]


def test_kinds_are_apart_and_a_silent_standby_is_none(world):
    holder, standby = Executor(world), Executor(world)
    holder.deposit()
    standby.lease(wait=True)
    assert ask(Executor(world), OTHER_POOL) == SERVE
    assert ask(Executor(world)) == SERVE
    world.pass_time(3.0, holder)
    assert ask(Executor(world)) == WAIT
