"""KV-cache blocks of one executor: reference counts, the prefix cache and the one way to get blocks.

Pure: no socket, clock or log. The scheme of hashed, reference-counted blocks is vLLM's; what differs is that
counts are derived instead of triggered by an edge, that a hit is verified instead of trusted, and that matching
the cache and allocating are one transaction (`reserve`). docs/architecture.md lists the invariants by number.

A block is an index into parallel lists: with a few dozen blocks to a prompt and a prompt in every other step, one
object a block would cost more than all the hashing.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Lists
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import xxhash

from common.wire import IntArray
from scheduler_svc.core.sequence import NO_POSITION, Tail

TOKEN_BYTES = 4
NO_PARENT = -1
BOOKS_AT_ONCE = 1024  # blocks that books are made for when they run out: an executor's Hello may promise a million

Accept = Callable[[int], bool] | None
HashFunction = Callable[[bytes, int], int]

#: Key of a full block: 64 bits over its content, chained through its parent's key, which is the seed.
hash_block: HashFunction = xxhash.xxh3_64_intdigest


@dataclass(slots=True, eq=False)
class BlockTable:
    """A running sequence's blocks.

    Attributes:
        ids: int32 array, block ids in order of position; ceil(computed tokens / block_size) of them.
        num_published: leading blocks that stand in the prefix cache's index.
        is_stuck: nothing from the next block on is published, nor hit: its key is taken by other content, or the
            sequence is computed without the prefix cache.
        salt: of the sequence's request; part of the first block's content.
        tail: what the sequence left here when it ran here last, as far as it has not been taken back.
    """

    salt: bytes = b""
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    num_published: int = 0
    is_stuck: bool = False
    tail: Tail | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """What `reserve` gave: everything a plan's row needs to know about the sequence.

    Attributes:
        start: position of the first token to compute.
        count: tokens to compute.
        store_from: positions below it are in the cache already and must not be written. Such a position is computed
            only for its logits: the last one of a full-prompt hit, and those that say how likely the prompt is.
        num_hits: blocks that came from the prefix cache.
        num_new: blocks that were allocated.
        num_own: blocks of its own tail.
    """

    start: int
    count: int
    store_from: int
    num_hits: int
    num_new: int
    num_own: int = 0


class BlockManager:
    """Owns the block ids of a pool.

    Args:
        num_blocks: ids run from 0 to num_blocks - 1.
        block_size: positions in a block.
        hash_function: (content, parent's key) -> key; tests force collisions with it.

    Attributes:
        ref_counts: tables each block stands in; 0 means free.
        keys: each block's entry in the index, None while it is not published.
        uids: name the content that a block has now, and are never used again; 0 where no name is needed. A published
            block has one, and so has a free block that is a waiting sequence's tail (`Tail`).
        contents: token ids of a published block as int32 bytes, behind the salt in the first block of a sequence;
            whatever was there last in one that is not published.
        parents, parent_uids: the block before it when it was published (NO_PARENT for a first block), and what that
            one held. A parent that was handed out anew is told from the one the child was built on.
        touched: blocks whose state may have changed, for who shows them; None while it is not shown.
    """

    def __init__(self, num_blocks: int, block_size: int, hash_function: HashFunction = hash_block) -> None:
        self._hash = hash_function
        self._block_bytes = TOKEN_BYTES * block_size
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ref_counts: list[int] = []
        self.keys: list[int | None] = []
        self.uids: list[int] = []
        self.contents: list[bytes] = []
        self.parents: list[int] = []
        self.parent_uids: list[int] = []
        self._index: dict[int, int] = {}
        # Free blocks, those to hand out first: blank, the last one freed; never used; named, the least recently freed.
        self._blank: list[int] = []
        self._first_unused = 0
        self._named: OrderedDict[int, None] = OrderedDict()
        self._last_uid = 0
        self.touched: dict[int, None] | None = None

    @property
    def num_free(self) -> int:
        """Blocks that stand in no table."""
        return len(self._blank) + self.num_blocks - self._first_unused + len(self._named)

    @property
    def num_cached(self) -> int:
        """Blocks that the index leads to, free or not."""
        return len(self._index)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` positions take."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` free blocks, which there must be, for a table whose tokens need no look into the cache."""
        blank = self._blank
        blocks = [blank.pop() for _ in range(min(count, len(blank)))]
        if (missing := count - len(blocks)) and (num_unused := min(missing, self.num_blocks - self._first_unused)):
            blocks += self._take_unused(num_unused)
            missing -= num_unused
        ref_counts = self.ref_counts
        for block in blocks:
            ref_counts[block] = 1
        if missing:
            popitem, keys, uids, index = self._named.popitem, self.keys, self.uids, self._index
            for _ in range(missing):
                block = popitem(last=False)[0]
                blocks.append(block)
                ref_counts[block] = 1
                key = keys[block]
                uids[block] = 0
                if key is not None:  # `_unpublish`, without the price of a call for each block
                    del index[key]
                    keys[block] = None
        if self.touched is not None:
            self.touched.update(dict.fromkeys(blocks))
        return blocks

    def states(self, blocks: Lists[int]) -> npt.NDArray[np.uint8]:
        """What these blocks are, each as its index in `BLOCK_STATES`. All of them have been used."""
        if isinstance(blocks, range):
            refs, uids = self.ref_counts[blocks.start : blocks.stop], self.uids[blocks.start : blocks.stop]
        else:
            refs = list(map(self.ref_counts.__getitem__, blocks))
            uids = list(map(self.uids.__getitem__, blocks))
        counts, named = np.array(refs, np.int64), np.array(uids, np.int64) != 0
        states: npt.NDArray[np.uint8] = np.where(counts > 0, np.minimum(counts, 2) + 1, named).astype(np.uint8)
        return states

    def first_key(self, content: bytes) -> int:
        """Key of a first block with this content: the sequence's salt, and its tokens as int32 bytes."""
        return self._hash(content, 0)

    def has_key(self, key: int) -> bool:
        """Whether a block with this key is published."""
        return key in self._index

    def match(self, table: BlockTable, raw: bytes, end: int = NO_POSITION) -> list[int]:
        """Published blocks that continue a table with the sequence's known tokens (invariant 5).

        Args:
            table: all of whose blocks are full and published.
            raw: all known tokens of the sequence, int32 bytes.
            end: blocks that begin at this position, or behind it, are not looked for.
        """
        size = self._block_bytes
        first = len(table.ids)
        key, uid = (self.keys[table.ids[-1]], self.uids[table.ids[-1]]) if first else (0, 0)
        hits: list[int] = []
        for start in range(first * size, min(len(raw) - size + 1, end * TOKEN_BYTES), size):
            content = raw[start : start + size] if start else table.salt + raw[:size]
            key = self._hash(content, key)  # type: ignore[arg-type]  # published, so not None
            block = self._index.get(key)
            if block is None or not self._holds(block, content, uid):
                break
            hits.append(block)
            uid = self.uids[block]
        return hits

    def reserve(
        self,
        table: BlockTable,
        raw: bytes,
        num_computed: int,
        budget: int,
        accept: Accept = None,
        wanted_from: int = NO_POSITION,
        *,
        may_hit: bool = True,
    ) -> Grant | None:
        """Take the blocks for a prompt's next tokens, all or nothing (invariant 2).

        Cached blocks that continue the table are pinned first, then those of its tail, and the rest is allocated, so
        how many tokens are left to compute is known only here; blocks that the grant fills are published (invariant 6).

        Args:
            table: of the sequence, `ceil(num_computed / block_size)` blocks.
            raw: all known tokens of the sequence, int32 bytes; more than `num_computed`.
            budget: compute at most this many tokens, at least 1.
            accept: of an admission, which needs room for all tokens; asked last, with how many blocks others hold too.
                Hits behind its grant count as taken, though nothing keeps them until its turn comes to them.
            wanted_from: the first position, `num_computed` at least, whose logits are wanted also if it is cached. A
                grant that ends before the hits do takes only the blocks that it has positions in.
            may_hit: False for a grant that has to begin at `num_computed`.

        Returns:
            The grant, or None with nothing changed when there are not enough free blocks, or `accept` says no.
        """
        size, length = self.block_size, len(raw) // TOKEN_BYTES
        held = len(table.ids)
        # An admission counts all hits. A later chunk looks as far as it can reach, or a prompt with many would take
        # time by the square of its length.
        end = NO_POSITION if accept is not None else wanted_from + budget
        # After a block that is not full, or one of its own that collided, nothing can be hit.
        is_open = may_hit and table.num_published == held and not table.is_stuck
        hits = self.match(table, raw, end) if is_open else []
        own, num_valid = self._own(table, held + len(hits)) if may_hit else ([], 0)
        # A published block is cached to its end, also one whose first positions only were computed, for their logits.
        cached = max(num_computed, (table.num_published + len(hits)) * size, num_valid)
        start = min(cached, length - 1, wanted_from)
        count = min(length - start, budget)
        needed = self.blocks_for(start + count)
        pinned = hits[: max(0, needed - held)]
        taken = own[: max(0, needed - held - len(pinned))]
        num_new = max(0, needed - held - len(pinned) - len(taken))
        counted = [*pinned, *taken] if accept is None else [*hits, *own]
        wanted = num_new if accept is None else self.blocks_for(length) - held - len(counted)
        num_shared = sum([self.ref_counts[block] > 0 for block in counted])
        if wanted > self.num_free - (len(counted) - num_shared) or (accept is not None and not accept(num_shared)):
            return None
        for block in pinned:
            self._pin(block)
        table.num_published += len(pinned)
        for block in taken:
            self._pin(block)
            self.uids[block] = 0  # like every block that a table has and that is not published
        table.ids.extend(pinned)
        table.ids.extend(taken)
        if num_new:
            table.ids.extend(self.allocate(num_new))
            table.tail = None  # what is left of it lies behind other blocks than those that it followed
        full = (start + count) // size
        self.publish(table, raw[: full * self._block_bytes], 0, may_merge=False)
        return Grant(start, count, cached, num_hits=len(pinned), num_new=num_new, num_own=len(taken))

    def _own(self, table: BlockTable, reach: int) -> tuple[list[int], int]:
        """What a table's tail adds to its first `reach` blocks: blocks, and how many positions are valid with them."""
        tail = table.tail
        if tail is None or reach < tail.first:
            return [], 0
        blocks: list[int] = []
        for block, uid in zip(tail.blocks[reach - tail.first :], tail.uids[reach - tail.first :], strict=True):
            if self.uids[block] != uid:
                break
            blocks.append(block)
        return blocks, min(tail.num_valid, (reach + len(blocks)) * self.block_size)

    def publish(self, table: BlockTable, raw: bytes, first: int, *, may_merge: bool) -> bool:
        """Enter a sequence's full blocks into the index (invariants 4 and 6).

        A block counts as full when the plans sent so far fill it: plans run in order, so a sequence that hits
        it in a later plan, or in the same one, reads what they wrote. Where an equal block lives already the table is
        pointed at that one and the duplicate released, which only a commit may do (`may_merge`): while a plan is
        being built, its rows still write the duplicate.

        Args:
            raw: the tokens of full blocks `first`, `first + 1`, ... as int32 bytes; `first` is at most
                `num_published`.

        Returns:
            Whether the table was pointed at another block.
        """
        if table.is_stuck:
            return False
        # Names for what the loop uses: it runs for each block of each prompt.
        ids, size, index, hash_function = table.ids, self._block_bytes, self._index, self._hash
        keys, uids, contents = self.keys, self.uids, self.contents
        parents, parent_uids = self.parents, self.parent_uids
        last_uid = self._last_uid
        merged = False
        i = table.num_published
        parent = ids[i - 1] if i else NO_PARENT
        parent_key, parent_uid = (keys[parent], uids[parent]) if i else (0, 0)
        for start in range((i - first) * size, len(raw), size):
            content = raw[start : start + size]
            if i == 0:
                content = table.salt + content
            block, key = ids[i], hash_function(content, parent_key)  # type: ignore[arg-type]  # published, so not None
            other = index.get(key)
            if other is not None and self.ref_counts[other] == 0 and not self._is_reachable(other):
                self._unpublish(other)  # a child of a block that is gone: no sequence can hit it any more
                other = None
            if other is None:
                last_uid += 1
                index[key] = block
                keys[block], uids[block], contents[block] = key, last_uid, content
                parents[block], parent_uids[block] = parent, parent_uid
                parent, parent_key, parent_uid = block, key, last_uid
            elif not self._holds(other, content, parent_uid):
                table.is_stuck = True  # a collision: first writer wins, this sequence's blocks stay its own
                break
            elif not may_merge:
                break
            else:
                self._pin(other)
                ids[i] = other
                self._drop(block)
                merged = True
                parent, parent_key, parent_uid = other, key, uids[other]
            i += 1
        table.num_published = i
        self._last_uid = last_uid
        return merged

    def release(self, table: BlockTable) -> None:
        """Give all of a table's blocks back; published ones keep their content until they are handed out."""
        for block in reversed(table.ids):  # tails are handed out before heads
            self._drop(block)
        table.ids = array("i")
        table.num_published = 0
        table.is_stuck = False
        table.tail = None

    def discard(self) -> None:
        """Nothing of this index is used any more; to be called when it is given up."""

    def forget(self, written: IntArray) -> None:
        """The content of these blocks is not known any more."""
        for block in written.tolist():
            if self.keys[block] is not None:
                self._unpublish(block)

    def spare(self, table: BlockTable) -> list[tuple[int, int]]:
        """Let what is not published of a table be handed out last, once it is released.

        Returns:
            These blocks and what names their content, for `unspare`.
        """
        spared = []
        for block in table.ids[table.num_published :]:
            self._last_uid += 1
            self.uids[block] = self._last_uid
            spared.append((block, self._last_uid))
        return spared

    def unspare(self, spared: Iterable[tuple[int, int]]) -> None:
        """What was spared is needed no more."""
        for block, uid in spared:
            if self.uids[block] == uid:
                if self.touched is not None:
                    self.touched[block] = None
                self.uids[block] = 0
                del self._named[block]
                self._blank.append(block)

    def keep_tail(self, origin: int, ids: "array[int]", num_valid: int) -> Tail | None:
        """Keep for a sequence what it leaves here and the index does not lead to, until its blocks are handed out.

        To be called after `forget`, and while a sequence that runs still has its table.

        Args:
            origin: see `Tail`.
            ids: of its table.
            num_valid: of its positions, from 0 on, those whose K and V are known to be there.

        Returns:
            None if there is nothing, or another sequence keeps it already.
        """
        end = self.blocks_for(num_valid)
        first = next((i for i in range(end) if self.keys[ids[i]] is None), end)
        blocks = ids[first:end]
        if not blocks or any(self.uids[block] for block in blocks):
            return None
        uids = tuple(range(self._last_uid + 1, self._last_uid + 1 + len(blocks)))
        self._last_uid = uids[-1]
        if self.touched is not None:
            self.touched.update(dict.fromkeys(blocks))
        for block, uid in zip(blocks, uids, strict=True):
            self.uids[block] = uid
            if self.ref_counts[block] == 0:
                self._blank.remove(block)
                self._named[block] = None
        return Tail(origin, first, blocks, uids, num_valid)

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Assert invariants 3 and 4, given all tables that hold blocks here."""
        held = [0] * self.num_blocks
        for table in tables:
            assert table.num_published <= len(table.ids)
            for i, block in enumerate(table.ids):
                held[block] += 1
                assert (i < table.num_published) <= (self.keys[block] is not None)
        assert self.ref_counts == held[: len(self.ref_counts)], "a block is counted wrongly"
        free = [*self._blank, *range(self._first_unused, self.num_blocks), *self._named]
        assert sorted(free) == [block for block, count in enumerate(held) if count == 0]
        for block, key in enumerate(self.keys):
            is_tail = key is None and block in self._named
            assert (self.uids[block] == 0) == (key is None and not is_tail)
            assert key is None or self._index[key] == block
        assert all(self.keys[block] == key for key, block in self._index.items())

    # --- inside ---

    def _holds(self, block: int, content: bytes, parent_uid: int) -> bool:
        """Whether a block's K and V are those of `content` after that parent (the key alone proves nothing)."""
        return self.parent_uids[block] == parent_uid and self.contents[block] == content

    def _is_reachable(self, block: int) -> bool:
        """Whether a block's parent still holds what it held when the block was published."""
        parent = self.parents[block]
        return parent == NO_PARENT or self.uids[parent] == self.parent_uids[block]

    def _take_unused(self, count: int) -> range:
        first, end = self._first_unused, self._first_unused + count
        self._first_unused = end
        if end > len(self.keys):
            more = min(max(end - len(self.keys), BOOKS_AT_ONCE), self.num_blocks - len(self.keys))
            for book in (self.ref_counts, self.uids, self.parent_uids):
                book.extend([0] * more)
            self.parents += [NO_PARENT] * more
            self.keys += [None] * more
            self.contents += [b""] * more
        return range(first, end)

    def _pin(self, block: int) -> None:
        if self.ref_counts[block] == 0:
            del self._named[block]
        self.ref_counts[block] += 1
        if self.touched is not None:
            self.touched[block] = None

    def _drop(self, block: int) -> None:
        if self.touched is not None:
            self.touched[block] = None
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            if self.uids[block]:
                self._named[block] = None
            else:
                self._blank.append(block)

    def _unpublish(self, block: int) -> None:
        key = self.keys[block]
        assert key is not None
        if self.touched is not None:
            self.touched[block] = None
        del self._index[key]
        self.keys[block] = None
        self.uids[block] = 0
        if self.ref_counts[block] == 0:
            del self._named[block]
            self._blank.append(block)
