"""Cases of all but attention in a layer, as far as a kernel of ours does it, and of the gather before the first."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from benchmarks.kernels.cases import (
    INDEX_BYTES,
    ITEM_BYTES,
    KernelCase,
    ModelShape,
    Tensors,
    contestant,
    grouped,
    indices,
    normal,
)
from benchmarks.rig.gpu_timing import Call
from kernels.gpu.layers.activation import silu_and_mul
from kernels.gpu.layers.embedding import embed_tokens
from kernels.gpu.layers.gated_linear import linear_silu_and_mul
from kernels.gpu.layers.norm import add_rms_norm, rms_norm
from kernels.gpu.layers.rope_store import qk_norm_rope_store

EPS = 1e-6
MAX_POSITIONS = 40_960
GATED_TOKENS = (1, 16, 64, 256)
"""Tokens for which the gated projection is measured: up to `FEW_ROWS` of them it is one kernel."""


def layer_cases(model: ModelShape, steps: Iterable[int]) -> Iterator[KernelCase]:
    """A case of each kernel for each of these numbers of tokens in a step."""
    for tokens in steps:
        yield rms_norm_case(model, tokens)
        yield add_rms_norm_case(model, tokens)
        yield silu_and_mul_case(model, tokens)
        yield embed_tokens_case(model, tokens)
        yield rope_store_case(model, tokens)
    for tokens in GATED_TOKENS:
        yield linear_silu_and_mul_case(model, tokens)


def _norm_case(
    kernel: str,
    function: Callable[..., object],
    model: ModelShape,
    tokens: int,
    vectors: int,
    tensors: Callable[[torch.device], Tensors],
    eager: Callable[..., object],
) -> KernelCase:
    """A case of a norm, which moves this many vectors of the hidden size."""
    return KernelCase(
        kernel=kernel,
        model=model.name,
        step={"tokens": tokens},
        bytes_moved=ITEM_BYTES * model.hidden * vectors,
        tensors=tensors,
        ours=contestant(function, eps=EPS),
        eager=eager,
        scalars={"eps": EPS},
    )


def rms_norm_case(model: ModelShape, tokens: int) -> KernelCase:
    """A case of the norm by itself."""

    def tensors(device: torch.device) -> Tensors:
        x, weight = normal(device, tokens, model.hidden), normal(device, model.hidden)
        return {"x": x, "weight": weight, "out": torch.empty_like(x)}

    def eager(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, EPS)

    return _norm_case("rms_norm", rms_norm, model, tokens, 2 * tokens + 1, tensors, eager)


def add_rms_norm_case(model: ModelShape, tokens: int) -> KernelCase:
    """A case of the residual add and the norm."""

    def tensors(device: torch.device) -> Tensors:
        x, residual = (normal(device, tokens, model.hidden) for _ in range(2))
        return {"x": x, "residual": residual, "weight": normal(device, model.hidden), "out": torch.empty_like(x)}

    def eager(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        return F.rms_norm(residual.add_(x), weight.shape, weight, EPS)

    return _norm_case("add_rms_norm", add_rms_norm, model, tokens, 4 * tokens + 1, tensors, eager)


def silu_and_mul_case(model: ModelShape, tokens: int) -> KernelCase:
    """A case of the activation of the MLP."""

    def tensors(device: torch.device) -> Tensors:
        gate_up = normal(device, tokens, 2 * model.intermediate)
        return {"gate_up": gate_up, "out": gate_up.new_empty(tokens, model.intermediate)}

    def eager(gate_up: Tensor, out: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.mul(F.silu(gate), up, out=out)

    return KernelCase(
        kernel="silu_and_mul",
        model=model.name,
        step={"tokens": tokens},
        bytes_moved=ITEM_BYTES * 3 * tokens * model.intermediate,
        tensors=tensors,
        ours=contestant(silu_and_mul),
        eager=eager,
    )


def linear_silu_and_mul_case(model: ModelShape, tokens: int) -> KernelCase:
    """A case of the first half of the MLP in one pass, against cuBLAS and our activation, and against torch's."""

    def tensors(device: torch.device) -> Tensors:
        x, weight = normal(device, tokens, model.hidden), normal(device, 2 * model.intermediate, model.hidden)
        return {"x": x, "weight": weight.mul_(model.hidden**-0.5), "out": x.new_empty(tokens, model.intermediate)}

    def cublas(tensors: Tensors) -> Call:
        x, weight, out = tensors.values()
        both = x.new_empty(tokens, len(weight))

        def call() -> None:
            torch.mm(x, weight.t(), out=both)
            silu_and_mul(both, out)

        return call

    def eager(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        gate, up = F.linear(x, weight).chunk(2, dim=-1)
        return torch.mul(F.silu(gate), up, out=out)

    weights = 2 * model.intermediate * model.hidden
    return KernelCase(
        kernel="linear_silu_and_mul",
        model=model.name,
        step={"tokens": tokens},
        bytes_moved=ITEM_BYTES * (weights + tokens * (model.hidden + model.intermediate)),
        tensors=tensors,
        ours=contestant(linear_silu_and_mul),
        eager=eager,
        others={"cublas": cublas},
        operations=2 * weights * tokens,
    )


def embed_tokens_case(model: ModelShape, tokens: int) -> KernelCase:
    """A case of the gather. All tokens differ; every second one is known on the device only."""

    def tensors(device: torch.device) -> Tensors:
        lanes = torch.arange(tokens)
        ids = torch.randperm(model.vocab_size)[:tokens]
        table = normal(device, model.vocab_size, model.hidden)
        return {
            "token_ids": indices(torch.where(lanes % 2 == 0, ids, -1), device),
            "token_lanes": indices(lanes, device),
            "last_tokens": indices(ids, device),
            "table": table,
            "out": table.new_empty(tokens, model.hidden),
        }

    def eager(token_ids: Tensor, token_lanes: Tensor, last_tokens: Tensor, table: Tensor, out: Tensor) -> Tensor:
        known = torch.where(token_ids < 0, last_tokens.index_select(0, token_lanes), token_ids)
        return torch.index_select(table, 0, known, out=out)

    on_device = tokens // 2  # tokens of which the kernel reads the lane and the last token, too
    return KernelCase(
        kernel="embed_tokens",
        model=model.name,
        step={"tokens": tokens},
        bytes_moved=ITEM_BYTES * 2 * tokens * model.hidden + INDEX_BYTES * (tokens + 2 * on_device),
        tensors=tensors,
        ours=contestant(embed_tokens),
        eager=eager,
    )


def rope_store_case(model: ModelShape, tokens: int, block_size: int = 256) -> KernelCase:
    """A case of head norms, rotation and store. No two tokens have the same position."""
    num_blocks = -(-tokens // block_size)
    all_heads = model.heads + 2 * model.kv_heads

    def tensors(device: torch.device) -> Tensors:
        cache = (num_blocks, block_size, model.kv_heads, model.head_dim)
        return {
            "qkv": normal(device, tokens, all_heads * model.head_dim),
            "q_weight": normal(device, model.head_dim),
            "k_weight": normal(device, model.head_dim),
            "cos_sin": normal(device, MAX_POSITIONS, model.head_dim, dtype=torch.float32),
            "positions": indices(torch.randperm(MAX_POSITIONS)[:tokens], device),
            "slot_mapping": indices(torch.randperm(num_blocks * block_size)[:tokens], device),
            "key_cache": normal(device, *cache).transpose(1, 2),
            "value_cache": normal(device, *cache).transpose(1, 2),
            "out": normal(device, tokens, model.heads, model.head_dim),
        }

    vectors = 2 * tokens * all_heads + 2  # read and written, and the weights
    turns = tokens * model.head_dim * torch.float32.itemsize
    return KernelCase(
        kernel="qk_norm_rope_store",
        model=model.name,
        step={"tokens": tokens, "block_size": block_size},
        bytes_moved=ITEM_BYTES * vectors * model.head_dim + turns + 2 * INDEX_BYTES * tokens,
        tensors=tensors,
        ours=lambda tensors: partial(qk_norm_rope_store, **grouped({**tensors, "eps": EPS})),
        eager=_eager_rope_store,
        scalars={"eps": EPS},
    )


def _eager_rope_store(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    out: Tensor,
) -> Tensor:
    (_, num_heads, head_dim), (_, num_kv_heads, block_size, _) = out.shape, key_cache.shape
    heads = qkv.view(len(qkv), num_heads + 2 * num_kv_heads, head_dim)
    query, key, value = heads.split_with_sizes([num_heads, num_kv_heads, num_kv_heads], dim=1)
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    key_cache[blocks, :, offsets] = _rotate(F.rms_norm(key, q_weight.shape, k_weight, EPS), cos, sin)
    value_cache[blocks, :, offsets] = value
    return out.copy_(_rotate(F.rms_norm(query, q_weight.shape, q_weight, EPS), cos, sin))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
