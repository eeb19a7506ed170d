"""A step's attention as launches of the Triton kernel: which tiles, how many programs, which work is whose."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.gpu.attention.work import Capacity, Cutting, Ints, RowColumns, cut_rows
from kernels.gpu.checks import check_power_of_two, check_range

HEAD_DIMS = (16, 32, 64, 128)
NARROW_LINES = 16
"""Lines of the smallest tile: queries times query heads of a KV head."""
_L2_SHARE_BYTES = 24 * 2**20  # half of an H100's or H200's L2 cache


@dataclass(frozen=True)
class AttentionShape:
    """What attention sees of a model, or of one rank's part of it, and of the KV cache.

    Attributes:
        num_heads, num_kv_heads: query heads, a multiple of the KV heads by 1 to 16.
        head_dim: one of `HEAD_DIMS`.
        block_size: positions of a block, a power of two from 16 up.
        dtype: of queries, caches and results: bfloat16, float16, or float32 (slow: for tests and debugging).

    Raises:
        ValueError: no kernel fits.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads or not 1 <= self.group <= NARROW_LINES:
            raise ValueError(
                f"num_heads is {self.num_heads} and num_kv_heads {self.num_kv_heads}, "
                f"expected 1 to {NARROW_LINES} query heads for each KV head"
            )
        check_power_of_two("head_dim", self.head_dim, 16, 128)
        check_power_of_two("block_size", self.block_size, 16, 2**20)
        if self.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise ValueError(f"dtype is {self.dtype}, expected bfloat16, float16 or float32")

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class AttentionTiles:
    """What a program takes, and how it is compiled.

    Attributes:
        block_m: lines of a tile, 16 or more.
        block_n: positions taken at once.
        num_warps, num_stages: Triton's; stages are the tiles of K and V on their way, plus the one in use.
        programs_per_sm: that a Hopper SM holds at a time, by their shared memory and registers.
        max_registers: of a thread, with which so many programs fit. Unless told, ptxas may aim lower, and spill.
        grain: see `Cutting`.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    programs_per_sm: int
    max_registers: int | None = None
    grain: int = 2


_NARROW = AttentionTiles(NARROW_LINES, 128, num_warps=4, num_stages=2, programs_per_sm=3, max_registers=168, grain=16)
_NARROW_OF_64 = replace(_NARROW, num_stages=3)  # of head_dim 64
_NARROW_OF_32 = replace(_NARROW_OF_64, programs_per_sm=2, max_registers=255)  # and less
_MIDDLE = AttentionTiles(64, 64, num_warps=4, num_stages=3, programs_per_sm=2, max_registers=255)
_MIDDLE_OF_64 = replace(_MIDDLE, programs_per_sm=3, max_registers=168)
_WIDE = AttentionTiles(128, 64, num_warps=8, num_stages=3, programs_per_sm=1, max_registers=255)
_WIDE_OF_64 = replace(_WIDE, programs_per_sm=2, max_registers=None)
# Not for tensor cores, and twice the shared memory: for tests and debugging.
_FLOAT32 = AttentionTiles(NARROW_LINES, 16, num_warps=4, num_stages=2, programs_per_sm=2, grain=16)
_FLOAT32_OF_64 = replace(_FLOAT32, block_n=32)


def choose_tiles(shape: AttentionShape, num_queries: int) -> AttentionTiles:
    """The configuration for rows of up to `num_queries` queries.

    None of them spills registers on sm_80, 90 or 100, compiled by Triton 3.6 or 3.9. `AttentionTiles(128, 128, 8, 2,
    1)` takes a quarter fewer instructions for a position and may be faster for blocks of 128 or more on Hopper, where
    it just fits the registers; on sm_100 it spills.

    A narrow tile of 128 positions takes a fifth fewer instructions for a position than one of 64 (Triton 3.6, sm_90),
    and as many bytes are on their way, in as much shared memory. bench_kernels compares both (`narrow_64`). The partial
    results of wide tiles are as big as 128 positions of K and V, so these are cut less finely.
    """
    lines = num_queries * shape.group
    small_head = shape.head_dim <= 64
    if shape.dtype == torch.float32:
        return _FLOAT32_OF_64 if small_head else _FLOAT32
    if lines <= NARROW_LINES:
        if small_head:
            return _NARROW_OF_64 if shape.head_dim == 64 else _NARROW_OF_32
        return _NARROW
    if lines <= 64:
        return _MIDDLE_OF_64 if small_head else _MIDDLE
    return _WIDE_OF_64 if small_head else _WIDE


ChooseTiles = Callable[[AttentionShape, int], AttentionTiles]


@dataclass(frozen=True)
class GraphBounds:
    """What the steps that replay one CUDA graph may be.

    Attributes:
        max_rows: rows of a step.
        max_context_len: positions that a row sees.
        max_query_len: queries of a row.
    """

    max_rows: int
    max_context_len: int
    max_query_len: int = 1

    def check(self, query_lens: Ints, context_lens: Ints) -> None:
        """Raise ValueError unless a step is within the bounds."""
        check_range("number of rows", len(query_lens), 0, self.max_rows)
        check_range("longest context", int(context_lens.max(initial=0)), 0, self.max_context_len)
        check_range("most queries of a row", int(query_lens.max(initial=0)), 0, self.max_query_len)


@dataclass(frozen=True)
class Launch:
    """One launch of the attention kernel.

    Attributes:
        config: what each program takes.
        first_item, num_items: its part of the plan's items.
        heads_at_once: KV heads whose programs run side by side, a divisor of their number.
    """

    config: AttentionTiles
    first_item: int
    num_items: int
    heads_at_once: int


@dataclass(frozen=True)
class AttentionPlan:
    """A step's attention, the same in every layer.

    Attributes:
        work: [n] int32, the items of all launches.
        launches: of the attention kernel.
    """

    work: Ints
    launches: tuple[Launch, ...]


def checked_lens(query_lens: NDArray[np.integer], context_lens: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Both as int32; raise ValueError unless `1 <= query_len <= context_len` for each row."""
    queries, contexts = query_lens.astype(np.int32), context_lens.astype(np.int32)
    if len(queries) != len(contexts) or (queries < 1).any() or (queries > contexts).any():
        raise ValueError(f"query_lens {query_lens}, context_lens {context_lens}: expected 1 <= query <= context")
    return queries, contexts


@dataclass(frozen=True)
class StagedPlan:
    """A step's plan on the device, see `PagedAttention.stage`."""

    plan: AttentionPlan
    work: Tensor
    block_tables: Tensor


class AttentionPlanner:
    """Plans steps for one shape of attention on one kind of GPU.

    Args:
        shape: of the model and its cache.
        num_sms: multiprocessors to fill.
        choose: picks configurations.
    """

    def __init__(self, shape: AttentionShape, num_sms: int, choose: ChooseTiles = choose_tiles) -> None:
        self._shape = shape
        self._num_sms = num_sms
        self._choose = choose
        self._narrow_queries = NARROW_LINES // shape.group

    @property
    def max_partials(self) -> int:
        """Partial results that plans without a `piece_len` need at most."""
        queries = (self._narrow_queries, 64 // self._shape.group, 2**20)
        narrow, *wide = (self._cutting(self._choose(self._shape, most)).max_partials for most in queries)
        return narrow + max(wide)

    def capacity(self, graph: GraphBounds) -> Capacity:
        """What all steps of a graph fit into.

        Raises:
            ValueError: rows of as many queries do not fit a tile of `NARROW_LINES`.
        """
        check_range("max_query_len of a graph", graph.max_query_len, 1, self._narrow_queries)
        config = self._choose(self._shape, self._narrow_queries)
        return self._cutting(config).capacity(graph.max_rows, graph.max_query_len)

    def plan(
        self,
        query_lens: NDArray[np.integer],
        context_lens: NDArray[np.integer],
        graph: GraphBounds | None = None,
        piece_len: int | None = None,
        one_launch: bool = False,
        max_partials: int | None = None,
    ) -> AttentionPlan:
        """See `PagedAttention.plan`; the partial results are at most `max_partials`."""
        queries, contexts = checked_lens(query_lens, context_lens)
        most_queries, longest = int(queries.max(initial=1)), int(contexts.max(initial=0))
        if graph is not None:
            graph.check(queries, contexts)
        ids, tokens = np.arange(len(queries), dtype=np.int32), np.cumsum(queries, dtype=np.int32) - queries
        lists, launches, first_item, first_partial = [], [], 0, 0
        for max_queries, rows in self._by_tiles(RowColumns(ids, tokens, queries, contexts), most_queries, one_launch):
            config = self._choose(self._shape, max_queries)
            found = cut_rows(self._cutting(config), rows, piece_len, first_partial)
            if graph is not None:
                found = found.padded(self.capacity(graph))
            lists.append(found)
            launches.append(Launch(config, first_item, len(found.items), self._heads_at_once(config, longest)))
            first_item += len(found.items)
            first_partial += found.num_partials
        if max_partials is not None and first_partial > max_partials:
            raise ValueError(f"the step has {first_partial} partial results, there is room for {max_partials}")
        work = np.concatenate([found.items.ravel() for found in lists])
        return AttentionPlan(work, tuple(launch for launch in launches if launch.num_items))

    def _by_tiles(self, rows: RowColumns, most_queries: int, one_launch: bool) -> Iterator[tuple[int, RowColumns]]:
        """Rows that take the same tiles, and the most queries that their tiles are chosen for."""
        narrow = rows.queries <= self._narrow_queries
        if not one_launch and most_queries > self._narrow_queries and narrow.any():
            yield self._narrow_queries, rows.where(narrow)
            yield most_queries, rows.where(~narrow)
        else:
            yield max(most_queries, self._narrow_queries), rows

    def _cutting(self, config: AttentionTiles) -> Cutting:
        narrow = config.block_m == NARROW_LINES
        return Cutting(
            tile_queries=config.block_m // self._shape.group,
            group=self._shape.group,
            step=config.block_n,
            slots=max(1, self._num_sms * config.programs_per_sm // self._shape.num_kv_heads),
            grain=config.grain,
            whole_len=512 if narrow else 1024,
            min_piece=256 if narrow else 512,
        )

    def _heads_at_once(self, config: AttentionTiles, longest: int) -> int:
        """All heads of a narrow tile; so many of a wide one as let the longest context stay in the L2 cache."""
        num_heads = self._shape.num_kv_heads
        if config.block_m == NARROW_LINES:
            return num_heads
        fitting = _L2_SHARE_BYTES // (2 * longest * self._shape.head_dim * self._shape.dtype.itemsize)
        return max((heads for heads in range(1, min(fitting, num_heads) + 1) if num_heads % heads == 0), default=1)
