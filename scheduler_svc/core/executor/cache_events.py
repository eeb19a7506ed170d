"""What a router in front of several schedulers is told of this one's prefix cache: which blocks it has. Pure.

To a router a scheduler is one place. A block is stored when the first of the executors' indexes gets it, and removed
when the last one loses it; how many have it is counted as it changes, so the cost grows with what moves. An index is
counted until it is discarded, so also while its pool has no executor: what is in it is found again when the pool is
adopted (`scheduling/pools.py`). The idea of such events, and their names, are vLLM's.

Blocks of requests with another `cache_salt` than one are never told of: no request with that one could hit them, and
their tokens are a tenant's business. Neither are blocks whose key means another content already, nor what follows on
either.
"""

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from common.plan import ExecutorLimits
from scheduler_svc.core.executor.announced_blocks import AnnouncedBlocks
from scheduler_svc.core.executor.block_manager import HashFunction

BLOCKS_AT_ONCE = 512  # told anew in one turn
MAX_EVENT_TOKENS = 2**16  # of one `Stored`, so that no message gets long


class Stored(NamedTuple):
    """Blocks that are here now; each follows on the one before.

    Attributes:
        keys: of the blocks.
        parent: the key of the block that the first one follows on; None at the start of a sequence.
        token_ids: of all of them, as int32 bytes.
        block_size: tokens in each.
    """

    keys: list[int]
    parent: int | None
    token_ids: bytes
    block_size: int


class Removed(NamedTuple):
    """Blocks that are not here any more, by their keys."""

    keys: list[int]


class Cleared(NamedTuple):
    """Nothing is here."""


CacheEvent = Stored | Removed | Cleared


class _Block:
    """What is known of a key that was told, or is about to be."""

    __slots__ = ("block_size", "content", "num_indexes", "parent")

    def __init__(self, parent: int | None, content: bytes, block_size: int) -> None:
        self.parent = parent
        self.content = content
        self.block_size = block_size
        self.num_indexes = 1


class CacheEvents:
    """Counts which blocks are in some index, and keeps what has to be told.

    It begins with `Cleared`, because a reader who listened to an earlier life may know blocks of that.

    Args:
        salt: the `cache_salt` of the requests whose blocks are told of.
    """

    def __init__(self, salt: str = "") -> None:
        self._salt = salt.encode()
        self._blocks: dict[int, _Block] = {}
        self._num_indexes = 0
        self._untold: dict[int, None] = {}  # of the blocks, those that are still to be told anew
        self._moves: list[tuple[int, _Block | None]] = []  # a key, and its block if it is stored
        self._begins_empty = True

    def index(self, limits: ExecutorLimits, hash_function: HashFunction) -> AnnouncedBlocks:
        """The index of a new pool, whose blocks are counted here."""
        self._num_indexes += 1
        return AnnouncedBlocks(limits.num_blocks, limits.block_size, hash_function, self, self._salt)

    @property
    def has_more(self) -> bool:
        """Whether `take` has something, also if nothing happens."""
        return self.has_untold or self.has_news

    @property
    def has_untold(self) -> bool:
        """Whether blocks are still to be told anew."""
        return bool(self._untold)

    @property
    def has_news(self) -> bool:
        """Whether something has happened that was not told; `take(0)` tells that alone."""
        return bool(self._moves or self._begins_empty)

    def store(self, key: int, parent: int | None, content: bytes, block_size: int) -> bool:
        """An index has got a block. False if it is not counted, because the key means another block already."""
        if key == 0:  # to llm-d the parent of a first block
            return False
        block = self._blocks.get(key)
        if block is not None:
            if block.content != content or block.parent != parent:
                return False
            block.num_indexes += 1
            return True
        if parent in self._untold:
            self._tell(parent)  # a router that does not know the parent drops the child
        self._blocks[key] = block = _Block(parent, content, block_size)
        self._moves.append((key, block))
        return True

    def remove(self, key: int) -> None:
        """An index has lost a block that was counted."""
        block = self._blocks[key]
        block.num_indexes -= 1
        if block.num_indexes:
            return
        del self._blocks[key]
        if not self._blocks:
            self._clear()
        elif key in self._untold:
            del self._untold[key]
        else:
            self._moves.append((key, None))

    def discard(self, announced: Mapping[int, int]) -> None:
        """An index is given up, with all of its blocks, by their keys."""
        self._num_indexes -= 1
        if self._num_indexes == 0:
            self._clear()
            return
        for key in announced.values():
            self.remove(key)

    def tell_anew(self) -> None:
        """Say `Cleared`, and then all that is here, over several calls of `take`: somebody has missed something."""
        self._clear_moves()
        self._untold = dict.fromkeys(self._blocks)

    def take(self, blocks_at_once: int = BLOCKS_AT_ONCE) -> list[CacheEvent]:
        """What has to be told since the last call, in this order.

        Args:
            blocks_at_once: of those that are told anew. A reader knows all that is here once `has_more` is False.
        """
        for key in list(islice(self._untold, blocks_at_once)):
            if key in self._untold:  # else it was told with a block that follows on it
                self._tell(key)
        events: list[CacheEvent] = [Cleared()] if self._begins_empty else []
        moves, self._moves, self._begins_empty = self._moves, [], False
        at = 0
        while at < len(moves):
            end = _end_of_run(moves, at)
            keys = [key for key, _ in moves[at:end]]
            first = moves[at][1]
            if first is None:
                events.append(Removed(keys))
            else:
                contents = b"".join([block.content for _, block in moves[at:end] if block is not None])
                events.append(Stored(keys, first.parent, contents, first.block_size))
            at = end
        return events

    @property
    def num_blocks(self) -> int:
        """Blocks that are in some index and may be told of."""
        return len(self._blocks)

    def _tell(self, key: int | None) -> None:
        """Tell a block anew, after those that it follows on."""
        chain: list[int] = []
        while key is not None and key in self._untold:
            del self._untold[key]
            chain.append(key)
            key = self._blocks[key].parent
        self._moves += [(key, self._blocks[key]) for key in reversed(chain)]

    def _clear(self) -> None:
        self._blocks = {}
        self._untold = {}
        self._clear_moves()

    def _clear_moves(self) -> None:
        """What was to be told before does not matter any more."""
        self._moves = []
        self._begins_empty = True


def _end_of_run(moves: list[tuple[int, _Block | None]], at: int) -> int:
    """Where the moves from `at` on end that one event can tell."""
    end = at + 1
    first = moves[at][1]
    if first is None:
        while end < len(moves) and moves[end][1] is None:
            end += 1
        return end
    longest = at + max(1, MAX_EVENT_TOKENS // first.block_size)
    while end < min(len(moves), longest):
        block = moves[end][1]
        if block is None or block.parent != moves[end - 1][0] or block.block_size != first.block_size:
            break
        end += 1
    return end
