"""Who gets which pool, and when: the pure keeper."""

import msgspec
import pytest

from common import messages as m
from common.heartbeats import LOSS_TIMEOUT_S
from keeper_svc.executor import TAKEOVER_S
from tests.keeper_svc.world import NUM_BLOCKS, OTHER_POOL, POOL, Executor, World, holding

HANG_S = LOSS_TIMEOUT_S + 0.4


@pytest.fixture
def world() -> World:
    return World()


def test_a_pool_goes_to_the_next_one_when_its_holder_is_gone(world):
    first, second = Executor(world), Executor(world)
    deposited = first.deposit()
    assert second.lease() == m.PoolAbsent()
    first.end()
    leased = second.lease()
    assert (leased.pool, leased.lease, deposited.lease) == (deposited.pool, 2, 1)
    (_, handles) = world.inboxes[second.connection][-1]
    assert len(handles) == 2


def test_what_its_holder_cannot_use_nobody_gets(world):
    holder, standby = holding(world)
    assert holder.send(m.GivePoolUp()) == m.PoolGivenUp()
    assert world.keeper.shelf.pools == []
    assert standby.send(m.FindPool(kind=POOL)) == m.PoolFound(num_blocks=0)
    assert holder.send(m.GivePoolUp()) == m.PoolGivenUp()
    assert [facts["cause"] for event, facts in world.log if event == "pool dropped"] == ["its holder cannot use it"]


def test_a_released_lease_passes_to_the_standby_at_once(world):
    """The holder lives on: on a GPU its process takes long to end."""
    holder, standby = Executor(world), Executor(world)
    deposited = holder.deposit()
    standby.lease(wait=True)
    assert holder.send(m.ReleaseLease()) == m.LeaseReleased()
    assert standby.last == msgspec.structs.replace(deposited, lease=2)
    assert world.inboxes[standby.connection][-1][1], "the files of the pool come along"
    assert ("pool freed", "its holder has released it") in [(event, facts.get("cause")) for event, facts in world.log]
    assert holder.send(m.ReleaseLease()) == m.LeaseReleased(), "there is no lease any more"
    assert world.keeper.shelf.pools[0].holder.name == standby.name


def test_a_released_pool_without_a_standby_goes_to_who_asks(world):
    holder, next_one = Executor(world), Executor(world)
    deposited = holder.deposit()
    assert next_one.lease() == m.PoolAbsent()
    holder.send(m.ReleaseLease())
    assert (next_one.lease().pool, next_one.last.lease) == (deposited.pool, 2)


@pytest.mark.parametrize("how", ["disconnect", "end", "register_again"])
def test_nothing_that_becomes_of_a_process_changes_a_lease_that_it_has_released(world, how):
    holder, standby, third = Executor(world), Executor(world), Executor(world)
    leased = holder.deposit()
    holder.deposit_weights()  # the keeper still knows the process: it uses these
    standby.lease(wait=True)
    third.lease(wait=True)
    holder.send(m.ReleaseLease())
    getattr(holder, how)()
    assert isinstance(third.last, m.Registered)
    (pool,) = world.keeper.shelf.pools
    assert (pool.holder.name, pool.lease) == (standby.name, 2)
    if how == "register_again":
        assert holder.deposit(leased.pool, leased.lease) == m.Refused(
            reason=f"pool {pool.shown} is held by {standby.name}"
        )


def test_a_process_that_has_released_its_lease_is_not_killed(world):
    """It may take long to end, and nobody waits for that any more."""
    holder, standby, third = Executor(world), Executor(world), Executor(world, can_signal=False)
    holder.deposit()
    holder.deposit_weights()
    holder.send(m.Alive(state="serving"))
    watchdog = world.connect()
    world.send(watchdog, m.Watch(version=m.KEEPER_VERSION, instance=holder.instance))
    standby.lease(wait=True)
    third.lease(wait=True)
    holder.send(m.ReleaseLease())
    standby.send(m.Alive(state="serving"))
    world.pass_time(60.0, standby, third)
    assert world.killed == []
    assert [message for message, _ in world.inboxes[watchdog]] == [m.Watching()]


@pytest.mark.parametrize("is_killed_first", [True, False])
def test_a_release_and_the_end_of_its_process_may_come_in_either_order(world, is_killed_first):
    holder, standby, third = holding(world, 2)
    release = (holder.connection, m.ReleaseLease())
    if is_killed_first:
        holder.end()
        world.send(*release)  # it was on its way
    else:
        world.send(*release)
        holder.end()
    (pool,) = world.keeper.shelf.pools
    assert (pool.holder.name, pool.lease) == (standby.name, 2)
    assert isinstance(third.last, m.Registered)


def test_a_holder_that_was_to_be_killed_can_release_its_lease_first(world):
    holder, standby, third = holding(world, 2, is_serving=True)
    world.pass_time(HANG_S, standby, third)
    assert world.killed == [holder.process.handle]
    holder.send(m.ReleaseLease())  # sent before the kill reached it
    assert isinstance(standby.received[-2], m.PoolLeased)
    holder.end()
    assert world.keeper.shelf.pools[0].holder.name == standby.name


def test_the_end_of_a_connection_ends_no_lease(world):
    first, second = Executor(world), Executor(world)
    first.deposit()
    first.disconnect()
    assert second.lease() == m.PoolAbsent()
    world.pass_time(3600.0, second)
    assert second.lease() == m.PoolAbsent()
    first.end()
    assert isinstance(second.lease(), m.PoolLeased)


def test_only_an_equal_pool_is_leased(world):
    first, second = Executor(world), Executor(world)
    first.deposit(kind=OTHER_POOL)
    first.end()
    assert second.lease() == m.PoolAbsent()
    assert second.send(m.LeasePool(kind=OTHER_POOL, num_blocks=NUM_BLOCKS + 1)) == m.PoolAbsent()
    assert second.send(m.FindPool(kind=POOL)) == m.PoolFound(num_blocks=0)
    assert second.send(m.FindPool(kind=OTHER_POOL)) == m.PoolFound(num_blocks=NUM_BLOCKS)


def test_the_pool_used_last_goes_first(world):
    holders = [Executor(world) for _ in range(3)]
    pools = [holder.deposit().pool for holder in holders]
    for holder in (holders[2], holders[0], holders[1]):
        world.now += 0.1
        holder.end()
    assert [Executor(world).lease().pool for _ in range(3)] == [pools[1], pools[0], pools[2]]


def test_standbys_are_served_in_their_order_and_counted(world):
    holder, first, second = Executor(world), Executor(world), Executor(world)
    holder.deposit()
    for standby in (first, second):
        standby.lease(wait=True)
        assert isinstance(standby.last, m.Registered)  # nothing yet
    assert holder.received[-2:] == [m.Standbys(count=1), m.Standbys(count=2)]
    first.lease(wait=True)  # asking again loses no place
    holder.end()
    assert isinstance(first.received[-2], m.PoolLeased)
    assert first.last == m.Standbys(count=1)
    assert isinstance(second.last, m.Registered)


@pytest.mark.parametrize("how", ["disconnect", "end"])
def test_a_standby_that_goes_is_forgotten(world, how):
    holder, standby = holding(world)
    getattr(standby, how)()
    assert holder.last == m.Standbys(count=0)
    holder.end()
    assert world.log[-1][0] == "pool freed"


def test_a_silent_standby_is_passed_over_and_served_when_it_speaks(world):
    holder, silent, loud = holding(world, 2)
    world.pass_time(HANG_S, holder, loud)
    assert holder.last == m.Standbys(count=1)
    holder.end()
    assert isinstance(loud.last, m.PoolLeased)
    loud.end()
    assert isinstance(silent.send(m.Alive(state="seeking")), m.PoolLeased)


def test_a_silent_holder_is_killed_if_a_standby_waits(world):
    holder, standby = Executor(world), Executor(world)
    holder.deposit()
    holder.send(m.Alive(state="serving"))
    world.pass_time(60.0)
    assert world.killed == []  # nobody waits
    standby.lease(wait=True)
    world.pass_time(10.0, standby)
    assert world.killed == [holder.process.handle]
    assert not isinstance(standby.last, m.PoolLeased)  # it may still write
    holder.end()
    assert isinstance(standby.last, m.PoolLeased)


def test_a_holder_that_is_stuck_is_killed_and_one_that_seeks_is_not(world):
    holder, standby = holding(world)
    world.pass_time(10.0, holder, standby, state="seeking")
    assert world.killed == []
    world.pass_time(HANG_S, holder, standby, state="stuck")
    assert world.killed == [holder.process.handle]
    assert world.log[-1] == (
        "holder is killed",
        {"executor": holder.name, "pool": "00000000", "lease": 1, "cause": "stuck in a step for 2.0 s"},
    )


def test_a_holder_that_starts_is_left_alone_until_it_speaks(world):
    _, standby = holding(world)
    world.pass_time(100.0, standby)
    assert world.killed == []


def test_a_standby_that_got_the_pool_and_hangs_is_killed_for_the_next(world):
    holder, first, second = holding(world, 2)
    holder.end()
    world.pass_time(TAKEOVER_S, second)
    assert world.killed == []
    world.pass_time(HANG_S, second)
    assert world.killed == [first.process.handle]


def test_a_pause_of_the_keeper_is_no_silence_of_a_holder(world):
    holder, standby = holding(world)
    world.pass_time(1.0, holder, standby)
    world.now += 30.0
    world.tick()
    assert world.killed == []
    world.pass_time(HANG_S, standby)
    assert world.killed == [holder.process.handle]


def test_the_watchdog_kills_where_the_keeper_cannot(world):
    holder, standby = Executor(world, can_signal=False), Executor(world)
    assert holder.last == m.Registered(keeper="life-1", can_kill=False)
    holder.deposit()
    holder.send(m.Alive(state="serving"))
    watchdog = world.connect()
    world.send(watchdog, m.Watch(version=m.KEEPER_VERSION, instance=holder.instance))
    standby.lease(wait=True)
    world.pass_time(HANG_S, standby)
    assert [message for message, _ in world.inboxes[watchdog]] == [m.Watching(), m.KillHolder()]
    assert world.killed == []
    holder.end()
    assert watchdog not in world.inboxes


def test_without_a_way_to_kill_the_pool_stays_and_one_line_says_so(world):
    holder, standby = holding(world, is_serving=True, can_signal=False)
    world.pass_time(100.0, standby)
    assert [event for event, _ in world.log].count("pool cannot be handed on") == 1
    watchdog = world.connect()  # a late one
    world.send(watchdog, m.Watch(version=m.KEEPER_VERSION, instance=holder.instance))
    world.pass_time(0.2, standby)
    assert world.inboxes[watchdog][-1][0] == m.KillHolder()


def test_a_kill_that_is_not_permitted_goes_to_the_watchdog(world):
    holder, standby = Executor(world), Executor(world)
    holder.deposit()
    holder.send(m.Alive(state="serving"))
    watchdog = world.connect()
    world.send(watchdog, m.Watch(version=m.KEEPER_VERSION, instance=holder.instance))
    standby.lease(wait=True)
    world.pass_time(HANG_S, standby)
    world.do(world.keeper.kill_failed(world.killed[0], world.now))
    assert world.inboxes[watchdog][-1][0] == m.KillHolder()


def test_a_process_takes_its_place_again(world):
    holder, standby = Executor(world), Executor(world)
    leased = holder.deposit()
    standby.lease(wait=True)
    old = holder.connection
    holder.register_again()
    assert old not in world.inboxes
    assert holder.last == m.Standbys(count=1)
    assert holder.deposit(leased.pool, leased.lease) == leased  # nothing happened to it
    assert holder.lease() == leased
    holder.end()
    assert isinstance(standby.last, m.PoolLeased)


def test_a_pool_comes_back_to_another_keeper(world):
    holder = Executor(world)
    name = "x" * 32
    leased = holder.deposit(name, 7)
    assert (leased.pool, leased.lease) == (name, 7)
    other = Executor(world)
    refused = other.deposit(name, 7)
    assert refused == m.Refused(reason=f"pool xxxxxxxx is held by {holder.name}")
    holder.end()
    assert isinstance(other.deposit(name, 7), m.Refused)  # it was not its holder
    assert other.lease().lease == 8


def test_a_holder_that_brings_another_pool_gives_up_the_first(world):
    holder, next_one = Executor(world), Executor(world)
    holder.deposit()
    second = holder.deposit()
    assert len(world.keeper.shelf.pools) == 1
    assert isinstance(holder.lease(kind=OTHER_POOL), m.Refused)
    holder.end()
    assert next_one.lease().pool == second.pool


def test_an_executor_whose_name_would_forge_a_line_is_refused(world):
    Executor(world, "a\nb")
    [reason] = world.ended.values()
    assert reason == "name is 'a\\nb', and only printable characters are allowed in it"
    assert "executor registered" not in [event for event, _ in world.log]
