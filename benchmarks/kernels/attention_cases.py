"""Cases of paged attention: decodes, prompts, and steps of both. Block tables are random, as after hours of serving."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from benchmarks.kernels.cases import (
    INDEX_BYTES,
    ITEM_BYTES,
    Contestant,
    KernelCase,
    ModelShape,
    Tensors,
    indices,
    normal,
)
from benchmarks.rig.gpu_timing import Call
from kernels.arguments import KVCache
from kernels.gpu.attention.flash_attention import LEAST_BLOCK_SIZE, FlashAttention
from kernels.gpu.attention.paged_attention import PagedAttention
from kernels.gpu.attention.plan import AttentionShape, AttentionTiles

BATCHES = (1, 32, 256)
CONTEXTS = (128, 1024, 8192, 32_768)
SDPA_BYTES = 2**31  # of the contiguous copy of K and V that torch's own attention needs; cases above are left out

Row = tuple[int, int]
"""How many queries a row has, and how many positions its last one sees."""


def attention_cases(model: ModelShape, quick: bool) -> Iterator[KernelCase]:
    """Decodes at all batches and contexts, and prefills, with blocks of 256 (which flash-attn needs) and of 16."""
    decodes = ((256, 1024), (32, 8192)) if quick else [(rows, context) for rows in BATCHES for context in CONTEXTS]
    for block_size in (256, 16):
        for rows, context in decodes:
            yield attention_case(model, "decode", [(1, context)] * rows, block_size)
        for rows, context in ((1, 8192), (8, 1024)):
            yield attention_case(model, "prefill", [(context, context)] * rows, block_size)
        # Decodes, whole prompts, and a chunk of a prompt most of which is cached.
        mixed = [(1, 512 + 16 * row) for row in range(128)] + [(1024, 1024)] * 4 + [(2048, 6144)]
        yield attention_case(model, "mixed", mixed, block_size)
    # As in an executor without flash-attn. The last one is like a step in the middle of nano-vllm's workload.
    ragged = [(1, 1 + 10 * row) for row in range(128)]
    for step in ([(1, 1024)] * 256, [(1, 8192)] * 32, [(1, 640)] * 16, [(1, 8192)], ragged):
        yield attention_case(model, "decode", step, 16, heads_first=True)


def attention_case(
    model: ModelShape, phase: str, rows: Sequence[Row], block_size: int, heads_first: bool = False
) -> KernelCase:
    """A case of attention: one step with these rows.

    Args:
        model: its shape.
        phase: the step in a word.
        rows: of the step.
        block_size: of the cache.
        heads_first: whether a block holds one head's positions together, instead of one position's heads. Decodes of
            such blocks are also measured with the other tiles of `VARIANTS`.
    """
    tokens = sum(queries for queries, _ in rows)
    contexts = [context for _, context in rows]
    tables = [-(-context // block_size) for context in contexts]

    def tensors(device: torch.device) -> Tensors:
        query = normal(device, tokens, model.heads, model.head_dim)
        blocks = torch.split(torch.randperm(sum(tables)), tables)
        starts = torch.tensor([0] + [queries for queries, _ in rows]).cumsum(0)
        return {
            "query": query,
            "key_cache": _cache(model, sum(tables), block_size, heads_first, device),
            "value_cache": _cache(model, sum(tables), block_size, heads_first, device),
            "block_tables": indices(torch.nn.utils.rnn.pad_sequence(list(blocks), batch_first=True), device),
            "context_lens": indices(contexts, device),
            "query_starts": indices(starts, device),
            "out": torch.empty_like(query),
        }

    vectors = 2 * tokens * model.heads + 2 * sum(contexts) * model.kv_heads  # queries and results, keys and values
    numbers = sum(tables) + len(rows) + len(rows) + 1
    pairs = sum(queries * (context - queries) + queries * (queries + 1) // 2 for queries, context in rows)
    step: dict[str, int | str] = {"phase": phase, "rows": len(rows), "tokens": tokens, "context": max(contexts)}
    step |= {"block_size": block_size, "layout": "heads first" if heads_first else "positions first"}
    return KernelCase(
        kernel="paged_attention",
        model=model.name,
        step=step,
        bytes_moved=ITEM_BYTES * model.head_dim * vectors + INDEX_BYTES * numbers,
        tensors=tensors,
        ours=partial(_planned, PagedAttention, rows),
        others=dict(_others(rows, model, block_size, heads_first)),
        scalars={"scale": model.head_dim**-0.5},
        operations=4 * model.head_dim * model.heads * pairs,
    )


def _cache(model: ModelShape, num_blocks: int, block_size: int, heads_first: bool, device: torch.device) -> Tensor:
    if heads_first:
        return normal(device, num_blocks, model.kv_heads, block_size, model.head_dim)
    return normal(device, num_blocks, block_size, model.kv_heads, model.head_dim).transpose(1, 2)


Make = Callable[
    [AttentionShape, int, torch.device], Any
]  # of an attention; both have the same methods and different plans


def _flash(shape: AttentionShape, num_sms: int, _device: torch.device) -> FlashAttention:
    return FlashAttention(shape, num_sms)


NARROW_64 = AttentionTiles(16, 64, num_warps=4, num_stages=3, programs_per_sm=3, max_registers=168, grain=16)
VARIANTS = {
    "narrow_64": NARROW_64,
    "eight_warps": replace(NARROW_64, block_n=128, num_warps=8, num_stages=2, max_registers=None),
    "coarse": replace(NARROW_64, block_n=128, num_stages=2, grain=1),
}
"""Alternatives to the tiles that `choose_tiles` gives decode rows. With a grain of 1 only a row that is longer
than a program's even share of all work is cut, so few are merged."""


def _with_tiles(tiles: AttentionTiles, shape: AttentionShape, num_sms: int, device: torch.device) -> PagedAttention:
    return PagedAttention(shape, num_sms, device, lambda *_: tiles)


def _planned(make: Make, rows: Sequence[Row], tensors: Tensors) -> Call:
    """A call whose plan is for a GPU of the device's size, or for an H200 where there is no device."""
    query, key_cache = tensors["query"], tensors["key_cache"]
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    shape = AttentionShape(query.shape[1], num_kv_heads, head_dim, block_size, query.dtype)
    is_cuda = query.device.type == "cuda"
    num_sms = torch.cuda.get_device_properties(query.device).multi_processor_count if is_cuda else 132
    attention = make(shape, num_sms, query.device)
    plan = attention.plan(*np.array(rows, np.int32).T)
    return partial(
        attention.attend,
        query,
        attention.view_cache(KVCache(key_cache, tensors["value_cache"])),
        attention.stage(plan, torch.from_numpy(plan.work).to(query.device), tensors["block_tables"]),
        head_dim**-0.5,
        tensors["out"],
    )


def _others(
    rows: Sequence[Row], model: ModelShape, block_size: int, heads_first: bool
) -> Iterator[tuple[str, Contestant]]:
    if heads_first:
        for name, tiles in VARIANTS.items():
            yield name, partial(_planned, partial(_with_tiles, tiles), rows)
    if block_size % LEAST_BLOCK_SIZE or heads_first:
        return
    if importlib.util.find_spec("flash_attn") is not None:
        yield "flash_attn", partial(_planned, _flash, rows)
    queries, context = rows[0]
    cached = 2 * ITEM_BYTES * len(rows) * context * model.kv_heads * model.head_dim
    if len(set(rows)) == 1 and queries in (1, context) and cached <= SDPA_BYTES:
        yield "sdpa", partial(_sdpa, rows)


def _sdpa(rows: Sequence[Row], tensors: Tensors) -> Call:
    """torch's attention over a contiguous copy of K and V: the same work without the paging."""
    (queries, context), num_kv_heads = rows[0], tensors["key_cache"].shape[1]
    shape = (len(rows), num_kv_heads, context, tensors["query"].shape[-1])
    key, value = (torch.randn(shape, dtype=torch.bfloat16, device=tensors["query"].device) for _ in range(2))
    query = tensors["query"].view(len(rows), queries, -1, shape[-1]).transpose(1, 2)
    return partial(F.scaled_dot_product_attention, query, key, value, is_causal=queries > 1, enable_gqa=True)
