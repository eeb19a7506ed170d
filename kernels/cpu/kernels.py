"""The kernels as functions of tensors; they write into `out` and allocate nothing.

Activations, weights and caches are bfloat16, other numbers float32 and int32; a sampler's logits may be of either
float. Rows may have any stride where a docstring does not say otherwise. Every function has a twin of its name in
`kernels.reference`, whose docstring has the rest. A row's result never depends on the rows beside it, nor a query's on
the queries beside it: bit for bit.
"""

import ctypes
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from kernels.arguments import Adjustments, AttentionRows, KVCache, RopeStoreLayer
from kernels.cpu.checks import (
    BF16,
    FLOAT32,
    INT32,
    check,
    check_adjustments,
    check_cache,
    check_dense,
    check_logits,
)
from kernels.cpu.library import Library
from kernels.cpu.packing import PackedWeight, empty_packed, pack
from kernels.reference.sampling import INPUT_DTYPES, SamplingInputs


class CpuKernels:
    """All kernels of one instruction set.

    Args:
        library: compiled for it.
        threads: of torch's OpenMP pool that each kernel computes with, at most.
    """

    def __init__(self, library: Library, threads: int) -> None:
        self._library = library
        self._threads = threads

    def pin_threads(self, cpus: Sequence[int]) -> int:
        """Bind the calling thread to the first of `cpus` and its OpenMP workers to the others, one each.

        Threads that the calling thread starts later inherit its CPU. Returns how many could be bound.
        """
        if len(cpus) != self._threads:
            raise ValueError(f"{len(cpus)} cpus for {self._threads} threads")
        numbers = torch.tensor(cpus, dtype=INT32)
        pinned: int = self._library.pin_threads(numbers.data_ptr(), self._threads)
        return pinned

    def advise_huge_pages(self, tensor: Tensor) -> None:
        """Ask for huge pages under a tensor (weights, a KV cache) that was allocated but not yet written."""
        self._library.advise_huge_pages(tensor.data_ptr(), tensor.nbytes)

    def read_memory(self, memory: Tensor) -> None:
        """Read a contiguous float32 tensor once, with all threads: the time measures the memory's bandwidth."""
        check("memory", memory, FLOAT32, memory.shape)
        self._library.read_memory(memory.data_ptr(), memory.nbytes, self._threads)

    def pack(self, weight: Tensor, *, int8: bool = False) -> PackedWeight:
        """Lay out weight [out, in] (contiguous) for `linear`, in bfloat16 or quantized to int8. It is a copy."""
        packed = self.empty_packed(weight.shape[1], weight.shape[0], gated=False, int8=int8)
        self.pack_into(weight, packed)
        return packed

    def pack_gate_up(self, weight: Tensor, *, int8: bool = False) -> PackedWeight:
        """Lay out weight [2 * size, in] (contiguous), gate over up, for `linear_silu_and_mul`. It is a copy."""
        packed = self.empty_packed(weight.shape[1], weight.shape[0], gated=True, int8=int8)
        self.pack_into(weight, packed)
        return packed

    def empty_packed(
        self, in_size: int, out_size: int, *, gated: bool, int8: bool = False, device: str = "cpu"
    ) -> PackedWeight:
        """Memory for a weight [out, in] that `pack_into` fills; on the device `meta` only its dtypes and shapes."""
        if gated and out_size % 2:
            raise ValueError(f"weight has {out_size} rows, which are no gate and up")
        return empty_packed(self._library, in_size, out_size, gated=gated, int8=int8, device=device)

    def pack_into(self, weight: Tensor, packed: PackedWeight) -> None:
        """`pack` or `pack_gate_up` into memory that is there."""
        pack(self._library, self._threads, weight, packed)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None, out: Tensor) -> None:
        """See `reference.linear`, or `reference.linear_int8`; the weight is one that `pack` made."""
        self._linear(x, weight, bias, out, gated=False)

    def linear_silu_and_mul(self, x: Tensor, weight: PackedWeight, out: Tensor) -> None:
        """`silu_and_mul` of a `linear`, bit for bit; the weight is one that `pack_gate_up` made."""
        self._linear(x, weight, None, out, gated=True)

    def _linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None, out: Tensor, *, gated: bool) -> None:
        if weight.gated is not gated:
            raise ValueError("the weight was packed for the other kind of layer (pack, pack_gate_up)")
        rows = x.shape[0]
        check("x", x, BF16, (rows, weight.in_size))
        check("out", out, BF16, (rows, weight.out_size))
        if bias is not None:
            check("bias", bias, BF16, (weight.out_size,))
        rest = (
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            out.stride(0),
            rows,
            weight.in_size,
            weight.out_size,
            gated,
            self._threads,
        )
        if weight.scales is None:
            self._library.linear(x.data_ptr(), x.stride(0), weight.panels.data_ptr(), *rest)
        else:
            panels, scales = weight.panels.data_ptr(), weight.scales.data_ptr()
            self._library.linear_int8(x.data_ptr(), x.stride(0), panels, scales, *rest)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `reference.rms_norm`."""
        rows, size = x.shape
        check("x", x, BF16, (rows, size))
        check("weight", weight, BF16, (size,))
        check("out", out, BF16, (rows, size))
        self._library.rms_norm(*_rows(x), weight.data_ptr(), eps, *_rows(out), rows, size, self._threads)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `reference.add_rms_norm`."""
        rows, size = x.shape
        check("x", x, BF16, (rows, size))
        check("residual", residual, BF16, (rows, size))
        check("weight", weight, BF16, (size,))
        check("out", out, BF16, (rows, size))
        self._library.add_rms_norm(
            *_rows(x), *_rows(residual), weight.data_ptr(), eps, *_rows(out), rows, size, self._threads
        )

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """See `reference.silu_and_mul`."""
        rows, size = out.shape
        check("gate_up", gate_up, BF16, (rows, 2 * size))
        check("out", out, BF16, (rows, size))
        self._library.silu_and_mul(*_rows(gate_up), *_rows(out), rows, size, self._threads)

    def embed_tokens(
        self, token_ids: Tensor, token_lanes: Tensor, last_tokens: Tensor, table: Tensor, out: Tensor
    ) -> None:
        """See `reference.embed_tokens`. Ids and lanes are not checked against the tables: the plan was."""
        tokens, size = out.shape
        check("token_ids", token_ids, INT32, (tokens,))
        check("token_lanes", token_lanes, INT32, (tokens,))
        check("last_tokens", last_tokens, INT32, last_tokens.shape)
        check("table", table, BF16, (table.shape[0], size))
        check("out", out, BF16, (tokens, size))
        self._library.embed_tokens(
            token_ids.data_ptr(),
            token_lanes.data_ptr(),
            last_tokens.data_ptr(),
            table.data_ptr(),
            table.stride(0),
            out.data_ptr(),
            out.stride(0),
            tokens,
            size,
            self._threads,
        )

    def qk_norm_rope_store(
        self, qkv: Tensor, layer: RopeStoreLayer, positions: Tensor, slot_mapping: Tensor, out: Tensor
    ) -> None:
        """See `reference.qk_norm_rope_store`; the cache, `cos_sin` and `out` are contiguous."""
        tokens, heads, head_dim = out.shape
        kv_heads, block_size = check_cache(layer.cache, head_dim)
        check("qkv", qkv, BF16, (tokens, (heads + 2 * kv_heads) * head_dim))
        q_weight = k_weight = None
        if layer.norms is not None:
            of_queries, of_keys = layer.norms
            check("q_weight", of_queries, BF16, (head_dim,))
            check("k_weight", of_keys, BF16, (head_dim,))
            q_weight, k_weight = of_queries.data_ptr(), of_keys.data_ptr()
        check_dense("cos_sin", layer.cos_sin, FLOAT32, (len(layer.cos_sin), head_dim))
        check("positions", positions, INT32, (tokens,))
        check("slot_mapping", slot_mapping, INT32, (tokens,))
        check_dense("out", out, BF16, (tokens, heads, head_dim))
        self._library.qk_norm_rope_store(
            qkv.data_ptr(),
            qkv.stride(0),
            q_weight,
            k_weight,
            layer.cos_sin.data_ptr(),
            positions.data_ptr(),
            slot_mapping.data_ptr(),
            layer.cache.keys.data_ptr(),
            layer.cache.values.data_ptr(),
            layer.eps,
            out.data_ptr(),
            tokens,
            heads,
            kv_heads,
            block_size,
            head_dim,
            self._threads,
        )

    def paged_attention(self, query: Tensor, cache: KVCache, rows: AttentionRows, scale: float, out: Tensor) -> None:
        """See `reference.paged_attention`; all but the tables are contiguous, and every row has a query."""
        tokens, heads, head_dim = query.shape
        num_rows = len(rows.context_lens)
        kv_heads, block_size = check_cache(cache, head_dim)
        if heads % kv_heads:
            raise ValueError(f"query has {heads} heads, no multiple of the {kv_heads} KV heads")
        check_dense("query", query, BF16, (tokens, heads, head_dim))
        check("block_tables", rows.block_tables, INT32, (num_rows, rows.block_tables.shape[1]))
        check("context_lens", rows.context_lens, INT32, (num_rows,))
        check("query_starts", rows.query_starts, INT32, (num_rows + 1,))
        check_dense("out", out, BF16, (tokens, heads, head_dim))
        self._library.paged_attention(
            query.data_ptr(),
            heads * head_dim,
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
            rows.block_tables.data_ptr(),
            rows.block_tables.stride(0),
            rows.context_lens.data_ptr(),
            rows.query_starts.data_ptr(),
            scale,
            out.data_ptr(),
            num_rows,
            heads,
            kv_heads,
            block_size,
            head_dim,
            self._threads,
        )

    def argmax(self, logits: Tensor, out: Tensor) -> None:
        """The likeliest token of each row of logits [rows, vocab] into out [rows]; of equals, the lowest id.

        A row that has no token is told as in `reference.sample`.
        """
        rows, vocab_size = logits.shape
        check("logits", logits, BF16, (rows, vocab_size))
        check("out", out, INT32, (rows,))
        self._library.argmax(logits.data_ptr(), logits.stride(0), out.data_ptr(), rows, vocab_size, self._threads)

    def sample(self, logits: Tensor, inputs: SamplingInputs, last_tokens: Tensor, out: Tensor) -> None:
        """See `reference.sample`. Sums are more exact than the twin's: at a filter's edge the two may differ."""
        rows, vocab_size = check_logits(logits)
        columns = vars(inputs)
        for name, dtype in INPUT_DTYPES.items():
            check(name, columns[name], dtype, (rows,))
        check("last_tokens", last_tokens, INT32, last_tokens.shape)
        check("out", out, INT32, (rows,))
        self._library.sample(
            *_rows(logits),
            logits.dtype is FLOAT32,
            _addresses(columns.values()),
            last_tokens.data_ptr(),
            out.data_ptr(),
            rows,
            vocab_size,
            self._threads,
        )

    def adjust_logits(self, logits: Tensor, adjustments: Adjustments, lane_tokens: Tensor, out: Tensor) -> None:
        """See `reference.adjust_logits`; the masks are contiguous.

        What the adjustments say is not checked: the plan was. In a lane's tokens a negative one counts nothing.
        """
        rows, vocab_size = check_logits(logits)
        check_adjustments(adjustments, rows, vocab_size)
        check("lane_tokens", lane_tokens, INT32, (len(lane_tokens), lane_tokens.shape[1]))
        check("out", out, FLOAT32, (rows, vocab_size))
        self._library.adjust_logits(
            *_rows(logits),
            logits.dtype is FLOAT32,
            _addresses(vars(adjustments).values()),
            *_rows(lane_tokens),
            *_rows(out),
            rows,
            vocab_size,
            self._threads,
        )

    def log_probs(
        self, logits: Tensor, token_ids: Tensor, num_top: int, out_chosen: Tensor, out_top: Tensor, out_top_ids: Tensor
    ) -> None:
        """See `reference.log_probs`. `num_top` should be small. That of a negative one, which is no token, is NaN."""
        rows, vocab_size = check_logits(logits)
        if not 0 <= num_top <= vocab_size:
            raise ValueError(f"num_top is {num_top}, expected 0 to {vocab_size}, the size of the vocabulary")
        check("token_ids", token_ids, INT32, (rows,))
        check("out_chosen", out_chosen, FLOAT32, (rows,))
        check("out_top", out_top, FLOAT32, (rows, num_top))
        check("out_top_ids", out_top_ids, INT32, (rows, num_top))
        self._library.log_probs(
            *_rows(logits),
            logits.dtype is FLOAT32,
            token_ids.data_ptr(),
            out_chosen.data_ptr(),
            *_rows(out_top),
            *_rows(out_top_ids),
            rows,
            vocab_size,
            num_top,
            self._threads,
        )


def _rows(tensor: Tensor) -> tuple[int, int]:
    """Address of a tensor, and the elements from one row to the next."""
    return tensor.data_ptr(), tensor.stride(0)


def _addresses(columns: Iterable[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
    """The addresses of the fields of a struct of pointers."""
    addresses = [column.data_ptr() for column in columns]
    return (ctypes.c_void_p * len(addresses))(*addresses)
