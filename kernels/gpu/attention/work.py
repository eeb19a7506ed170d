"""How a step's attention is cut into items of work that end together: plain numpy on the host, nothing of the GPU.

A tile is some queries of one row, each with all query heads of a KV head. Its work is proportional to the positions
that it sees. A long tile is cut along the positions into pieces, which the GPU computes side by side; the program that
ends last among them merges their results. This is Flash-Decoding (Dao et al. 2023,
https://pytorch.org/blog/flash-decoding), here from the real lengths of all rows, and for prompt chunks as well. That a
plan is made on the host once a step and run in every layer is FlashInfer's way (Ye et al. 2025, arXiv:2501.01005).

The GPU takes items in the order of the list, the longest first. A tile is cut so that its pieces end when an even share
of all work ends: each takes no more than a slot's share of the work that is left when the tile's turn comes (guided
self-scheduling, Polychronopoulos and Kuck 1987). So tiles at the head of the list stay whole, and those at its end are
cut the more finely the less work comes after them.

The order in which a query's positions are summed up depends on its own context and on the number of pieces that its
tile is cut into, and on nothing else. Other rows of a step, and the row's place among rows of the same length, change
that number alone: a tile no longer than `whole_len` is never cut. With a piece length of the caller's choice the number
depends on the tile alone.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

ITEM_FIELDS = 10
"""int32 of an item: row, first token, tokens, position of the first token, first position to see, end of the positions
to see, first partial result of the tile (-1: the tile is whole and the result final), which piece of the tile it is,
number of pieces, zero. A row of -1 is no item at all."""
_ONE_WAVE_LENGTHS = 8  # of pieces that are tried, before the rows count as too uneven for one wave
_ONE_WAVE_EXCESS = 1.25  # over an even share, at most


@dataclass(frozen=True)
class WorkList:
    """Items of one kind of tile.

    Attributes:
        items: [items, ITEM_FIELDS]. The partial results of a tile's pieces follow each other.
        num_partials: partial results, each a token's, that the items write.
    """

    items: Ints
    num_partials: int

    def padded(self, capacity: "Capacity") -> "WorkList":
        """The same work in a list of the capacity's length, as a captured graph needs it.

        Raises:
            ValueError: it does not fit.
        """
        for name, count, limit in (
            ("items", len(self.items), capacity.items),
            ("partial results", self.num_partials, capacity.partials),
        ):
            if count > limit:
                raise ValueError(f"the work has {count} {name}, the capacity is {limit}")
        padded = np.full((capacity.items, ITEM_FIELDS), -1, np.int32)
        padded[: len(self.items)] = self.items
        return WorkList(padded, self.num_partials)


@dataclass(frozen=True)
class Capacity:
    """The most that lists can hold."""

    items: int
    partials: int


@dataclass(frozen=True)
class Cutting:
    """How rows become items of one kind of tile.

    Attributes:
        tile_queries: queries of a tile.
        group: query heads of a KV head, so that a query is so many lines of a tile.
        step: positions that a program takes at once. Pieces start at multiples of it.
        slots: programs for one KV head that the GPU runs side by side.
        grain: into how many pieces a slot's even share of all work is cut at most, which bounds their number. The last
            items to end are as long as such a piece.
        whole_len: positions of a tile that is never cut: merging its pieces costs more than cutting it saves.
        min_piece: positions of a piece, where there are more pieces than slots. Where there are not, it is `step`.
    """

    tile_queries: int
    group: int
    step: int
    slots: int
    grain: int
    whole_len: int
    min_piece: int

    def pieces(self, lengths: Ints, queries: Ints) -> Ints:
        """Into how many pieces to cut each tile.

        All pieces have one length if they all run at once then, each on a slot, and none is much longer than a slot's
        share of the work. Else guided self-scheduling says how long a tile's pieces may be.

        Args:
            lengths: [tiles] positions that each tile sees, the most first.
            queries: [tiles] of each.
        """
        left = np.cumsum(lengths[::-1], dtype=np.int64)[::-1]
        share = int(left[0]) / self.slots
        if len(lengths) <= self.slots and (wanted := self._one_wave(lengths, queries, share)) is not None:
            return wanted
        piece = np.maximum(left / self.slots, max(share / self.grain, self.min_piece))
        return self._limited(np.ceil(lengths / (np.ceil(piece / self.step) * self.step)), lengths, queries)

    def _one_wave(self, lengths: Ints, queries: Ints, share: float) -> Ints | None:
        """Numbers of pieces, of the least length of which no more than `slots` are needed; None if that is too long."""
        first, apart = (math.ceil(max(len_, self.step) / self.step) * self.step for len_ in (share, share / 32))
        tried = first + apart * np.arange(_ONE_WAVE_LENGTHS)
        tried = tried[tried <= max(_ONE_WAVE_EXCESS * share, share + self.step)]
        counts = self._limited(-(-lengths // tried[:, None]), lengths, queries)
        fitting = np.flatnonzero(counts.sum(axis=1) <= self.slots)
        return counts[fitting[0]] if len(fitting) else None

    def _limited(self, wanted: NDArray[np.number], lengths: Ints, queries: Ints) -> Ints:
        """No more pieces than are worth it; `wanted` has the tiles in its last dimension."""
        counts = np.where(lengths > self.whole_len, wanted, 1).astype(np.int32)
        # One program merges all pieces of a tile. With so many of them that takes about as long as to compute a piece,
        # if a program reads a line of a result in the time of half a position (an estimate for an H100).
        lines = self.tile_queries * self.group
        if counts.max() ** 2 * lines > 2 * self.whole_len:
            counts = np.minimum(counts, np.sqrt(2 * lengths / (queries * self.group)).astype(np.int32).clip(1))
        return counts

    @property
    def max_partials(self) -> int:
        """Partial results of any number of tiles at most; see `capacity`."""
        return 2 * self._most_more * self.tile_queries

    def capacity(self, num_tiles: int, num_queries: int) -> Capacity:
        """What up to `num_tiles` tiles of up to `num_queries` queries fit into, however long their contexts are.

        Let W be all work, and R what is left of it when a tile's turn comes, the tile included. A tile of n pieces has
        n - 1 < length * min(slots / R, slots * grain / W). The sum over all tiles is a lower sum of the integral of
        min(slots / r, slots * grain / W) for r from 0 to W, which is slots * (1 + ln grain). No tile has more than
        `slots` pieces, since R is its length or more. Pieces that run at once are no more than the slots. A tile that
        is cut has two pieces or more, so the pieces of these tiles are at most twice what was added by cutting.
        """
        more = min(self._most_more, num_tiles * (self.slots - 1))
        return Capacity(items=num_tiles + more, partials=(more + min(num_tiles, more)) * num_queries)

    @property
    def _most_more(self) -> int:
        """Items that any number of tiles are cut into at most, more than there are tiles."""
        return math.floor(self.slots * (1 + math.log(self.grain)))


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
    if piece_len is not None and (piece_len <= 0 or piece_len % cutting.step):
        raise ValueError(f"piece_len is {piece_len}, expected a positive multiple of {cutting.step}")
    tiles = _whole_tiles(rows, cutting.tile_queries)
    tiles = tiles[np.argsort(-tiles[:, 5], kind="stable")]
    lengths, queries = tiles[:, 5].copy(), tiles[:, 2].copy()
    if piece_len is not None:
        wanted = -(-lengths // piece_len)
    elif len(tiles):
        wanted = cutting.pieces(lengths, queries)
    else:
        wanted = lengths
    if wanted.max(initial=1) == 1:
        return WorkList(tiles, 0)
    # Pieces of a tile are of even length: only their number depends on other rows.
    even_len = -(-lengths // (wanted * cutting.step)) * cutting.step
    pieces = -(-lengths // even_len)
    partials = np.where(pieces > 1, pieces * queries, 0)
    last_partial, last_piece = np.cumsum(partials), np.cumsum(pieces)
    tiles[:, 4] = even_len
    tiles[:, 6] = np.where(pieces > 1, last_partial - partials + first_partial, -1)
    tiles[:, 7] = last_piece - pieces
    tiles[:, 8] = pieces
    items = np.repeat(tiles, pieces, axis=0)
    even_len = items[:, 4].copy()
    items[:, 7] = np.arange(len(items)) - items[:, 7]
    items[:, 4] = items[:, 7] * even_len
    items[:, 5] = np.minimum(items[:, 4] + even_len, items[:, 5])
    return WorkList(items[np.argsort(items[:, 4] - items[:, 5], kind="stable")], int(last_partial[-1]))


def _whole_tiles(rows: RowColumns, tile_queries: int) -> Ints:
    """Items of tiles that are not cut, in the order of the rows."""
    first_positions = rows.contexts - rows.queries
    if int(rows.queries.max(initial=0)) <= tile_queries:
        return _whole_items(rows.ids, rows.tokens, rows.queries, first_positions)
    row, tile = _expand(-(-rows.queries // tile_queries))
    first_query = tile * tile_queries
    counts = np.minimum(rows.queries[row] - first_query, tile_queries)
    return _whole_items(rows.ids[row], rows.tokens[row] + first_query, counts, first_positions[row] + first_query)


def _whole_items(ids: Ints, tokens: Ints, counts: Ints, positions: Ints) -> Ints:
    items = np.zeros((len(ids), ITEM_FIELDS), np.int32)
    for field, column in enumerate((ids, tokens, counts, positions)):
        items[:, field] = column
    items[:, 5] = positions + counts
    items[:, 6] = -1
    items[:, 8] = 1
    return items


def _expand(counts: Ints) -> tuple[Ints, Ints]:
    """0, 0, 0, 1, 2, 2 and 0, 1, 2, 0, 0, 1 from 3, 1, 2."""
    owner = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    firsts = np.cumsum(counts, dtype=np.int32) - counts.astype(np.int32)
    return owner, np.arange(len(owner), dtype=np.int32) - firsts[owner]
