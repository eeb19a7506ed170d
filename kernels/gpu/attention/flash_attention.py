"""flash-attn 2 behind the interface of `PagedAttention`.

FlashAttention-2: Dao 2023, arXiv:2307.08691, https://github.com/Dao-AILab/flash-attention. The rows of one query that
come first in a step go to its split-KV kernel, all rows after them to its kernel for sequences of any lengths.

flash-attn cuts a row's context into `num_splits` parts of the *block table's* width, however short the row is, and its
own guess at the number goes by that width too. Here the table is narrowed to the longest context, and the number comes
from the real lengths.
"""

import importlib
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.arguments import KVCache
from kernels.gpu.attention.plan import AttentionShape, GraphBounds, StagedPlan, checked_lens
from kernels.gpu.attention.work import Cutting, Ints
from kernels.gpu.checks import check_contiguous, check_last_stride, check_rank, check_tensor

BLOCK_SIZE_MULTIPLE = 256
FLASH_DTYPES = (torch.bfloat16, torch.float16)
FLASH_HEAD_DIMS = (64, 128)
"""What Qwen3 has; flash-attn takes others as well, but not every build of it."""
MAX_SPLITS = 128
_SPLIT_STEP = 128  # positions; flash-attn's own tile for a head_dim of 128
_PROGRAMS_PER_SM = 2  # of its split-KV kernel, by shared memory


@dataclass(frozen=True)
class FlashPlan:
    """A step's attention, the same in every layer.

    Attributes:
        work: [n] int32: context lengths of the decode rows; then, of the other rows, where each one's queries begin,
            and where its context would begin if they lay in a row, both with the end of the last.
        num_decode_rows, num_prompt_rows: rows of one query that come first, and all others.
        num_splits: parts that flash-attn cuts the table's width of a decode row into.
        decode_columns, prompt_columns: of the block tables that flash-attn is shown.
        max_query_len, max_context_len: of the prompt rows.
    """

    work: Ints
    num_decode_rows: int
    num_prompt_rows: int
    num_splits: int
    decode_columns: int
    prompt_columns: int
    max_query_len: int
    max_context_len: int


def choose_num_splits(context_lens: Ints, table_len: int, num_kv_heads: int, num_sms: int) -> int:
    """How many parts of a table `table_len` positions wide fill the GPU, as for our own decode tiles.

    Args:
        context_lens: [rows], one or more.
        table_len: positions that the block table has room for.
        num_kv_heads: a program takes one of them.
        num_sms: to fill.
    """
    slots = max(1, num_sms * _PROGRAMS_PER_SM // num_kv_heads)
    cutting = Cutting(1, _SPLIT_STEP, slots, pieces_per_slot=2, slack=1, min_piece=2 * _SPLIT_STEP)
    whole_len, piece_len = cutting.limits(context_lens)
    if int(context_lens.max()) <= whole_len:
        return 1
    return min(MAX_SPLITS, -(-table_len // piece_len))


class FlashAttention:
    """Attention of one shape by flash-attn.

    Args:
        shape: of the model and its cache; bfloat16 or float16, blocks of a multiple of 256.
        num_sms: multiprocessors to fill.

    Raises:
        ImportError: flash-attn cannot be imported; says why.
        ValueError: flash-attn does not take the shape.
    """

    def __init__(self, shape: AttentionShape, num_sms: int) -> None:
        if shape.block_size % BLOCK_SIZE_MULTIPLE:
            raise ValueError(f"block_size is {shape.block_size}, flash-attn takes multiples of {BLOCK_SIZE_MULTIPLE}")
        if shape.dtype not in FLASH_DTYPES:
            raise ValueError(f"dtype is {shape.dtype}, flash-attn takes bfloat16 and float16")
        self._shape = shape
        self._num_sms = num_sms
        self._flash_attn = load_flash_attn()

    def plan(
        self, query_lens: NDArray[np.integer], context_lens: NDArray[np.integer], graph: GraphBounds | None = None
    ) -> FlashPlan:
        """Lay out a step for flash-attn.

        Args:
            query_lens, context_lens: [rows], `1 <= query_len <= context_len`; see `PagedAttention.plan`.
            graph: make the plan fit a CUDA graph: plans for the same bounds differ in `work` alone. Every step then
                has just `max_rows` rows, all of one query.

        Raises:
            ValueError: a length is out of its bounds, or the step does not fit the graph.
        """
        queries, contexts = checked_lens(query_lens, context_lens)
        is_long = queries > 1
        num_decode = int(is_long.argmax()) if is_long.any() else len(queries)
        decode, prompt = contexts[:num_decode], contexts[num_decode:]
        limits = decode
        if graph is not None:
            graph.check(queries, contexts)
            if num_decode != graph.max_rows:
                raise ValueError(f"the step has {num_decode} rows of one query, the graph has {graph.max_rows}")
            limits = np.full(graph.max_rows, graph.max_context_len, np.int32)
        decode_columns = -(-int(limits.max(initial=0)) // self._shape.block_size)
        longest_prompt = int(prompt.max(initial=0))
        return FlashPlan(
            work=np.concatenate((decode, _starts(queries[num_decode:]), _starts(prompt))),
            num_decode_rows=num_decode,
            num_prompt_rows=len(prompt),
            num_splits=self._num_splits(limits, decode_columns),
            decode_columns=decode_columns,
            prompt_columns=-(-longest_prompt // self._shape.block_size),
            max_query_len=int(queries[num_decode:].max(initial=0)),
            max_context_len=longest_prompt,
        )

    def attend(self, query: Tensor, cache: KVCache, step: StagedPlan[FlashPlan], scale: float, out: Tensor) -> Tensor:
        """Attention of one layer; see `PagedAttention.attend`.

        Args:
            query: [tokens, heads, head_dim], last stride 1.
            cache: in memory flash-attn's contiguous [num_blocks, block_size, kv_heads, head_dim].
            step: its plan, on the device.
            scale: of the scores.
            out: as `query`; has the result of a step with both decode rows and others, and is left as it is otherwise.

        Returns:
            The result: `out`, or a tensor that flash-attn made.

        Raises:
            ValueError: a shape, dtype, device or stride does not fit.
        """
        self._check(query, cache, step, out)
        cache = KVCache(cache.keys.transpose(1, 2), cache.values.transpose(1, 2))
        num_decode = step.plan.num_decode_rows
        if not step.plan.num_prompt_rows:
            return self._decode(query, cache, step, scale) if num_decode else out
        if not num_decode:
            return self._prompts(query, cache, step, scale)
        out[:num_decode] = self._decode(query[:num_decode], cache, step, scale)
        out[num_decode:] = self._prompts(query[num_decode:], cache, step, scale)
        return out

    def _decode(self, query: Tensor, cache: KVCache, step: StagedPlan[FlashPlan], scale: float) -> Tensor:
        plan = step.plan
        attended: Tensor = self._flash_attn.flash_attn_with_kvcache(
            query.unsqueeze(1),
            cache.keys,
            cache.values,
            cache_seqlens=step.work[: plan.num_decode_rows],
            block_table=step.block_tables[: plan.num_decode_rows, : plan.decode_columns],
            softmax_scale=scale,
            causal=True,
            num_splits=plan.num_splits,
        )
        return attended.squeeze(1)

    def _prompts(self, query: Tensor, cache: KVCache, step: StagedPlan[FlashPlan], scale: float) -> Tensor:
        plan = step.plan
        query_starts, context_starts = step.work[plan.num_decode_rows :].view(2, plan.num_prompt_rows + 1)
        attended: Tensor = self._flash_attn.flash_attn_varlen_func(
            query,
            cache.keys,
            cache.values,
            query_starts,
            context_starts,
            plan.max_query_len,
            plan.max_context_len,
            softmax_scale=scale,
            causal=True,
            block_table=step.block_tables[plan.num_decode_rows :, : plan.prompt_columns],
        )
        return attended

    def _num_splits(self, limits: Ints, columns: int) -> int:
        if len(limits) == 0:
            return 1
        return choose_num_splits(limits, columns * self._shape.block_size, self._shape.num_kv_heads, self._num_sms)

    def _check(self, query: Tensor, cache: KVCache, step: StagedPlan[FlashPlan], out: Tensor) -> None:
        shape, device = self._shape, query.device
        plan, work, block_tables = step.plan, step.work, step.block_tables
        check_rank("query", query, 3)
        check_rank("key_cache", cache.keys, 4)
        check_rank("block_tables", block_tables, 2)
        token_shape = (len(query), shape.num_heads, shape.head_dim)
        cache_shape = (len(cache.keys), shape.num_kv_heads, shape.block_size, shape.head_dim)
        check_tensor("query", query, token_shape, shape.dtype, device)
        check_tensor("out", out, token_shape, shape.dtype, device)
        check_last_stride("query", query)
        for name, vectors in (("key_cache", cache.keys), ("value_cache", cache.values)):
            check_tensor(name, vectors, cache_shape, shape.dtype, device)
            check_contiguous(f"{name}.transpose(1, 2)", vectors.transpose(1, 2))
        num_rows = plan.num_decode_rows + plan.num_prompt_rows
        check_tensor("block_tables", block_tables, (num_rows, block_tables.shape[1]), torch.int32, device)
        check_last_stride("block_tables", block_tables)
        columns = max(plan.decode_columns, plan.prompt_columns)
        if block_tables.shape[1] < columns:
            raise ValueError(f"block_tables has {block_tables.shape[1]} columns, the longest context takes {columns}")
        check_tensor("work", work, (len(plan.work),), torch.int32, device)
        check_contiguous("work", work)


def _starts(lengths: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def load_flash_attn() -> ModuleType:
    """flash-attn's module.

    Raises:
        ImportError: it is not installed, or too old; says what to do.
    """
    try:
        module = importlib.import_module("flash_attn")
    except ImportError as error:
        raise ImportError(
            f"flash_attn cannot be imported ({error}); install flash-attn 2.8 or choose the triton backend"
        ) from error
    for name in ("flash_attn_with_kvcache", "flash_attn_varlen_func"):
        if not hasattr(module, name):
            version = getattr(module, "__version__", "unknown")
            raise ImportError(
                f"flash_attn {version} has no {name}; install flash-attn 2.8 or choose the triton backend"
            )
    return module
