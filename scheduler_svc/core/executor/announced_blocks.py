"""The blocks of one executor, with an ear: what is entered into the prefix cache or leaves it is counted. Pure.

A subclass, so that a scheduler that tells nobody pays for none of this.
"""

from collections.abc import Iterable
from typing import Protocol

from scheduler_svc.core.executor.block_manager import NO_PARENT, BlockManager, BlockTable, HashFunction


class Listener(Protocol):
    """Who counts; `CacheEvents`."""

    def store(self, key: int, parent: int | None, content: bytes, block_size: int) -> bool:
        """A block was entered into an index."""

    def remove(self, key: int) -> None:
        """A block that was counted is in an index no more."""

    def discard(self, announced: dict[int, int]) -> None:
        """An index is given up."""


class AnnouncedBlocks(BlockManager):
    """Owns the block ids of a pool, and says which keys its index has.

    Args:
        num_blocks, block_size, hash_function: as for `BlockManager`.
        listener: is told.
        salt: of the sequences whose blocks count.

    Attributes:
        announced: the key of each block that counts. A first block counts if it has that salt, and another one if the
            block before it does.
    """

    def __init__(
        self, num_blocks: int, block_size: int, hash_function: HashFunction, listener: Listener, salt: bytes = b""
    ) -> None:
        super().__init__(num_blocks, block_size, hash_function)
        self._salt = salt
        self.announced: dict[int, int] = {}
        self._listener = listener

    def publish(self, table: BlockTable, raw: bytes, first: int, *, may_merge: bool) -> bool:
        """As for `BlockManager`; what is new in the index is counted."""
        before = table.num_published
        merged = super().publish(table, raw, first, may_merge=may_merge)
        if table.salt != self._salt:
            return merged
        announced, ids = self.announced, table.ids
        for i in range(before, table.num_published):
            block = ids[i]
            if block in announced:
                continue
            parent = self.parents[block]
            if parent != NO_PARENT and parent not in announced:
                break
            key = self.keys[block]
            assert key is not None
            parent_key, content = announced.get(parent), self.contents[block]
            if parent == NO_PARENT:
                content = content[len(self._salt) :]
            if not self._listener.store(key, parent_key, content, self.block_size):
                break
            announced[block] = key
        return merged

    def allocate(self, count: int) -> list[int]:
        """As for `BlockManager`; blocks that are handed out anew leave the index."""
        blocks = super().allocate(count)
        for block in blocks:
            if block in self.announced:
                self._listener.remove(self.announced.pop(block))
        return blocks

    def discard(self) -> None:
        """Nothing of this index is used any more."""
        self._listener.discard(self.announced)
        self.announced = {}

    def check(self, tables: Iterable[BlockTable]) -> None:
        """As for `BlockManager`; what counts is in the index, under its key."""
        super().check(tables)
        assert all(self.keys[block] == key for block, key in self.announced.items())

    def _unpublish(self, block: int) -> None:
        super()._unpublish(block)
        if block in self.announced:
            self._listener.remove(self.announced.pop(block))
