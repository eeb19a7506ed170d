"""flash-attn 2 behind the interface of `PagedAttention`.

FlashAttention-2: Dao 2023, arXiv:2307.08691, https://github.com/Dao-AILab/flash-attention. The rows of one query that
come first in a step go to its split-KV kernel, all rows after them to its kernel for sequences of any lengths. Both are
functions of its C extension: the Python around them takes the host longer than they do.

What a step's calls are told is decided in `flash_plan.py`.
"""

import importlib
import importlib.metadata
import re
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.arguments import KVCache
from kernels.gpu.attention.flash_plan import FlashPlan, plan_flash
from kernels.gpu.attention.plan import AttentionShape, GraphBounds
from kernels.gpu.checks import check_contiguous, check_last_stride, check_rank, check_tensor

LEAST_BLOCK_SIZE = 256
FLASH_DTYPES = (torch.bfloat16, torch.float16)
FLASH_HEAD_DIMS = (64, 128)
"""What most models have; flash-attn takes others as well, but not every build of it."""
_EXTENSION = "flash_attn_2_cuda"
_NO_WINDOW = (-1, -1)
_NUM_ARGUMENTS = {"fwd_kvcache": 20, "varlen_fwd": 21}  # of flash-attn 2.7.3 to 2.8.3 and later


@dataclass(frozen=True)
class FlashStep:
    """A step's plan on the device, checked and cut into what flash-attn's two functions take.

    Attributes:
        plan: what it is made of.
        context_lens: [decode rows] int32.
        decode_tables: [decode rows, decode columns] int32.
        query_starts, context_starts: [prompt rows + 1] int32.
        prompt_tables: [prompt rows, prompt columns] int32.
    """

    plan: FlashPlan
    context_lens: Tensor
    decode_tables: Tensor
    query_starts: Tensor
    context_starts: Tensor
    prompt_tables: Tensor


@dataclass(frozen=True)
class FlashCache:
    """A layer's cache as flash-attn takes it: keys and values [num_blocks, block_size, kv_heads, head_dim]."""

    keys: Tensor
    values: Tensor


class FlashAttention:
    """Attention of one shape by flash-attn.

    Args:
        shape: of the model and its cache; bfloat16 or float16, blocks of 256 or more.
        num_sms: multiprocessors to fill.

    Raises:
        ImportError: flash-attn cannot be imported; says why.
        ValueError: flash-attn does not take the shape.
    """

    def __init__(self, shape: AttentionShape, num_sms: int) -> None:
        if shape.block_size < LEAST_BLOCK_SIZE:  # a power of two, of which flash-attn takes multiples of 256
            raise ValueError(f"block_size is {shape.block_size}, flash-attn takes {LEAST_BLOCK_SIZE} and more")
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
        return plan_flash(self._shape, self._num_sms, query_lens, context_lens, graph)

    def stage(self, plan: FlashPlan, work: Tensor, block_tables: Tensor) -> FlashStep:
        """A plan that was brought to the device; see `PagedAttention.stage`."""
        num_decode, num_rows, device = plan.num_decode_rows, plan.num_decode_rows + plan.num_prompt_rows, work.device
        check_tensor("work", work, (len(plan.work),), torch.int32, device)
        check_contiguous("work", work)
        check_rank("block_tables", block_tables, 2)
        width = block_tables.shape[1]
        check_tensor("block_tables", block_tables, (num_rows, width), torch.int32, device)
        check_last_stride("block_tables", block_tables)
        columns = max(plan.decode_columns, plan.prompt_columns)
        if width < columns:
            raise ValueError(f"block_tables has {width} columns, the longest context takes {columns}")
        query_starts, context_starts = work[num_decode:].view(2, plan.num_prompt_rows + 1)
        return FlashStep(
            plan=plan,
            context_lens=work[:num_decode],
            decode_tables=block_tables[:num_decode, : plan.decode_columns],
            query_starts=query_starts,
            context_starts=context_starts,
            prompt_tables=block_tables[num_decode:, : plan.prompt_columns],
        )

    def view_cache(self, cache: KVCache) -> FlashCache:
        """A layer's cache as `attend` takes it.

        Args:
            cache: in memory flash-attn's contiguous [num_blocks, block_size, kv_heads, head_dim].

        Raises:
            ValueError: a shape, dtype, device or stride does not fit.
        """
        shape = self._shape
        check_rank("key_cache", cache.keys, 4)
        sizes = (len(cache.keys), shape.num_kv_heads, shape.block_size, shape.head_dim)
        for name, vectors in (("key_cache", cache.keys), ("value_cache", cache.values)):
            check_tensor(name, vectors, sizes, shape.dtype, cache.keys.device)
            check_contiguous(f"{name}.transpose(1, 2)", vectors.transpose(1, 2))
        return FlashCache(cache.keys.transpose(1, 2), cache.values.transpose(1, 2))

    def attend(self, query: Tensor, cache: FlashCache, step: FlashStep, scale: float, out: Tensor) -> Tensor:
        """Attention of one layer; see `PagedAttention.attend`.

        Args:
            query: [tokens, heads, head_dim], last stride 1.
            cache: see `view_cache`.
            step: see `stage`.
            scale: of the scores.
            out: as `query`, the heads of a token dense; becomes the result.

        Returns:
            out.

        Raises:
            ValueError: a shape, dtype, device or stride does not fit.
        """
        shape, plan = self._shape, step.plan
        sizes = (plan.num_tokens, shape.num_heads, shape.head_dim)
        for name, tensor in (("query", query), ("out", out)):
            check_tensor(name, tensor, sizes, shape.dtype, cache.keys.device)
            check_last_stride(name, tensor)
        num_decode = plan.num_decode_rows
        if num_decode:
            self._decode(query[:num_decode], cache, step, scale, out[:num_decode])
        if plan.num_prompt_rows:
            self._prompts(query[num_decode:], cache, step, scale, out[num_decode:])
        return out

    def _decode(self, query: Tensor, cache: FlashCache, step: FlashStep, scale: float, out: Tensor) -> None:
        shape = self._shape
        # With several query heads to a KV head flash-attn takes them for queries, and wants the result like that, too.
        by_group = (shape.num_kv_heads, shape.group)
        out = out.unflatten(1, by_group).transpose(1, 2) if shape.group > 1 else out.unsqueeze(1)
        self._flash_attn.fwd_kvcache(
            query.unsqueeze(1),
            cache.keys,
            cache.values,
            None,  # new keys
            None,  # new values
            step.context_lens,
            None,  # cosines
            None,  # sines
            None,  # indices of the batch in the cache
            None,  # padding on the left
            step.decode_tables,
            None,  # ALiBi's slopes
            out,
            scale,
            True,  # causal
            *_NO_WINDOW,
            0.0,  # soft cap
            True,  # interleaved rotation
            step.plan.num_splits,
        )

    def _prompts(self, query: Tensor, cache: FlashCache, step: FlashStep, scale: float, out: Tensor) -> None:
        self._flash_attn.varlen_fwd(
            query,
            cache.keys,
            cache.values,
            out,
            step.query_starts,
            step.context_starts,
            None,  # used lengths of the contexts
            None,  # padding on the left
            step.prompt_tables,
            None,  # ALiBi's slopes
            step.plan.max_query_len,
            step.plan.max_context_len,
            0.0,  # dropout
            scale,
            False,  # zero what is not written
            True,  # causal
            *_NO_WINDOW,
            0.0,  # soft cap
            False,  # return the weights
            None,  # random generator
        )


def load_flash_attn() -> ModuleType:
    """flash-attn's C extension.

    Raises:
        ImportError: it is not installed, or of another version; says what to do.
    """
    advice = "install flash-attn 2.8 or choose the triton backend"
    try:
        extension = importlib.import_module(_EXTENSION)
    except ImportError as error:
        raise ImportError(f"flash_attn cannot be imported ({error}); {advice}") from error
    for name, expected in _NUM_ARGUMENTS.items():
        function = getattr(extension, name, None)
        if function is None:
            raise ImportError(f"flash-attn {_version()} has no {name}; {advice}")
        found = len(re.findall(r"\barg\d+:", function.__doc__ or ""))  # pybind11 writes the signature there
        if found != expected:
            raise ImportError(f"{name} of flash-attn {_version()} takes {found} arguments, not {expected}; {advice}")
    return extension


def _version() -> str:
    try:
        return importlib.metadata.version("flash-attn")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
