"""Holds what a scheduler tells routers against what is in its executors' indexes, after each of its calls."""

from dataclasses import dataclass, field

from common.wire import int32_array
from scheduler_svc.core.executor.announced_blocks import AnnouncedBlocks
from scheduler_svc.core.executor.block_manager import NO_PARENT
from scheduler_svc.core.executor.cache_events import CacheEvents
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.server.kv_event_format import encode_batch
from tests.support.kv_readers import Block, Subscriber


@dataclass
class Announced:
    """A subscriber, and what it should know.

    Args:
        salt: of the requests whose blocks are told of.
        collides: whether keys collide: then some blocks are not told of.
        blocks_at_once: told anew in one call.
    """

    scheduler: Scheduler
    salt: str = ""
    collides: bool = False
    blocks_at_once: int = 3
    subscriber: Subscriber = field(default_factory=Subscriber)
    num_told: int = 0
    num_hidden: int = 0
    _hidden: dict[tuple[int, int], bool] = field(default_factory=dict)  # by index and name of the content
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
        open_keys: set[int] = set()
        for index in indexes:
            for block, key in enumerate(index.keys):
                if key is None:
                    continue
                is_hidden = self._is_hidden(index, block)
                self.num_hidden += is_hidden
                assert not (is_hidden and block in index.announced), "a tenant's block is told of"
                if not is_hidden:
                    open_keys.add(key)
            for block, key in index.announced.items():
                assert index.keys[block] == key
                parent = index.parents[block]
                content = index.contents[block][len(self.salt) if parent == NO_PARENT else 0 :]
                tokens = tuple(int32_array("content", content).tolist())
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
        assert self.collides or counted.keys() == open_keys, "something with that salt is not told of"

    def _live(self) -> list[AnnouncedBlocks]:
        vacant = [pool.index.blocks for pool in self.scheduler.sequences.pools._vacant.values()]
        indexes = [*(executor.blocks for executor in self.scheduler.executors), *vacant]
        for index in indexes:
            assert isinstance(index, AnnouncedBlocks)
            if not any(index is known for known in self._indexes):
                self._indexes.append(index)
        return indexes  # type: ignore[return-value]  # narrowed one by one

    def _is_hidden(self, index: AnnouncedBlocks, block: int) -> bool:
        """Whether a block's sequence has another salt. Its parent may be gone later, so the answer is kept."""
        name = (id(index), index.uids[block])
        if (known := self._hidden.get(name)) is None:
            parent = index.parents[block]
            if parent == NO_PARENT:
                known = index.contents[block][: -4 * index.block_size] != self.salt.encode()
            else:
                assert index.uids[parent] == index.parent_uids[block], "the parent is gone before the child was seen"
                known = self._is_hidden(index, parent)
            self._hidden[name] = known
        return known
