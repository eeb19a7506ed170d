"""Log-probabilities of the chosen and of the likeliest tokens, from one pass over the logits.

The likeliest tokens come out of a tournament: each segment of the vocabulary sends its best, and whichever wins sends
its next best. So only winners' segments are read again, and the order is exact.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import (
    check_contiguous,
    check_dtype,
    check_last_stride,
    check_range,
    check_rank,
    check_tensor,
)
from kernels.gpu.integers import next_power_of_two
from kernels.gpu.launching import LaunchableKernel
from kernels.gpu.loops import loop_bound
from kernels.gpu.sampling.segment_statistics import (
    LOG2E,
    MAX_ROWS,
    MAX_VOCAB_SIZE,
    SEGMENT,
    count_segments,
    launch_statistics,
)

MAX_TOP = 20

_NUM_WARPS = 4
_TAKEN = tl.constexpr(-(1 << 31))  # orders behind -inf


class LogProbs:
    """Looks up log-probabilities of batches of up to `max_rows` rows, on one stream at a time: it owns the workspace.

    Args:
        max_rows: most rows of a batch.
        vocab_size: tokens of the vocabulary.
        device: where the logits are.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device | str) -> None:
        check_range("max_rows", max_rows, 1, MAX_ROWS)
        check_range("vocab_size", vocab_size, 1, MAX_VOCAB_SIZE)
        self._max_rows = max_rows
        self._vocab_size = vocab_size
        self._maxima = torch.empty(max_rows, count_segments(vocab_size), dtype=torch.float32, device=device)
        self._masses = torch.empty_like(self._maxima)

    def log_probs(
        self,
        logits: Tensor,
        token_ids: Tensor,
        num_top: int,
        out_chosen: Tensor,
        out_top: Tensor,
        out_top_ids: Tensor,
    ) -> None:
        """Natural logarithms of softmax(logits), for a given token of each row and for its likeliest ones.

        Token ids are trusted: one beyond the vocabulary reads foreign memory.

        Args:
            logits: [rows, vocab], bfloat16, float16 or float32; the rows may lie apart, each must be dense.
            token_ids: [rows] int32, the tokens asked about; a negative one, of a row without, asks about token 0.
            num_top: how many of a row's likeliest tokens are wanted, 0 to `MAX_TOP` and no more than there are.
            out_chosen: [rows] float32; becomes the log-probabilities of `token_ids`.
            out_top: [rows, num_top] float32; becomes those of the likeliest tokens, in descending order.
            out_top_ids: [rows, num_top] int32; becomes their ids, of equals the lowest first. NaN ranks with -inf.

        Raises:
            ValueError: a shape, dtype, device or stride does not fit, there are more rows than `max_rows`, or
                `num_top` is out of range.
        """
        check_rank("logits", logits, 2)
        check_dtype("logits", logits)
        num_rows, device = logits.shape[0], self._maxima.device
        check_range("the number of rows of logits", num_rows, 0, self._max_rows)
        check_range("num_top", num_top, 0, min(MAX_TOP, self._vocab_size))
        check_tensor("logits", logits, (num_rows, self._vocab_size), logits.dtype, device)
        check_last_stride("logits", logits)
        check_tensor("token_ids", token_ids, (num_rows,), torch.int32, device)
        check_tensor("out_chosen", out_chosen, (num_rows,), torch.float32, device)
        check_tensor("out_top", out_top, (num_rows, num_top), torch.float32, device)
        check_tensor("out_top_ids", out_top_ids, (num_rows, num_top), torch.int32, device)
        for name, tensor in {
            "token_ids": token_ids,
            "out_chosen": out_chosen,
            "out_top": out_top,
            "out_top_ids": out_top_ids,
        }.items():
            check_contiguous(name, tensor)
        if num_rows == 0:
            return
        launch_statistics(logits, None, self._maxima, self._masses)
        num_segments = count_segments(self._vocab_size)
        _log_probs_kernel.launch(
            (num_rows,),
            logits,
            logits.stride(0),
            token_ids,
            num_top,
            out_chosen,
            out_top,
            out_top_ids,
            self._maxima,
            self._masses,
            VOCAB=self._vocab_size,
            NUM_SEGMENTS=num_segments,
            SEGMENTS=next_power_of_two(num_segments),
            num_warps=_NUM_WARPS,
        )


@LaunchableKernel
@triton.jit(
    do_not_specialize=["num_top"],
    do_not_specialize_on_alignment=["token_ids", "out_chosen", "out_top", "out_top_ids"],
)
def _log_probs_kernel(
    logits,
    logits_stride,
    token_ids,
    num_top,
    out_chosen,
    out_top,
    out_top_ids,
    maxima,
    masses,
    VOCAB: tl.constexpr,
    NUM_SEGMENTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    row = tl.program_id(0)
    row_logits = logits + row.to(tl.int64) * logits_stride
    segments = tl.arange(0, SEGMENTS)
    places = row * NUM_SEGMENTS + segments
    best = tl.load(maxima + places, mask=segments < NUM_SEGMENTS, other=float("-inf"))
    peak = tl.max(best, axis=0)
    row_masses = tl.load(masses + places, mask=segments < NUM_SEGMENTS, other=0.0)
    log_total = tl.log(tl.sum(row_masses * tl.exp2((best - peak) * LOG2E), axis=0))
    chosen = tl.load(row_logits + tl.maximum(tl.load(token_ids + row), 0)).to(tl.float32)
    tl.store(out_chosen + row, chosen - peak - log_total)

    ranks = tl.where(segments < NUM_SEGMENTS, _rank(best), _TAKEN)
    last_rank = tl.full([], (1 << 31) - 1, tl.int32)
    last_id = tl.full([], -1, tl.int32)
    for at in range(loop_bound(num_top)):
        rank = tl.max(ranks, axis=0)
        winner = tl.min(tl.where(ranks == rank, segments, SEGMENTS), axis=0)
        ids = winner * SEGMENT + tl.arange(0, SEGMENT)
        values = tl.load(row_logits + ids, mask=ids < VOCAB, other=0.0).to(tl.float32)
        token_ranks = tl.where(ids < VOCAB, _rank(values), _TAKEN)
        left = (token_ranks < last_rank) | ((token_ranks == last_rank) & (ids > last_id))
        token = tl.min(tl.where(left & (token_ranks == rank), ids, VOCAB), axis=0)
        value = _invert_negatives(rank).to(tl.float32, bitcast=True)
        tl.store(out_top + row * num_top + at, value - peak - log_total)
        tl.store(out_top_ids + row * num_top + at, token)
        left &= ids != token
        ranks = tl.where(segments == winner, tl.max(tl.where(left, token_ranks, _TAKEN), axis=0), ranks)
        last_rank = rank
        last_id = token


@triton.jit
def _rank(values):
    """An integer in the order of a float32. -0 is 0, NaN is -inf."""
    values = tl.where(values >= float("-inf"), tl.where(values == 0, 0.0, values), float("-inf"))
    return _invert_negatives(values.to(tl.int32, bitcast=True))


@triton.jit
def _invert_negatives(bits):
    """Turn a float's bits, of which the lower ones of negatives run backwards, into its rank, and a rank into bits."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
