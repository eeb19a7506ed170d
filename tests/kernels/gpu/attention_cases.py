"""Batches for paged attention, with traps in the memory that no kernel may read, and what has to come out of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.arguments import KVCache
from kernels.gpu.attention.paged_attention import PagedAttention
from kernels.gpu.attention.plan import AttentionPlan, AttentionShape, AttentionTiles, choose_tiles

SMALL = AttentionShape(4, 2, 64, 16, torch.float16)
Lens = list[tuple[int, int]]


@dataclass(frozen=True)
class Case:
    """A batch.

    Attributes:
        lens: (query_len, context_len) of each row.
        shape: of attention.
        seed: of all values.
        flash_layout: in memory the heads of a position lie together.
        spare_columns: of the block tables, beyond what the longest row needs.
    """

    lens: Lens
    shape: AttentionShape
    seed: int = 0
    flash_layout: bool = False
    spare_columns: int = 1


class Batch:
    """The tensors of a case: random values, and NaN in all slots of the cache that hold no position of any row.

    Block tables are padded with a block beyond the cache, and that block is full of NaN.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        shape, self._random = case.shape, torch.Generator(device).manual_seed(case.seed)
        self._device = device
        self.query_lens, self.context_lens = (np.array([pair[i] for pair in case.lens], np.int32) for i in range(2))
        counts = -(-self.context_lens // shape.block_size)
        num_blocks = int(counts.sum()) + 2
        ids = np.random.default_rng(case.seed).permutation(num_blocks)
        tables = np.full((len(counts), int(counts.max()) + case.spare_columns), num_blocks, np.int32)
        for row, count in enumerate(counts):
            tables[row, :count], ids = ids[:count], ids[count:]
        self.block_tables = torch.from_numpy(tables).to(device)
        self.cache = KVCache(*(self._new_cache(num_blocks, tables) for _ in range(2)))
        self.query = self._randn(int(self.query_lens.sum()), shape.num_heads, shape.head_dim)
        self.scale = shape.head_dim**-0.5

    def _randn(self, *shape: int) -> Tensor:
        dtype = self.case.shape.dtype
        return torch.randn(shape, generator=self._random, device=self._device, dtype=torch.float32).to(dtype)

    def _new_cache(self, num_blocks: int, tables: np.ndarray) -> Tensor:
        shape = self.case.shape
        sizes = (num_blocks + 1, shape.num_kv_heads, shape.block_size, shape.head_dim)
        cache = torch.full(sizes, torch.nan, dtype=shape.dtype, device=self._device)
        if self.case.flash_layout:
            cache = cache.transpose(1, 2).contiguous().transpose(1, 2)
        rows = np.repeat(np.arange(len(self.context_lens)), self.context_lens)
        firsts = np.cumsum(self.context_lens) - self.context_lens
        positions = np.arange(len(rows)) - firsts[rows]
        blocks = torch.from_numpy(tables[rows, positions // shape.block_size]).long().to(self._device)
        places = torch.from_numpy(positions % shape.block_size).to(self._device)
        # One write for all blocks: on a GPU tens of thousands would take longer than what is tested.
        cache.transpose(1, 2)[blocks, places] = self._randn(len(rows), shape.num_kv_heads, shape.head_dim)
        return cache[:num_blocks]

    @property
    def query_starts(self) -> Tensor:
        starts = np.concatenate(([0], np.cumsum(self.query_lens))).astype(np.int32)
        return torch.from_numpy(starts).to(self._device)

    @property
    def lens_on_device(self) -> Tensor:
        return torch.from_numpy(self.context_lens).to(self._device)

    @cached_property
    def expected(self) -> Tensor:
        """[tokens, heads, head_dim] float64, by the definition: query by query of each row, no blocks and no tiles."""
        shape, out, token = self.case.shape, [], 0
        for row, (query_len, context) in enumerate(self.case.lens):
            blocks = self.block_tables[row, : -(-context // shape.block_size)].long()
            key, value = (
                cache[blocks].transpose(1, 2).flatten(0, 1)[:context].double().repeat_interleave(shape.group, 1)
                for cache in (self.cache.keys, self.cache.values)
            )
            query = self.query[token : token + query_len].double()
            token += query_len
            positions = torch.arange(context, device=self._device)
            visible = positions <= positions[context - query_len :, None]
            for first in range(0, query_len, 512):  # 128k of context would not fit at once
                part = slice(first, first + 512)
                scores = torch.einsum("qhd,khd->hqk", query[part], key) * self.scale
                weights = scores.masked_fill_(~visible[part], -torch.inf).softmax(-1)
                out.append(torch.einsum("hqk,khd->qhd", weights, value))
        return torch.cat(out)


def attend_arguments(batch: Batch, plan: Any) -> dict[str, Any]:
    """What `attend` takes, each tensor by itself: for a test that spoils one of them."""
    return {
        "query": batch.query,
        "key_cache": batch.cache.keys,
        "value_cache": batch.cache.values,
        "block_tables": batch.block_tables,
        "plan": plan,
        "work": torch.from_numpy(plan.work).to(batch.query.device),
        "scale": 1.0,
        "out": torch.empty_like(batch.query),
    }


def attend_with(attention: Any, arguments: dict[str, Any]) -> Tensor:
    """`attend` with arguments of the form above."""
    query, key_cache, value_cache, block_tables, plan, work, scale, out = arguments.values()
    cache, step = attention.view_cache(KVCache(key_cache, value_cache)), attention.stage(plan, work, block_tables)
    return attention.attend(query, cache, step, scale, out)


def exact_tiles(shape: AttentionShape, num_queries: int) -> AttentionTiles:
    """Both kinds of tile in float32, so that an error of a millionth shows."""
    return AttentionTiles(
        16 if num_queries * shape.group <= 16 else 64, 32, num_warps=4, num_stages=2, programs_per_sm=1
    )


def attend(batch: Batch, num_sms: int = 1, spare_tokens: int = 0, **options: object) -> Tensor:
    """The batch's attention, from the plan to the result."""
    shape, device = batch.case.shape, batch.query.device
    choose = exact_tiles if shape.dtype == torch.float32 else choose_tiles
    attention = PagedAttention(shape, num_sms, device, choose, max_partials=4096)
    return run(attention, attention.plan(batch.query_lens, batch.context_lens, **options), batch, spare_tokens)


def run(attention: PagedAttention, plan: AttentionPlan, batch: Batch, spare_tokens: int = 0) -> Tensor:
    work = torch.from_numpy(plan.work).to(batch.query.device)
    query = torch.cat((batch.query, torch.full_like(batch.query[:1], torch.nan).expand(spare_tokens, -1, -1)))
    out = torch.full_like(query, torch.nan)
    step = attention.stage(plan, work, batch.block_tables)
    assert attention.attend(query, attention.view_cache(batch.cache), step, batch.scale, out) is out
    return out


def check(batch: Batch, out: Tensor) -> None:
    error = (out.double() - batch.expected).abs().max().item()
    limit = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[out.dtype]
    assert error < limit
