"""Launches that reach every configuration which the launchers can pick for the models, on meta tensors.

What a configuration depends on is varied in full: the shapes of all models and of their tensor-parallel parts, steps of
all sizes, both KV layouts. What is only a constant in a kernel's arithmetic (the block size) is varied for one model.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kernels.arguments import Adjustments, ExpertLayer, KVCache, RopeStoreLayer
from kernels.gpu.attention.block_tables import expand_block_tables
from kernels.gpu.attention.paged_attention import PagedAttention
from kernels.gpu.attention.plan import AttentionShape
from kernels.gpu.layers.activation import silu_and_mul
from kernels.gpu.layers.embedding import embed_tokens
from kernels.gpu.layers.gated_linear import linear_silu_and_mul
from kernels.gpu.layers.norm import add_rms_norm, rms_norm
from kernels.gpu.layers.rope_store import qk_norm_rope_store
from kernels.gpu.moe.experts import Experts
from kernels.gpu.sampling.adjustments import adjust_logits
from kernels.gpu.sampling.log_probs import LogProbs
from kernels.gpu.sampling.sampler import TritonSampler
from kernels.reference import INPUT_DTYPES, SamplingInputs, mask_words
from tests.kernels.gpu.compiling import Launch, Variant


@dataclass(frozen=True)
class Shape:
    """What the kernels see of a model, or of one rank's part of it."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int = 128

    def part(self, ranks: int) -> "Shape":
        """One of `ranks` equal parts; a KV head is not cut."""
        return replace(
            self,
            name=f"{self.name}/{ranks}",
            intermediate=self.intermediate // ranks,
            heads=self.heads // ranks,
            kv_heads=max(1, self.kv_heads // ranks),
        )


QWEN3 = (
    Shape("Qwen3-0.6B", 1024, 3072, 16, 8),
    Shape("Qwen3-1.7B", 2048, 6144, 16, 8),
    Shape("Qwen3-4B", 2560, 9728, 32, 8),
    Shape("Qwen3-8B", 4096, 12288, 32, 8),
    Shape("Qwen3-14B", 5120, 17408, 40, 8),
    Shape("Qwen3-32B", 5120, 25600, 64, 8),
)


@dataclass(frozen=True)
class Mixture:
    """What the kernels see of a mixture of experts, or of one rank's part of it."""

    name: str
    hidden: int
    intermediate: int
    experts: int = 128
    chosen: int = 8


MIXTURES = tuple(
    Mixture(f"{name}/{ranks}", hidden, intermediate // ranks)
    for name, hidden, intermediate in (("Qwen3-30B-A3B", 2048, 768), ("Qwen3-235B-A22B", 4096, 1536))
    for ranks in (1, 2, 4, 8)
)
PARTS = tuple(shape.part(ranks) if ranks > 1 else shape for shape, ranks in itertools.product(QWEN3, (1, 2, 4, 8)))
SMALL_HEADS = Shape("0.5B of 64 a head", 896, 4864, 14, 2, head_dim=64)  # as in Qwen2.5-0.5B
FAMILIES = (  # one for each further number of query heads to a KV head, hidden size and head_dim
    SMALL_HEADS,
    Shape("SmolLM2-135M", 576, 1536, 9, 3, head_dim=64),
    Shape("Llama-3.2-1B", 2048, 8192, 32, 8, head_dim=64),
    Shape("Llama-3.2-3B", 3072, 8192, 24, 8),
    Shape("Qwen2.5-7B", 3584, 18944, 28, 4),
    Shape("Llama-2-7B", 4096, 11008, 32, 32),
    Shape("Llama-3.1-70B", 8192, 28672, 64, 8),
)
TINY_HEADS = (Shape("tiny of 16 a head", 256, 512, 4, 2, head_dim=16), Shape("tiny of 32", 256, 512, 8, 2, head_dim=32))
SHAPES = (*PARTS, *FAMILIES, *TINY_HEADS)
BLOCK_SIZES = tuple(2**i for i in range(4, 11))
TOKENS = (1, 7, 32, 64, 256, 1024, 4096, 16384)
ROWS = (1, 2, 8, 32, 64, 256, 1024)
VOCAB = 151_936
NUM_SMS = 132
TABLE_WIDTH = 40_960 // 16
POOL_TOKENS = 2**20
MODEL_CONSTANTS = {"SIZE", "IN_SIZE", "NUM_HEADS", "NUM_KV_HEADS", "GROUP", "BLOCK_SIZE", "HIDDEN", "INTERMEDIATE"}
"""Constexprs that are the model's or the pool's, and not picked by a launcher."""


def block_sizes(thorough: bool) -> Sequence[int]:
    """Most are as good as one another: what counts is whether a block holds as many positions as a tile."""
    return BLOCK_SIZES if thorough else (16, 256)


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def staged(*shape: int, offset: int = 0, dtype: torch.dtype = torch.int32) -> Tensor:
    """A step's input, which may begin anywhere in a buffer that all of them are sent in."""
    return empty(offset + math.prod(shape), dtype=dtype)[offset:].view(shape)


def kv_cache(shape: Shape, block_size: int, flash: bool) -> Tensor:
    """Logically [num_blocks, kv_heads, block_size, head_dim]; with `flash` the heads of a position lie together."""
    num_blocks = POOL_TOKENS // block_size
    if flash:
        return empty(num_blocks, block_size, shape.kv_heads, shape.head_dim).transpose(1, 2)
    return empty(num_blocks, shape.kv_heads, block_size, shape.head_dim)


def layer(shape: Shape, tokens: int, block_size: int, flash: bool, offset: int = 0) -> Iterator[Launch]:
    """All of ours that a layer launches but attention, and the gather before the first one."""
    hidden, weight = empty(tokens, shape.hidden), empty(shape.hidden)
    ids = staged(tokens, offset=offset)
    cache = kv_cache(shape, block_size, flash)
    norm = empty(shape.head_dim)
    name = f"{tokens} tokens of {shape.name}, blocks of {block_size}"
    qkv = empty(tokens, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
    query = empty(tokens, shape.heads, shape.head_dim)
    cos_sin = empty(40_960, shape.head_dim, dtype=torch.float32)
    rope_store, rope_store_alone = (
        RopeStoreLayer(norms, 1e-6, cos_sin, KVCache(cache, cache)) for norms in ((norm, norm), None)
    )
    for call in (
        partial(rms_norm, hidden, weight, 1e-6, hidden),
        partial(add_rms_norm, hidden, hidden, weight, 1e-6, hidden),
        partial(silu_and_mul, empty(tokens, 2 * shape.intermediate), empty(tokens, shape.intermediate)),
        partial(
            linear_silu_and_mul, hidden, empty(2 * shape.intermediate, shape.hidden), empty(tokens, shape.intermediate)
        ),
        partial(embed_tokens, ids, ids, staged(1024), empty(VOCAB, shape.hidden), hidden),
        partial(qk_norm_rope_store, qkv, rope_store, ids, ids, query),
        partial(qk_norm_rope_store, qkv, rope_store_alone, ids, ids, query),
    ):
        yield Launch(name, call)


def all_layers(thorough: bool) -> Iterator[Launch]:
    for shape, tokens in itertools.product(SHAPES, TOKENS):
        yield from layer(shape, tokens, 256, flash=False)
    for block_size, flash in itertools.product(block_sizes(thorough), (True, False)):
        yield from layer(QWEN3[0], 256, block_size, flash)


def random_layers(rng: random.Random) -> Iterator[Launch]:
    tokens, offset = rng.randrange(1, 20_000), rng.randrange(16)
    return layer(rng.choice(SHAPES), tokens, rng.choice(BLOCK_SIZES), rng.random() < 0.5, offset)


def attention(
    shape: Shape, rows: Sequence[tuple[int, int]], block_size: int, flash: bool, offset: int = 0
) -> Iterator[Launch]:
    """Attention of rows of so many queries each, that see so many positions, and the step's block tables."""
    queries, contexts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    seen = AttentionShape(shape.heads, shape.kv_heads, shape.head_dim, block_size, torch.bfloat16)
    paged = PagedAttention(seen, NUM_SMS, torch.device("meta"))
    plan = paged.plan(queries, contexts)
    query = empty(int(queries.sum()), shape.heads, shape.head_dim)
    cache = kv_cache(shape, block_size, flash)
    tables = empty(len(rows), TABLE_WIDTH, dtype=torch.int32)
    work = staged(len(plan.work), offset=offset)
    name = f"{len(rows)} rows, first {rows[0]}, of {shape.name}, blocks of {block_size}"
    step = paged.stage(plan, work, tables)
    yield Launch(name, partial(paged.attend, query, paged.view_cache(KVCache(cache, cache)), step, 0.1, query))
    ids, starts = staged(1000, offset=offset), staged(len(rows) + 1, offset=offset)
    yield Launch(name, partial(expand_block_tables, ids, starts, tables))


def all_attention(thorough: bool) -> Iterator[Launch]:
    # How many KV heads there are is a factor in addresses, and no more: whole models stand for their parts.
    for shape, block_size in itertools.product((*QWEN3, *FAMILIES, *TINY_HEADS), block_sizes(thorough)):
        for queries in range(1, 130):
            yield from attention(shape, [(queries, 8192)], block_size, flash=True)


def random_attention(rng: random.Random) -> Iterator[Launch]:
    most = rng.choice((1, 8, 64, 2048))
    rows = [(rng.randrange(1, most + 1), rng.randrange(most, 20_000)) for _ in range(rng.randrange(1, 64))]
    return attention(rng.choice(SHAPES), rows, rng.choice(BLOCK_SIZES), rng.random() < 0.5, rng.randrange(16))


def experts(mixture: Mixture, tokens: int, renormalized: bool) -> Iterator[Launch]:
    """The mixture of experts that some models have in place of an MLP."""
    hidden, size = mixture.hidden, mixture.intermediate
    mix = Experts(tokens, mixture.experts, mixture.chosen, hidden, size, torch.bfloat16, "meta").mix_experts
    states, logits = empty(tokens, hidden), empty(tokens, mixture.experts)
    gate_up, down = empty(mixture.experts, 2 * size, hidden), empty(mixture.experts, hidden, size)
    name = f"{tokens} tokens of {mixture.name}"
    yield Launch(name, partial(mix, states, logits, ExpertLayer(gate_up, down, mixture.chosen, renormalized), states))


def all_experts(_thorough: bool) -> Iterator[Launch]:
    for mixture, tokens in itertools.product(MIXTURES, (*TOKENS, 128)):
        yield from experts(mixture, tokens, renormalized=True)


def random_experts(rng: random.Random) -> Iterator[Launch]:
    return experts(rng.choice(MIXTURES), rng.randrange(1, 20_000), renormalized=True)


def sampling(rows: int, vocab_size: int, offset: int = 0) -> Iterator[Launch]:
    """What a step launches once it has logits."""
    floats, ids = staged(rows, offset=offset, dtype=torch.float32), staged(rows, offset=offset)
    starts = staged(rows + 1, offset=offset)
    sampler = TritonSampler(rows, vocab_size, "meta")
    logits = empty(rows, vocab_size)
    name = f"{rows} rows of {vocab_size} logits"
    by_dtype = {floats.dtype: floats, ids.dtype: ids}
    inputs = SamplingInputs(*(by_dtype[dtype] for dtype in INPUT_DTYPES.values()))
    yield Launch(name, partial(sampler.sample, logits, inputs, staged(1024), ids))
    adjusted = empty(rows, vocab_size, dtype=torch.float32)
    yield Launch(f"{name}, adjusted", partial(sampler.sample, adjusted, inputs, staged(1024), ids))
    masks = staged(2, mask_words(vocab_size), offset=offset)
    adjustments = Adjustments(
        ids, ids, ids, floats, floats, floats, ids, masks, starts, ids, floats, starts, starts, ids
    )
    yield Launch(name, partial(adjust_logits, logits, adjustments, staged(1024, 40_960), adjusted))
    top, top_ids = empty(rows, 5, dtype=torch.float32), empty(rows, 5, dtype=torch.int32)
    log_probs = LogProbs(rows, vocab_size, "meta").log_probs
    yield Launch(name, partial(log_probs, logits, ids, 5, empty(rows, dtype=torch.float32), top, top_ids))


def all_sampling(_thorough: bool) -> Iterator[Launch]:
    for rows in ROWS:
        yield from sampling(rows, VOCAB)


def random_sampling(rng: random.Random) -> Iterator[Launch]:
    return sampling(rng.randrange(1, 1025), VOCAB, rng.randrange(16))


GROUPS: dict[str, Callable[[bool], Iterator[Launch]]] = {
    "layers": all_layers,
    "attention": all_attention,
    "experts": all_experts,
    "sampling": all_sampling,
}
RANDOM: dict[str, Callable[[random.Random], Iterator[Launch]]] = {
    "layers": random_layers,
    "attention": random_attention,
    "experts": random_experts,
    "sampling": random_sampling,
}


def picked(variant: Variant) -> Variant:
    """The variant without what no launcher picks."""
    config = tuple(each for each in variant.config if each.split("=")[0] not in MODEL_CONSTANTS)
    return replace(variant, config=config)


def few_of_a_kind(found: dict[Variant, Launch], limit: int) -> dict[Variant, Launch]:
    """Of those in which the same is picked the first, the last, and others in between: `limit` of them, 2 or more."""
    kinds: dict[Variant, list[Variant]] = {}
    for variant in found:
        kinds.setdefault(picked(variant), []).append(variant)
    few: dict[Variant, Launch] = {}
    for kind in kinds.values():
        places = {round(i * (len(kind) - 1) / (limit - 1)) for i in range(limit)}
        few |= {kind[place]: found[kind[place]] for place in sorted(places)}
    return few


FEW = {"layers": 2, "attention": 3, "experts": 2, "sampling": 2}
"""How many of a kind are enough, by group: attention's registers are the scarcest, and models change how many."""


def random_launches(group: str, seed: int, draws: int = 600) -> Iterator[Launch]:
    """Launches of steps as they may come."""
    rng = random.Random(seed)
    for _ in range(draws):
        yield from RANDOM[group](rng)
