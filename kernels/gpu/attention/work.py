"""How a step's attention is cut into items of work of like length: plain numpy on the host, nothing of the GPU.

A tile is some queries of one row, each with all query heads of a KV head. Its work is proportional to the positions
that it sees. A tile that sees many more than its share is cut along the positions into pieces, which the GPU computes
side by side and merges afterwards: Flash-Decoding (Dao et al. 2023, https://pytorch.org/blog/flash-decoding), here
from the real lengths of all rows, and for prompt chunks as well. That a plan is made on the host once a step and run
in every layer is FlashInfer's way (Ye et al. 2025, arXiv:2501.01005).

Items are handed out in the order of the list, so the longest come first and the last ones to finish are short ones.

The order in which a query's positions are summed up depends on its own context and on the number of pieces that its
tile is cut into, and on nothing else. Other rows of a step change that number only by the share of work that they
leave: a tile no longer than `slack * min_piece` is never cut. With a piece length of the caller's choice the number
depends on the tile alone.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

ITEM_FIELDS = 8
"""int32 of an item: row, first token, tokens, position of the first token, first position to see, end of the positions
to see, first partial result (-1: the result is final), zero. A row of -1 is no item at all."""
MERGE_FIELDS = 4
"""int32 of a merge: token, its first partial result, number of pieces, partial results from one piece to the next.
A token of -1 is no merge at all."""


@dataclass(frozen=True)
class WorkList:
    """Items of one kind of tile, and the merges that they leave to do.

    Attributes:
        items: [items, ITEM_FIELDS].
        merges: [merges, MERGE_FIELDS].
        num_partials: partial results, each a token's, that the items write.
    """

    items: Ints
    merges: Ints
    num_partials: int

    def padded(self, capacity: "Capacity") -> "WorkList":
        """The same work in lists of the capacity's length, as a captured graph needs them.

        Raises:
            ValueError: it does not fit.
        """
        for name, count, limit in (
            ("items", len(self.items), capacity.items),
            ("merges", len(self.merges), capacity.merges),
            ("partial results", self.num_partials, capacity.partials),
        ):
            if count > limit:
                raise ValueError(f"the work has {count} {name}, the capacity is {limit}")
        return WorkList(_pad(self.items, capacity.items), _pad(self.merges, capacity.merges), self.num_partials)


@dataclass(frozen=True)
class Capacity:
    """The most that lists can hold."""

    items: int
    merges: int
    partials: int


@dataclass(frozen=True)
class Cutting:
    """How rows become items of one kind of tile.

    Attributes:
        tile_queries: queries of a tile.
        step: positions that a program takes at once. Pieces start at multiples of it.
        slots: programs for one KV head that the GPU runs side by side.
        pieces_per_slot: into how many pieces a slot's share of the work is cut where tiles have to be cut. More even
            out better and leave more to merge.
        slack: tiles of up to this many pieces' length stay whole.
        min_piece: positions; below them starting and merging a piece costs more than it saves.
    """

    tile_queries: int
    step: int
    slots: int
    pieces_per_slot: int
    slack: int
    min_piece: int

    def limits(self, lengths: Ints) -> tuple[int, int]:
        """Positions of a tile that stays whole, and of a piece of one that does not, where tiles see `lengths`."""
        share = self._in_steps(int(lengths.sum(dtype=np.int64)) / (self.pieces_per_slot * self.slots))
        long = lengths[lengths > self.slack * share]
        if len(long) == 0:
            return self.slack * share, share
        # Each of these ends in a piece that is not full. Longer pieces make up for it and save one more round.
        long_len = int(long.sum(dtype=np.int64))
        full = long_len / share
        return self.slack * share, self._in_steps(long_len / max(full - len(long), full / 2))

    def _in_steps(self, positions: float) -> int:
        return math.ceil(max(positions, self.min_piece) / self.step) * self.step

    @property
    def max_partials(self) -> int:
        """Partial results of any number of tiles at most; see `capacity`."""
        return self.pieces_per_slot * self.slots * self.tile_queries

    def capacity(self, num_tiles: int, num_queries: int) -> Capacity:
        """What up to `num_tiles` tiles of up to `num_queries` queries fit into, however long their contexts are.

        Tiles that are cut have n = pieces_per_slot * slots pieces at most, all together: `limits` makes a piece so long
        that their lengths in pieces, each rounded up, add up to no more than what they come to in shares, and all
        tiles come to n shares at most. Where it stops at two shares, only tiles of more than two are cut, and half of
        such a length, rounded up, is less than the length. Each of them has two pieces or more.
        """
        pieces = self.pieces_per_slot * self.slots
        return Capacity(
            items=num_tiles + pieces - 1,
            merges=min(num_tiles, pieces // 2) * num_queries,
            partials=pieces * num_queries,
        )


@dataclass(frozen=True)
class RowColumns:
    """Columns of rows; the last query of one stands at position `context - 1`.

    Attributes:
        ids: [n] which row of the block tables each is.
        tokens: [n] first token of each in the step.
        queries, contexts: [n] lengths, `1 <= query <= context`.
    """

    ids: Ints
    tokens: Ints
    queries: Ints
    contexts: Ints

    def where(self, mask: NDArray[np.bool_]) -> "RowColumns":
        """Some of the rows."""
        return RowColumns(self.ids[mask], self.tokens[mask], self.queries[mask], self.contexts[mask])


@dataclass(frozen=True)
class _Tiles:
    """Columns of tiles: row, first token, tokens, position of the first token, positions that the last one sees."""

    rows: Ints
    tokens: Ints
    counts: Ints
    positions: Ints
    lengths: Ints

    def take(self, index: Ints) -> "_Tiles":
        return _Tiles(
            self.rows[index], self.tokens[index], self.counts[index], self.positions[index], self.lengths[index]
        )


def cut_rows(cutting: Cutting, rows: RowColumns, piece_len: int | None = None, first_partial: int = 0) -> WorkList:
    """Cut rows into items, the longest first.

    Args:
        cutting: the kind of tile.
        rows: to cut.
        piece_len: cut every tile that is longer into pieces of up to so many positions, a multiple of `step`,
            instead of what fills the GPU best. The order of summing up is then the same in any company.
        first_partial: number of the first partial result.

    Raises:
        ValueError: piece_len is no multiple of `step`.
    """
    tiles = _tiles(rows, cutting.tile_queries)
    if piece_len is None:
        whole_len, piece_len = cutting.limits(tiles.lengths)
    elif piece_len <= 0 or piece_len % cutting.step:
        raise ValueError(f"piece_len is {piece_len}, expected a positive multiple of {cutting.step}")
    else:
        whole_len = piece_len
    if int(tiles.lengths.max(initial=0)) <= whole_len:
        items = _items(tiles, np.zeros_like(tiles.lengths), tiles.lengths, np.full_like(tiles.lengths, -1))
        return WorkList(_longest_first(items), np.empty((0, MERGE_FIELDS), np.int32), 0)
    return _cut_tiles(tiles, cutting.step, whole_len, piece_len, first_partial)


def _tiles(rows: RowColumns, tile_queries: int) -> _Tiles:
    if int(rows.queries.max(initial=0)) <= tile_queries:
        return _Tiles(rows.ids, rows.tokens, rows.queries, rows.contexts - rows.queries, rows.contexts)
    row, tile = _expand(-(-rows.queries // tile_queries))
    first_query = tile * tile_queries
    counts = np.minimum(rows.queries[row] - first_query, tile_queries)
    positions = (rows.contexts - rows.queries)[row] + first_query
    return _Tiles(rows.ids[row], rows.tokens[row] + first_query, counts, positions, positions + counts)


def _cut_tiles(tiles: _Tiles, step: int, whole_len: int, piece_len: int, first_partial: int) -> WorkList:
    # Pieces of a tile are of even length: only their number depends on other rows.
    wanted = np.where(tiles.lengths > whole_len, -(-tiles.lengths // piece_len), 1)
    even_len = (-(-tiles.lengths // (wanted * step)) * step).astype(np.int32)
    pieces = -(-tiles.lengths // even_len)
    is_cut = pieces > 1

    partials = np.where(is_cut, pieces * tiles.counts, 0)
    ends = np.cumsum(partials, dtype=np.int32)
    first = (ends - partials + first_partial).astype(np.int32)

    tile, piece = _expand(pieces)
    starts = piece * even_len[tile]
    of_item = tiles.take(tile)
    partial = np.where(is_cut[tile], first[tile] + piece * of_item.counts, -1)
    items = _items(of_item, starts, np.minimum(starts + even_len[tile], of_item.lengths), partial)

    merged = np.flatnonzero(is_cut)
    entry, query = _expand(tiles.counts[merged])
    owner = merged[entry]
    merges = np.stack((tiles.tokens[owner] + query, first[owner] + query, pieces[owner], tiles.counts[owner]), axis=1)
    return WorkList(_longest_first(items), merges.astype(np.int32), int(ends[-1]))


def _items(tiles: _Tiles, starts: Ints, ends: Ints, partials: Ints) -> Ints:
    items = np.zeros((len(starts), ITEM_FIELDS), np.int32)
    for field, column in enumerate((tiles.rows, tiles.tokens, tiles.counts, tiles.positions, starts, ends, partials)):
        items[:, field] = column
    return items


def _longest_first(items: Ints) -> Ints:
    return items[np.argsort(items[:, 4] - items[:, 5], kind="stable")]


def _expand(counts: Ints) -> tuple[Ints, Ints]:
    """0, 0, 0, 1, 2, 2 and 0, 1, 2, 0, 0, 1 from 3, 1, 2."""
    owner = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    firsts = np.cumsum(counts, dtype=np.int32) - counts.astype(np.int32)
    return owner, np.arange(len(owner), dtype=np.int32) - firsts[owner]


def _pad(entries: Ints, length: int) -> Ints:
    padded = np.full((length, entries.shape[1]), -1, np.int32)
    padded[: len(entries)] = entries
    return padded
