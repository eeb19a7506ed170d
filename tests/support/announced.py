"""Holds what a scheduler tells routers against what is in its executors' indexes, after each of its calls."""

from dataclasses import dataclass, field

from common.wire import int32_array
from scheduler_svc.core.executor.announced_blocks import AnnouncedBlocks
from scheduler_svc.core.executor.block_books import NO_PARENT
from scheduler_svc.core.executor.cache_events import CacheEvents
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.server.kv_event_format import encode_batch
from tests.support.kv_readers import Block, Subscriber


@dataclass
class Announced:
    """A subscriber, and what it should know.

    Args:
        collides: whether keys collide: then some blocks are not told of.
        blocks_at_once: told anew in one call.
    """

    scheduler: Scheduler
    collides: bool = False
    blocks_at_once: int = 3
    subscriber: Subscriber = field(default_factory=Subscriber)
    num_told: int = 0
    num_salted: int = 0
    _salted: dict[tuple[int, int], bool] = field(default_factory=dict)  # by index and name of the content
    _indexes: list[AnnouncedBlocks] = field(default_factory=list)  # kept, so that no other gets the id of one

    @property
    def events(self) -> CacheEvents:
        assert self.scheduler.cache_events is not None
        return self.scheduler.cache_events

    def tell_anew(self) -> None:
        """A subscriber has missed something, or is new."""
        self.subscriber = Subscriber({key: Block(None, ()) for key in (1, 2)}, is_strict=False)  # it knows nonsense
        self.events.tell_anew()

    def check(self) -> None:
        """What was told is what is there, or a part of it while all is told anew."""
        indexes = self._live()
        if events := self.events.take(self.blocks_at_once):
            self.subscriber.take(encode_batch(events, 1.5))
            self.num_told += len(events)
        counted: dict[int, Block] = {}
        unsalted: set[int] = set()
        for index in indexes:
            for block, key in enumerate(index.keys):
                if key is None:
                    continue
                is_salted = self._is_salted(index, block)
                self.num_salted += is_salted
                assert not (is_salted and block in index.announced), "a tenant's block is told of"
                if not is_salted:
                    unsalted.add(key)
            for block, key in index.announced.items():
                assert index.keys[block] == key
                parent = index.parents[block]
                tokens = tuple(int32_array("content", index.contents[block]).tolist())
                first = counted.setdefault(key, Block(None, tokens))
                assert first.tokens == tokens, "one key for two contents"
                if parent == NO_PARENT:
                    assert self.subscriber.blocks.get(key, Block(None, ())).parent is None
        told = self.subscriber.blocks
        if self.events.has_more:
            assert told.keys() <= counted.keys()
        else:
            assert told.keys() == counted.keys(), "what was told is not what is there"
            self.subscriber.is_strict = True
        assert all(told[key].tokens == counted[key].tokens for key in told)
        assert self.collides or counted.keys() == unsalted, "something without a salt is not told of"

    def _live(self) -> list[AnnouncedBlocks]:
        vacant = [pool.index.blocks for pool in self.scheduler.sequences.pools._vacant.values()]
        indexes = [*(executor.blocks for executor in self.scheduler.executors), *vacant]
        for index in indexes:
            assert isinstance(index, AnnouncedBlocks)
            if not any(index is known for known in self._indexes):
                self._indexes.append(index)
        return indexes  # type: ignore[return-value]  # narrowed one by one

    def _is_salted(self, index: AnnouncedBlocks, block: int) -> bool:
        """Of a block's whole sequence. Its parent may be gone later, so the answer is kept."""
        name = (id(index), index.uids[block])
        if (known := self._salted.get(name)) is None:
            parent = index.parents[block]
            if parent == NO_PARENT:
                known = len(index.contents[block]) > 4 * index.block_size
            else:
                assert index.uids[parent] == index.parent_uids[block], "the parent is gone before the child was seen"
                known = self._is_salted(index, parent)
            self._salted[name] = known
        return known
