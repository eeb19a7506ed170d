"""The sampler: one pass over the logits, then a program a row that reads the few segments which matter.

A row without filters reads one segment more, a greedy row likewise; a filtered row those that may hold its likeliest
tokens. There is no sort, and nothing that the host decides depends on what is on the device.

Sums are float32: a segment's mass is a tree over its 128 tokens; the CDF is a scan over the segments, and then over the
tokens of one of them. So a draw is the twin's unless the uniform lies within 1e-5 of an edge of the CDF, or a token's
share within 1e-5 of the edge of a filter.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import (
    check_contiguous,
    check_dtype,
    check_last_stride,
    check_power_of_two,
    check_range,
    check_rank,
    check_tensor,
)
from kernels.gpu.integers import next_power_of_two
from kernels.gpu.sampling.filters import draw_filtered
from kernels.gpu.sampling.search import MOST, locate, locate_token
from kernels.gpu.sampling.segment_statistics import (
    MAX_ROWS,
    MAX_VOCAB_SIZE,
    SEGMENT,
    count_segments,
    decay_of,
    launch_statistics,
)


@dataclass(frozen=True)
class Config:
    """A program holds the statistics of a row's segments, padded to the power of two `segments`, in registers.

    `max_registers` is of a thread. Left to itself, ptxas guesses that a third block a multiprocessor is worth spilling.
    """

    segments: int
    num_warps: int
    max_registers: int


def choose_config(vocab_size: int) -> Config:
    """One configuration for each size of vocabulary."""
    return Config(next_power_of_two(count_segments(vocab_size)), num_warps=8, max_registers=255)


class Sampler:
    """Samples batches of up to `max_rows` rows, on one stream at a time: it owns the workspace.

    Args:
        max_rows: most rows of a batch.
        vocab_size: tokens of the vocabulary, 2**18 at most.
        device: where the logits are.
        num_candidates: how many tokens of a row a filter's cut is looked for among; with more left it is slower. A
            power of two.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self, max_rows: int, vocab_size: int, device: torch.device | str, *, num_candidates: int = 2048
    ) -> None:
        check_range("max_rows", max_rows, 1, MAX_ROWS)
        check_range("vocab_size", vocab_size, 1, MAX_VOCAB_SIZE)
        check_power_of_two("num_candidates", num_candidates, 2, 1 << 14)
        self._vocab_size = vocab_size
        self._max_rows = max_rows
        self._num_candidates = num_candidates
        self._config = choose_config(vocab_size)
        num_segments = count_segments(vocab_size)
        self._maxima = torch.empty(max_rows, num_segments, dtype=torch.float32, device=device)
        self._masses = torch.empty_like(self._maxima)
        self._weights = torch.empty_like(self._maxima)
        # One place more, which takes what is not chosen: 4 of them keep the rows of candidates aligned to 16 bytes.
        self._segment_lists = torch.empty(max_rows, num_segments + 1, dtype=torch.int32, device=device)
        self._candidates = torch.empty(max_rows, num_candidates + 4, dtype=torch.float32, device=device)

    def sample(
        self,
        logits: Tensor,
        temperatures: Tensor,
        top_ks: Tensor,
        top_ps: Tensor,
        min_ps: Tensor,
        uniforms: Tensor,
        lanes: Tensor,
        last_tokens: Tensor,
        out: Tensor,
    ) -> None:
        """Draw one token a row by inverting the CDF, in order of token id, of the filtered distribution.

        A row's token does not depend on the other rows. Two launches, whose grids depend on the shape of the logits
        alone. A row whose logits contain NaN or +inf, or nothing but -inf, gets its likeliest token that is a number,
        and if there is none, 0. Lanes are trusted: one beyond `last_tokens` writes to foreign memory.

        Args:
            logits: [rows, vocab], bfloat16, float16 or float32; the rows may lie apart, each must be dense.
            temperatures: [rows] float32; 0 takes the likeliest token, of equals the one with the lowest id, and ignores
                the rest of the row.
            top_ks: [rows] int32; 0 keeps all.
            top_ps: [rows] float32; 1 keeps all.
            min_ps: [rows] float32; 0 keeps all.
            uniforms: [rows] float32 in [0, 1).
            lanes: [rows] int32, distinct.
            last_tokens: [lanes] int32; becomes the drawn tokens at `lanes`.
            out: [rows] int32; becomes the drawn tokens.

        Raises:
            ValueError: a shape, dtype, device or stride does not fit, or there are more rows than `max_rows`.
        """
        check_rank("logits", logits, 2)
        check_dtype("logits", logits)
        num_rows, device = logits.shape[0], self._maxima.device
        check_range("the number of rows of logits", num_rows, 0, self._max_rows)
        check_tensor("logits", logits, (num_rows, self._vocab_size), logits.dtype, device)
        check_last_stride("logits", logits)
        floats = {"temperatures": temperatures, "top_ps": top_ps, "min_ps": min_ps, "uniforms": uniforms}
        for name, column in floats.items():
            check_tensor(name, column, (num_rows,), torch.float32, device)
            check_contiguous(name, column)
        for name, column in {"top_ks": top_ks, "lanes": lanes, "out": out}.items():
            check_tensor(name, column, (num_rows,), torch.int32, device)
            check_contiguous(name, column)
        check_rank("last_tokens", last_tokens, 1)
        check_tensor("last_tokens", last_tokens, tuple(last_tokens.shape), torch.int32, device)
        check_contiguous("last_tokens", last_tokens)
        if num_rows == 0:
            return
        launch_statistics(logits, temperatures, self._maxima, self._masses)
        _choose_kernel[(num_rows,)](
            logits,
            logits.stride(0),
            temperatures,
            top_ks,
            top_ps,
            min_ps,
            uniforms,
            lanes,
            last_tokens,
            out,
            self._maxima,
            self._masses,
            self._weights,
            self._segment_lists,
            self._candidates,
            VOCAB=self._vocab_size,
            NUM_SEGMENTS=count_segments(self._vocab_size),
            SEGMENTS=self._config.segments,
            CAPACITY=self._num_candidates,
            num_warps=self._config.num_warps,
            maxnreg=self._config.max_registers,
        )


# A step's columns are packed into one buffer, so that one may begin anywhere.
@triton.jit(
    do_not_specialize_on_alignment=[
        "temperatures",
        "top_ks",
        "top_ps",
        "min_ps",
        "uniforms",
        "lanes",
        "last_tokens",
        "out",
    ]
)
def _choose_kernel(
    logits,
    logits_stride,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    uniforms,
    lanes,
    last_tokens,
    out,
    maxima,
    masses,
    weights,
    segment_lists,
    candidates,
    VOCAB: tl.constexpr,
    NUM_SEGMENTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    row = tl.program_id(0)
    row_logits = logits + row.to(tl.int64) * logits_stride
    segments = tl.arange(0, SEGMENTS)
    places = row * NUM_SEGMENTS + segments
    row_maxima = tl.load(maxima + places, mask=segments < NUM_SEGMENTS, other=float("-inf"))
    peak = tl.max(row_maxima, axis=0)
    temperature = tl.load(temperatures + row)
    token = -1
    if temperature > 0:
        decay = decay_of(temperature)
        gaps = tl.abs(peak - row_maxima)
        row_masses = tl.load(masses + places, mask=segments < NUM_SEGMENTS, other=0.0) * tl.exp2(-gaps * decay)
        total = tl.sum(row_masses, axis=0)
        if total > 0:  # it is NaN where a logit is NaN or inf, or all are -inf
            top_k = tl.load(top_ks + row)
            top_p = tl.load(top_ps + row)
            min_p = tl.load(min_ps + row)
            uniform = tl.load(uniforms + row)
            if ((top_k > 0) & (top_k < VOCAB)) | (top_p < 1) | (min_p > 0):
                token = draw_filtered(
                    row_logits,
                    peak,
                    gaps,
                    row_masses,
                    temperature,
                    decay,
                    top_k,
                    top_p,
                    min_p,
                    uniform,
                    segment_lists + row * (NUM_SEGMENTS + 1),
                    weights + row * NUM_SEGMENTS,
                    candidates + row * (CAPACITY + 4),
                    VOCAB,
                    CAPACITY,
                )
            else:
                segment, left = locate(row_masses, uniform * total)
                token = locate_token(row_logits, peak, segment, left, decay, 0, MOST, MOST, 0, VOCAB)
    if token < 0:
        token = _find_likeliest(row_logits, row_maxima, peak, VOCAB, NUM_SEGMENTS)
    tl.store(out + row, token)
    tl.store(last_tokens + tl.load(lanes + row), token)


@triton.jit
def _find_likeliest(row_logits, row_maxima, peak, VOCAB: tl.constexpr, NUM_SEGMENTS: tl.constexpr):
    """The first token whose logit is the row's maximum; 0 if that is NaN."""
    segments = tl.arange(0, row_maxima.shape[0])
    segment = tl.min(tl.where(row_maxima == peak, segments, NUM_SEGMENTS - 1), axis=0)
    ids = segment * SEGMENT + tl.arange(0, SEGMENT)
    values = tl.load(row_logits + ids, mask=ids < VOCAB, other=float("nan")).to(tl.float32)
    token = tl.min(tl.where(values == peak, ids, VOCAB), axis=0)
    return tl.where(token < VOCAB, token, 0)
