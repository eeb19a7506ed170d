"""Room, weights, strangers and reports: the pure keeper."""

import msgspec
import pytest

from common import messages as m
from keeper_svc.readers import READER_TIMEOUT_S
from keeper_svc.registry import MAX_EXECUTORS, STRANGER_TIMEOUT_S
from keeper_svc.shelf import MAX_POOLS, MAX_WEIGHTS
from tests.keeper_svc.world import NUM_BLOCKS, POOL, POOL_BYTES, WEIGHTS, Executor, World


@pytest.fixture
def world() -> World:
    return World()


def test_the_one_unused_for_longest_goes_when_room_is_needed(world):
    ended = [Executor(world) for _ in range(3)]
    for executor in ended:
        executor.deposit(num_bytes=200)
    ended[1].end()
    world.now += 0.1
    ended[0].end()
    user = Executor(world)
    user.deposit_weights(num_bytes=300)
    world.now += 0.1
    user.end()
    kept = Executor(world)
    assert isinstance(kept.deposit(num_bytes=400), m.PoolLeased)  # 900 of 1000 bytes are there
    assert [pool.holder is None for pool in world.keeper.shelf.pools] == [False, False]
    assert len(world.keeper.shelf.weights) == 1
    assert [facts["cause"] for event, facts in world.log if event == "pool dropped"] == ["room was needed"] * 2


def test_what_is_held_never_goes(world):
    holder, user, third = Executor(world), Executor(world), Executor(world)
    holder.deposit(num_bytes=500)
    user.deposit_weights(num_bytes=300)
    refused = third.deposit(num_bytes=201)
    assert refused == m.Refused(reason="it has 201 bytes, 800 are in use, the limit is 1000")
    assert isinstance(third.deposit(num_bytes=200), m.PoolLeased)


def test_a_pool_that_cannot_fit_drives_nothing_out(world):
    ended = Executor(world)
    ended.deposit()
    ended.end()
    assert isinstance(Executor(world).deposit(num_bytes=1001), m.Refused)
    assert len(world.keeper.shelf.pools) == 1


def test_what_is_on_a_gpu_takes_none_of_the_machines_memory(world):
    on_gpu = msgspec.structs.replace(POOL, device="GPU-1")
    left = Executor(world)
    assert isinstance(left.deposit(kind=on_gpu, num_bytes=5000), m.PoolLeased)
    left.end()
    assert isinstance(Executor(world).deposit(num_bytes=1000), m.PoolLeased)
    assert len(world.keeper.shelf.pools) == 2, "to drop the GPU's would give the machine nothing"
    operator = world.connect()
    world.send(operator, m.KeeperQuery())
    report = world.inboxes[operator][-1][0]
    assert (report.num_bytes, report.max_bytes) == (1000, 1000)
    assert [pool.num_bytes for pool in report.pools] == [5000, 1000]
    assert isinstance(Executor(world).deposit(num_bytes=1), m.Refused)


def test_counts_are_bounded():
    world = World(max_bytes=10**9)
    holders = [Executor(world) for _ in range(MAX_POOLS)]
    for holder in holders:
        holder.deposit()
    one_more = Executor(world)
    assert one_more.deposit() == m.Refused(reason="64 of them are in use, the limit is 64")
    holders[5].end()
    assert isinstance(one_more.deposit(), m.PoolLeased)
    for number in range(MAX_WEIGHTS):
        one_more.deposit_weights(f"model {number}")
    assert isinstance(one_more.deposit_weights("one more"), m.Refused)
    for _ in range(MAX_EXECUTORS - MAX_POOLS):
        Executor(world)
    late = world.connect()
    world.send(late, m.Register(version=m.KEEPER_VERSION, instance="y" * 32, name="late", pid=1), world.process())
    assert "the limit is 256" in world.ended[late]


def test_nothing_is_kept_for_ever():
    world = World(keep_for_s=60.0)
    holder, user = Executor(world), Executor(world)
    holder.deposit()
    user.deposit_weights()
    world.pass_time(100.0)
    assert len(list(world.keeper.shelf)) == 2
    holder.end()
    user.end()
    world.pass_time(59.0)
    assert len(list(world.keeper.shelf)) == 2
    world.pass_time(2.0)
    assert world.open == set()


def test_weights_are_found_by_fingerprint_and_by_source(world):
    reader, user = Executor(world), Executor(world)
    assert user.find_weights("f") == m.WeightsAbsent()
    reader.deposit_weights("f", source="files 1")
    assert user.deposit_weights("f", source="files 2") == m.WeightsKept()  # the same, from a copy of the files
    found = m.WeightsFound(fingerprint="f", num_bytes=POOL_BYTES)
    for wish in ({"fingerprint": "f"}, {"source": "files 1"}, {"source": "files 2"}):
        assert user.find_weights(**wish) == found
    assert user.find_weights(source="files 3") == m.WeightsAbsent()
    assert isinstance(user.find_weights(), m.Refused)
    other = m.WeightsKind(dtype="float32", quantization="none", packing="plain 1")
    assert user.send(m.FindWeights(kind=other, fingerprint="f")) == m.WeightsAbsent()


def test_a_source_leads_to_what_was_read_from_it_last(world):
    """A checkpoint was changed behind its key, which `--verify-weights` has noticed."""
    reader, user = Executor(world), Executor(world)
    reader.deposit_weights("old", source="files")
    reader.deposit_weights("new", source="files")
    found = user.find_weights(source="files")
    assert found.fingerprint == "new"
    assert user.find_weights("old").fingerprint == "old", "they are kept, and found by what they are"


def test_one_executor_reads_what_several_look_for(world):
    reader, second, third = Executor(world), Executor(world), Executor(world)
    absent, wait = m.WeightsAbsent(), m.WeightsAbsent(is_read=True)
    assert second.find_weights(source="files") == absent, "it does not say that it reads"
    assert reader.find_weights(source="files", reads=True) == absent
    assert reader.find_weights(source="files", reads=True) == absent, "it asks again"
    assert second.find_weights(source="files", reads=True) == wait
    assert second.find_weights(source="other files", reads=True) == absent
    assert third.find_weights(source="other files", reads=True) == wait
    assert reader.find_weights("f", reads=True) == second.find_weights("f", reads=True) == absent, "no source to read"
    assert third.find_weights(source="files", reads=True) == wait, "it has only looked whether they are kept"
    reader.deposit_weights("f", source="files")
    assert third.find_weights(source="files", reads=True).fingerprint == "f"


@pytest.mark.parametrize(
    "stops",
    [
        Executor.end,
        Executor.disconnect,
        lambda reader: reader.find_weights(source="other files", reads=True),
        lambda reader: reader.world.pass_time(READER_TIMEOUT_S + 1.0),
    ],
)
def test_an_executor_that_reads_no_more_has_a_successor(world, stops):
    reader, second, third = Executor(world), Executor(world), Executor(world)
    reader.find_weights(source="files", reads=True)
    assert second.find_weights(source="files", reads=True) == m.WeightsAbsent(is_read=True)
    stops(reader)
    assert second.find_weights(source="files", reads=True) == m.WeightsAbsent()
    assert third.find_weights(source="files", reads=True) == m.WeightsAbsent(is_read=True)


@pytest.mark.parametrize(
    "goes_on",
    [
        lambda reader: reader.deposit(),
        lambda reader: reader.lease(),
        lambda reader: reader.send(m.Alive(state="seeking")),
        lambda reader: reader.deposit_weights("f"),  # of files that have changed meanwhile
        lambda reader: reader.deposit_weights("f", "files", num_bytes=2**30),  # which is refused
    ],
)
def test_what_cannot_be_brought_each_reads_for_itself(world, goes_on):
    reader, second, third = Executor(world), Executor(world), Executor(world)
    reader.find_weights(source="files", reads=True)
    goes_on(reader)
    for each in (second, third):
        assert each.find_weights(source="files", reads=True) == m.WeightsAbsent()


def test_an_operator_drops_what_is_not_used(world):
    gone, holder = Executor(world), Executor(world)
    pool = gone.deposit().pool
    gone.end()
    holder.deposit()
    holder.deposit_weights("abc")
    operator = world.connect()

    def drop(name="", device=""):
        world.send(operator, m.DropKept(name=name, device=device))
        return world.inboxes[operator][-1][0]

    assert drop("no such") == m.Dropped(num_pools=0, num_weights=0, num_bytes=0)
    assert drop(pool[:31]) == m.Dropped(num_pools=1, num_weights=0, num_bytes=POOL_BYTES)
    assert drop() == m.Dropped(num_pools=0, num_weights=0, num_bytes=0)
    assert drop("ab") == m.Dropped(num_pools=0, num_weights=1, num_bytes=POOL_BYTES)  # named: used or not
    assert len(world.keeper.shelf.pools) == 1


def test_an_executor_has_room_made_on_its_device(world):
    user, ended = Executor(world), Executor(world)
    on_gpus = [msgspec.structs.replace(WEIGHTS, device=device) for device in ("cpu", "GPU-1", "GPU-2")]
    for kind in on_gpus:
        ended.deposit_weights("f", kind=kind)
    ended.deposit(kind=msgspec.structs.replace(POOL, device="GPU-1"))
    ended.end()
    assert user.find_weights("f", kind=on_gpus[2])

    def drop(**wish):
        return user.send(m.DropKept(**wish))

    nothing = m.Dropped(num_pools=0, num_weights=0, num_bytes=0)
    assert drop(device="GPU-2") == nothing, "they are in use"
    assert drop(device="GPU-1", name="g") == nothing
    assert drop(device="GPU-1", pools=False) == m.Dropped(num_pools=0, num_weights=1, num_bytes=POOL_BYTES)
    assert drop(device="GPU-1") == m.Dropped(num_pools=1, num_weights=0, num_bytes=POOL_BYTES)
    assert [kept.kind.device for kept in world.keeper.shelf] == ["cpu", "GPU-2"]


def test_the_report_tells_who_holds_what_and_no_secret(world):
    holder, standby = Executor(world, "holder"), Executor(world, "standby")
    pool = holder.deposit().pool
    standby.lease(wait=True)
    standby.deposit_weights()
    operator = world.connect()
    world.now += 0.5
    world.send(operator, m.KeeperQuery())
    report = world.inboxes[operator][-1][0]
    (kept,), (weights,) = report.pools, report.weights
    assert (kept.holder, kept.num_standbys, kept.since_s, kept.num_blocks) == ("holder", 1, 0.5, NUM_BLOCKS)
    assert (weights.users, weights.num_users, weights.idle_s) == (("standby",), 1, 0.0)
    assert (report.num_bytes, report.max_bytes) == (2 * POOL_BYTES, 1000)
    assert pool.encode() not in msgspec.msgpack.encode(report)


def test_the_largest_report_fits_into_a_packet():
    world = World(max_bytes=10**12)
    name = "n" * m.MAX_NAME_CHARS
    holders = [Executor(world, name) for _ in range(MAX_POOLS)]
    kind = m.PoolKind(fingerprint=name, dtype=name, layout="l" * 256, device=name)
    for holder in holders:
        holder.deposit(kind=kind)
    for number in range(MAX_WEIGHTS):
        for holder in holders:
            holder.send(
                m.DepositWeights(
                    kind=m.WeightsKind(dtype=name, quantization=name, packing=name, device=name),
                    fingerprint=f"{number:0128}",
                    num_bytes=POOL_BYTES,
                ),
                world.memory(),
            )
    operator = world.connect()
    world.send(operator, m.KeeperQuery())
    assert len(msgspec.msgpack.encode(world.inboxes[operator][-1][0])) <= m.MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (m.Alive(state="serving"), "Alive came before Register"),
        (m.LeasePool(kind=POOL, num_blocks=1, wait=True), "LeasePool came before Register"),
        (m.FindWeights(kind=WEIGHTS, source="s"), "FindWeights came before Register"),
        (m.Register(version=0, instance="i" * 32, name="n", pid=1), "nothing came beside Register"),
        (m.Watch(version=m.KEEPER_VERSION, instance="i" * 32), "no executor of this instance is registered"),
        (m.Watch(version=9, instance="i" * 32), "it speaks version 9 of the keeper's protocol, this keeper 2 to 3"),
        (m.Watch(version=1, instance="i" * 32), "it speaks version 1 of the keeper's protocol, this keeper 2 to 3"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, m.Message) else "",
)
def test_a_stranger_that_makes_no_sense_is_turned_away(world, message, why):
    connection = world.connect()
    world.send(connection, message)
    assert world.ended[connection] == why
    assert world.open == set()


def test_an_executor_of_the_version_before_is_served(world):
    """A keeper is upgraded before its executors, and they bring it what they hold."""
    connection = world.connect()
    hello = m.Register(version=m.OLDEST_KEEPER_VERSION, instance="o" * 32, name="older", pid=1)
    world.send(connection, hello, world.process())
    assert world.inboxes[connection][-1][0] == m.Registered(keeper="life-1", can_kill=True)


def test_wrong_descriptors_end_the_connection_and_are_closed(world):
    executor = Executor(world)
    world.send(executor.connection, m.Alive(state="serving"), world.memory(), world.memory())
    assert world.ended[executor.connection] == "MemoryHandle, MemoryHandle came beside Alive"
    assert world.open == set()  # its pidfd, too: nothing is kept for it


def test_a_stranger_that_says_nothing_is_turned_away(world):
    connection, executor = world.connect(), Executor(world)
    world.pass_time(STRANGER_TIMEOUT_S + 0.4)
    assert connection in world.ended
    assert executor.connection in world.inboxes


def test_memory_of_another_size_than_said_is_refused(world):
    executor = Executor(world)
    message = m.DepositPool(kind=POOL, num_blocks=1, num_bytes=100)
    refused = executor.send(message, world.memory(99), world.memory(4096))
    assert refused == m.Refused(reason="the memory has 99 bytes, the message says 100")
    assert isinstance(executor.send(message, world.memory(None), world.memory(4096)), m.PoolLeased)  # of a GPU
    assert isinstance(executor.deposit("short", 1), m.Refused)
    assert isinstance(executor.deposit("x" * 32, 0), m.Refused)
