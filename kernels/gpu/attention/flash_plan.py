"""How a step is laid out for flash-attn: which rows go to which of its functions, and how they are cut.

flash-attn cuts a row's context into `num_splits` pieces of the *block table's* width, however short the row is, and its
own guess at the number goes by that width too. Here the table is narrowed to the longest context, and the number comes
from the real lengths. A CUDA graph fixes both when it is captured; see `choose_graph_splits`.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.gpu.attention.plan import AttentionShape, GraphBounds, checked_lens
from kernels.gpu.attention.work import Ints

MAX_SPLITS = 128
MAX_GRAPH_SPLITS = 32
"""Pieces that a graph's rows are cut into at most: all are merged one after another, also where a row is short."""
TYPICAL_CONTEXT_LEN = 2048
"""Positions of the rows that a graph's pieces are made for."""
_SPLIT_STEP = 128  # positions; flash-attn's own tile for a head_dim of 128
_LEAST_SPLIT = 2 * _SPLIT_STEP
_FILLED = 3 / 4  # of the slots: so many rows read about as fast as more would
_PROGRAMS_PER_SM = 2  # of its split-KV kernel, by shared memory


@dataclass(frozen=True)
class FlashPlan:
    """A step's attention, the same in every layer.

    Attributes:
        work: [n] int32: context lengths of the decode rows; then, of the other rows, where each one's queries begin,
            and where its context would begin if they lay in a row, both with the end of the last.
        num_tokens: of all rows.
        num_decode_rows, num_prompt_rows: rows of one query that come first, and all others.
        num_splits: pieces that flash-attn cuts the table's width of a decode row into.
        decode_columns, prompt_columns: of the block tables that flash-attn is shown.
        max_query_len, max_context_len: of the prompt rows.
    """

    work: Ints
    num_tokens: int
    num_decode_rows: int
    num_prompt_rows: int
    num_splits: int
    decode_columns: int
    prompt_columns: int
    max_query_len: int
    max_context_len: int


def choose_num_splits(context_lens: Ints, table_len: int, num_kv_heads: int, num_sms: int) -> int:
    """How many pieces of a table `table_len` positions wide fill the GPU.

    Args:
        context_lens: [rows], one or more.
        table_len: positions that the block table has room for.
        num_kv_heads: a program takes one of them.
        num_sms: to fill.
    """
    piece_len = _piece_len(int(context_lens.sum(dtype=np.int64)), _slots(num_kv_heads, num_sms))
    if int(context_lens.max()) <= piece_len:
        return 1
    return min(MAX_SPLITS, -(-table_len // piece_len))


def choose_graph_splits(graph: GraphBounds, table_len: int, num_kv_heads: int, num_sms: int) -> int:
    """How many pieces of a table `table_len` positions wide serve all steps of a graph.

    Which contexts will come is not known when a graph is captured, only how many rows. Rows that fill the GPU stay
    whole, and one much longer than the others keeps these waiting: flash-attn writes and reads a partial result for
    each piece of each row, also where the row does not reach the piece. Pieces of fewer rows are as long as fill
    the GPU with rows of `TYPICAL_CONTEXT_LEN`, or of the longest context if that is shorter. `MAX_GRAPH_SPLITS` limits
    their number, and the wider the table is, the longer they are: an executor for short contexts should be given a
    small `--max-model-len`.

    Args:
        graph: what its steps may be.
        table_len: positions that the block table has room for.
        num_kv_heads: a program takes one of them.
        num_sms: to fill.
    """
    slots = _slots(num_kv_heads, num_sms)
    if graph.max_rows >= _FILLED * slots:
        return 1
    piece_len = _piece_len(graph.max_rows * min(graph.max_context_len, TYPICAL_CONTEXT_LEN), slots)
    return min(MAX_GRAPH_SPLITS, -(-table_len // piece_len))


def _slots(num_kv_heads: int, num_sms: int) -> int:
    """Programs for one KV head that the GPU runs side by side."""
    return max(1, num_sms * _PROGRAMS_PER_SM // num_kv_heads)


def _piece_len(positions: int, slots: int) -> int:
    """Positions of a piece: half of what a slot has to read, since pieces of the table are not of even work."""
    return math.ceil(max(positions / (2 * slots), _LEAST_SPLIT) / _SPLIT_STEP) * _SPLIT_STEP


def plan_flash(
    shape: AttentionShape,
    num_sms: int,
    query_lens: NDArray[np.integer],
    context_lens: NDArray[np.integer],
    graph: GraphBounds | None,
) -> FlashPlan:
    """See `FlashAttention.plan`."""
    queries, contexts = checked_lens(query_lens, context_lens)
    is_long = queries > 1
    num_decode = int(is_long.argmax()) if is_long.any() else len(queries)
    decode, prompt = contexts[:num_decode], contexts[num_decode:]
    longest = int(decode.max(initial=0))
    if graph is not None:
        graph.check(queries, contexts)
        if num_decode != graph.max_rows:
            raise ValueError(f"the step has {num_decode} rows of one query, the graph has {graph.max_rows}")
        longest = graph.max_context_len
    decode_columns = -(-longest // shape.block_size)
    longest_prompt = int(prompt.max(initial=0))
    return FlashPlan(
        work=np.concatenate((decode, _starts(queries[num_decode:]), _starts(prompt))),
        num_tokens=int(queries.sum()),
        num_decode_rows=num_decode,
        num_prompt_rows=len(prompt),
        num_splits=_num_splits(shape, num_sms, decode, decode_columns, graph),
        decode_columns=decode_columns,
        prompt_columns=-(-longest_prompt // shape.block_size),
        max_query_len=int(queries[num_decode:].max(initial=0)),
        max_context_len=longest_prompt,
    )


def _num_splits(shape: AttentionShape, num_sms: int, decode: Ints, columns: int, graph: GraphBounds | None) -> int:
    if len(decode) == 0:
        return 1
    lens = (columns * shape.block_size, shape.num_kv_heads, num_sms)
    return choose_num_splits(decode, *lens) if graph is None else choose_graph_splits(graph, *lens)


def _starts(lengths: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
