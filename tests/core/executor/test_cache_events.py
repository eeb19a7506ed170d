"""What routers are told of the prefix caches: counted over all executors, and never of a tenant's blocks."""

import msgspec
import pytest

from common import messages as m
from scheduler_svc.core.executor.announced_blocks import AnnouncedBlocks
from scheduler_svc.core.executor.cache_events import MAX_EVENT_TOKENS, CacheEvents, Cleared, Removed, Stored
from scheduler_svc.core.scheduling.pools import KEPT_S, MAX_KEPT
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.kv_event_options import salt_of_group
from scheduler_svc.server.kv_event_format import encode_batch
from tests.support.announced import Announced
from tests.support.chores import done
from tests.support.kv_readers import Event, read
from tests.support.scheduling import Scheduling, limits

POOL = m.Pool(pool="p" * 32, lease=1, layout="plain", epoch=0)
PREFIX = list(range(8))  # two blocks


def announced_run(*executors, **config):
    run = Scheduling(*executors, **({"announced_salt": ""} | config))
    run.announced = Announced(run.scheduler, run.scheduler.config.announced_salt)
    return run


def told(run):
    """What a subscriber has been told since the last call: kinds and numbers of blocks."""
    events = run.scheduler.cache_events.take()
    for event in read(encode_batch(events, 0.0)):
        run.announced.subscriber.apply(event)
    run.announced.check()
    return [(type(event).__name__, len(getattr(event, "keys", []))) for event in events]


def test_it_begins_with_nothing_and_a_shared_prefix_is_stored_once():
    run = announced_run()
    run.add("a", [*PREFIX, 100, 101, 102, 103, 104])
    run.add("b", [*PREFIX, 200, 201, 202, 203, 204])
    run.plan()
    assert told(run) == [("Cleared", 0), ("Stored", 3), ("Stored", 1)]
    run.finish()
    assert {kind for kind, _ in told(run)} == {"Stored"}, "what was generated is cached, too"
    assert run.announced.subscriber.match([*PREFIX, 200, 201, 202, 203, 204], 4) == 12
    assert run.announced.subscriber.match([*PREFIX, 7, 7, 7, 7], 4) == 8
    assert told(run) == []


def test_what_is_handed_out_anew_is_removed():
    run = announced_run(limits(num_blocks=6, max_model_len=24))
    run.add("a", PREFIX, max_tokens=4)
    run.finish()
    told(run)
    run.add("b", list(range(300, 320)), max_tokens=4)
    run.finish()
    assert "Removed" in [kind for kind, _ in told(run)]
    assert run.announced.subscriber.match(PREFIX, 4) < 8


def test_a_block_is_removed_when_the_last_executor_loses_it():
    run = announced_run(limits(), limits())
    run.take_no_new(1)
    run.add("a", PREFIX)
    run.finish()
    told(run)
    before = dict(run.announced.subscriber.blocks)
    second = run.join(limits())
    run.take_no_new(2)
    run.add("b", PREFIX)
    run.finish()
    assert run.scheduler.executor(second).blocks.num_cached >= 2
    assert all(kind == "Stored" for kind, _ in told(run)), "the same blocks are not stored again"
    run.lose(2)
    told(run)
    assert run.announced.subscriber.match(PREFIX, 4) == 8, "the other one has them"
    assert before.keys() <= run.announced.subscriber.blocks.keys()
    run.lose(second)
    run.lose(1)
    assert told(run) == [("Cleared", 0)]


def test_executors_with_other_block_sizes_are_told_of_side_by_side():
    run = announced_run(limits(), limits(block_size=8, num_blocks=32))
    prompt = list(range(16))
    run.add("a", prompt)
    run.finish()
    first, second = sorted(run.scheduler.executors, key=lambda executor: executor.blocks.num_cached == 0)
    assert second.blocks.num_cached == 0, "or the rest shows nothing"
    run.take_no_new(first.epoch)
    run.add("b", prompt)
    run.finish()
    told(run)
    sizes = {len(block.tokens) for block in run.announced.subscriber.blocks.values()}
    assert sizes == {4, 8}
    assert [run.announced.subscriber.match(prompt, size) for size in (4, 8)] == [16, 16]


@pytest.mark.parametrize("salts", [("alice", "bob"), ("alice", "")])
def test_no_block_of_a_salted_request_is_told_of(salts):
    run = announced_run()
    for salt in salts:
        run.add(salt or "none", [*PREFIX, 1, 2, 3, 4, 5], cache_salt=salt, max_tokens=9)
    run.finish()
    told(run)
    blocks = run.scheduler.executor(1).blocks
    assert len(run.announced.subscriber.blocks) == blocks.num_cached // 2 * salts.count("")
    assert run.announced.num_hidden
    tokens = [token for block in run.announced.subscriber.blocks.values() for token in block.tokens]
    assert bool(tokens) == ("" in salts)


def test_a_salted_prompt_that_shares_its_beginning_takes_nothing_away():
    """Its blocks are removed in silence, also those that have the tokens of blocks that were told of."""
    run = announced_run(limits(num_blocks=12, max_model_len=40))
    run.add("open", PREFIX, max_tokens=1)
    run.add("salted", PREFIX, max_tokens=1, cache_salt="alice")
    run.finish()
    told(run)
    known = dict(run.announced.subscriber.blocks)
    for i in range(5):
        run.add("open", PREFIX, max_tokens=1)
        run.add(f"{i}", list(range(500 + 100 * i, 524 + 100 * i)), max_tokens=1, cache_salt="bob")
        run.finish()
    assert told(run) == []
    assert run.announced.subscriber.blocks == known


def test_the_blocks_of_one_group_may_be_told_of_instead():
    """Without the salt, which a router does not have; those of requests without a salt are then hidden."""
    salt = salt_of_group("all of us")
    run = announced_run(announced_salt=salt)
    for name in (salt, "group others/", ""):
        run.add(name or "none", [*PREFIX, 1, 2, 3, 4, 5], cache_salt=name, max_tokens=1)
    run.finish()
    told(run)
    assert len(run.announced.subscriber.blocks) == 3 == run.scheduler.executor(1).blocks.num_cached // 3
    assert run.announced.subscriber.match([*PREFIX, 1, 2, 3, 4], 4) == 12


class TestPools:
    """A pool that outlives its executor."""

    def scene(self):
        run = announced_run(limits())
        run.lose(1)
        run.epoch = run.join(limits(), pool=POOL)
        run.memory = run.executors[run.epoch]
        run.add("a", PREFIX, max_tokens=1)
        run.finish()
        told(run)
        return run

    def test_its_blocks_stay_and_an_adoption_says_nothing(self):
        run = self.scene()
        run.lose(run.epoch, pool_wait_s=1.0)
        assert told(run) == []
        assert run.announced.subscriber.match(PREFIX, 4) == 8
        successor = run.join(limits(), pool=msgspec.structs.replace(POOL, epoch=run.epoch), memory=run.memory)
        assert run.scheduler.executor(successor).earlier_epochs
        assert told(run) == []
        run.add("b", [*PREFIX, 9, 9, 9, 9, 9], max_tokens=1)
        run.finish()
        assert told(run) == [("Stored", 1)], "and what follows on them is told"

    def test_what_an_unanswered_plan_writes_is_removed(self):
        run = self.scene()
        run.add("b", [*PREFIX, *range(50, 58)], max_tokens=1)
        run.plan(run.epoch)
        assert told(run) == [("Stored", 2)]
        run.lose(run.epoch, pool_wait_s=1.0)
        assert told(run) == [("Removed", 2)]

    @pytest.mark.parametrize("how", ["expired", "not adopted", "crowded out", "unsafe"])
    def test_its_blocks_are_removed_when_it_will_not_be_continued(self, how):
        run = self.scene()
        run.lose(run.epoch, pool_wait_s=None if how == "unsafe" else 1.0)
        match how:
            case "expired":
                done(run.scheduler.expire(KEPT_S - 0.1))
                assert told(run) == []
                done(run.scheduler.expire(KEPT_S))
            case "not adopted":
                other = msgspec.structs.replace(POOL, epoch=run.epoch, layout="another")
                run.join(limits(), pool=other)
            case "crowded out":
                for i in range(MAX_KEPT):
                    epoch = run.join(limits(), pool=msgspec.structs.replace(POOL, pool=f"{i:032d}"))
                    run.lose(epoch, pool_wait_s=1.0)
        events = told(run)
        assert events in ([("Cleared", 0)], [("Removed", 2)])
        assert not run.announced.subscriber.blocks


def test_a_subscriber_that_comes_late_is_told_all_in_parts():
    run = announced_run()
    for i in range(4):
        run.add(str(i), [*PREFIX, *range(100 * i, 100 * i + 9)], max_tokens=1)
    run.finish()
    told(run)
    known = dict(run.announced.subscriber.blocks)
    events = run.scheduler.cache_events
    events.tell_anew()
    parts = []
    while events.has_more:
        parts.append(events.take(2))
    assert parts[0][0] == Cleared()
    assert len(parts) > 3
    run.announced.subscriber.is_strict = True
    for part in parts:
        run.announced.subscriber.take(encode_batch(part, 0.0))
    assert run.announced.subscriber.blocks == known


def test_a_block_whose_parent_is_still_to_be_told_brings_it_along():
    events = CacheEvents()
    for key in range(1, 9):
        assert events.store(key, key - 1 or None, bytes([key] * 16), 4)
    events.take()
    events.tell_anew()
    assert events.take(0) == [Cleared()]
    events.store(9, 8, bytes([9] * 16), 4)
    assert [event.keys for event in events.take(0)] == [list(range(1, 10))]
    assert not events.has_more


def test_what_was_not_told_yet_is_removed_in_silence():
    events = CacheEvents()
    for key in (1, 2, 3):
        events.store(key, None, bytes([key] * 16), 4)
    events.take()
    events.tell_anew()
    events.remove(2)
    assert [event.keys for event in events.take()[1:]] == [[1], [3]]
    events.remove(1)
    assert events.take() == [Removed([1])]


def test_the_last_block_to_go_clears_all():
    events = CacheEvents()
    events.store(1, None, bytes(16), 4)
    events.take()
    events.remove(1)
    events.store(2, None, bytes(16), 4)
    assert events.take() == [Cleared(), Stored([2], None, bytes(16), 4)]


def test_a_key_that_means_another_block_is_not_counted():
    events = CacheEvents()
    assert events.store(1, None, b"a" * 16, 4)
    assert not events.store(1, None, b"b" * 16, 4)
    assert not events.store(1, 7, b"a" * 16, 4)
    assert not events.store(0, None, b"a" * 16, 4), "a router takes 0 for no parent"
    events.store(2, None, b"a" * 16, 4)
    events.take()
    events.remove(1)
    assert events.take() == [Removed([1])]


def test_an_event_has_a_bounded_number_of_tokens():
    events = CacheEvents()
    size = MAX_EVENT_TOKENS // 4
    for key in range(1, 11):
        events.store(key, key - 1 or None, bytes(4 * size), size)
    stored = events.take()[1:]
    assert [event.keys for event in stored] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert [event.parent for event in stored] == [None, 4, 8]


def test_readers_of_all_kinds_read_a_batch():
    first, second = 2**64 - 1, 2**63 + 5
    batch = encode_batch([Cleared(), Stored([first, second], 7, bytes(range(32)), 4), Removed([9])], 12.5)
    stored, removed = read(batch)[1:]
    assert stored.hashes == (first, second)
    assert stored.blocks is not None
    assert [block.parent for block in stored.blocks] == [7, first]
    assert removed == Event("BlockRemoved", (9,), medium="GPU")
    assert msgspec.msgpack.decode(batch) == [
        12.5,
        [
            ["AllBlocksCleared"],
            ["BlockStored", [first, second], 7, [50462976 + 67372036 * i for i in range(8)], 4, None, "GPU", None],
            ["BlockRemoved", [9], "GPU"],
        ],
        0,
    ]


class ForgetsWhatIsHandedOut(AnnouncedBlocks):
    """Says nothing when a block is handed out anew."""

    def allocate(self, count):
        return super(AnnouncedBlocks, self).allocate(count)


class TellsOfTenants(AnnouncedBlocks):
    """Does not look at the salt."""

    def publish(self, table, raw, first, *, may_merge):
        salt, merged = table.salt, super().publish(table, raw, first, may_merge=may_merge)
        table.salt = b""
        for i, block in enumerate(table.ids[: table.num_published]):
            if block not in self.announced:
                parent = self.announced.get(table.ids[i - 1]) if i else None
                if self._listener.store(self.keys[block], parent, self.contents[block][-16:], 4):
                    self.announced[block] = self.keys[block]
        table.salt = salt
        return merged


@pytest.mark.parametrize("fault", [ForgetsWhatIsHandedOut, TellsOfTenants])
def test_the_check_of_the_fuzzer_sees_faults(fault):
    class FaultyEvents(CacheEvents):
        def index(self, limits, hash_function):
            return fault(limits.num_blocks, limits.block_size, hash_function, self)

    class Faulty(Scheduler):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.cache_events = FaultyEvents()

    def scene(scheduler_type=Scheduler):
        run = announced_run(limits(num_blocks=6, max_model_len=24), scheduler_type=scheduler_type)
        for i, salt in enumerate(("", "alice")):
            run.add(str(i), list(range(100 * i, 100 * i + 20)), max_tokens=4, cache_salt=salt)
            run.finish()
            run.announced.check()

    scene()
    with pytest.raises(AssertionError):
        scene(Faulty)


def test_off_by_default():
    run = Scheduling()
    assert run.scheduler.cache_events is None
    assert not isinstance(run.scheduler.executor(1).blocks, AnnouncedBlocks)
