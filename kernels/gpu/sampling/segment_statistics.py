"""The one pass over all logits: for each segment of 128 tokens its maximum, and its softmax mass relative to it.

Whatever needs a row's softmax, maximum or largest tokens afterwards reads these few numbers and the segments that they
single out, and no others. The idea is that of online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867).
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.integers import ceil_div
from kernels.gpu.launching import LaunchableKernel

SEGMENT = tl.constexpr(128)
"""Tokens that share a maximum and a mass. A warp reads two of them with 16-byte loads and reduces them by shuffles."""

MAX_ROWS = 65_535
"""As many rows as a CUDA grid has in its second dimension."""
MAX_VOCAB_SIZE = 1 << 18
"""A program keeps the statistics of a row in registers."""

LOG2E = tl.constexpr(1.4426950408889634)
SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)

_FULL_CHIP_PROGRAMS = 264


@dataclass(frozen=True)
class StatisticsTiles:
    """A program takes `segments` segments of one row."""

    segments: int
    num_warps: int


def choose_tiles(num_rows: int, vocab_size: int) -> StatisticsTiles:
    """Two sizes: a few rows are cut finely enough to go round all multiprocessors of a large GPU.

    Both give every thread the same tokens of a segment, so that a segment's mass is the same in a batch of any size.

    Args:
        num_rows, vocab_size: shape of the logits.
    """
    segments = 32 if num_rows * ceil_div(vocab_size, 32 * SEGMENT.value) >= _FULL_CHIP_PROGRAMS else 8
    return StatisticsTiles(segments, num_warps=4)


def count_segments(vocab_size: int) -> int:
    """How many segments a row has; the last one may be short."""
    return ceil_div(vocab_size, SEGMENT.value)


def launch_statistics(logits: Tensor, temperatures: Tensor | None, maxima: Tensor, masses: Tensor) -> None:
    """Maximum and mass of each segment. The caller has checked the arguments.

    The mass is the sum of `exp((logit - maximum) / temperature)`, by a tree of float32 additions; 0 in a segment of
    -inf, NaN where a logit is NaN or +inf. Maxima leave out NaN, but where there is nothing else they may be NaN.

    Args:
        logits: [rows, vocab], bfloat16, float16 or float32; the rows may lie apart.
        temperatures: [rows] float32; in rows of 0 a mass is 0, or NaN where a logit is. None stands for 1 throughout.
        maxima, masses: [at least rows, segments] float32, dense.
    """
    num_rows, vocab_size = logits.shape
    tiles = choose_tiles(num_rows, vocab_size)
    num_segments = count_segments(vocab_size)
    _statistics_kernel.launch(
        (ceil_div(num_segments, tiles.segments), num_rows),
        logits,
        logits.stride(0),
        temperatures,
        maxima,
        masses,
        VOCAB=vocab_size,
        NUM_SEGMENTS=num_segments,
        TILE=tiles.segments,
        num_warps=tiles.num_warps,
    )


@LaunchableKernel
@triton.jit(do_not_specialize_on_alignment=["temperatures"])
def _statistics_kernel(
    logits,
    logits_stride,
    temperatures,
    maxima,
    masses,
    VOCAB: tl.constexpr,
    NUM_SEGMENTS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(1)
    segments = tl.program_id(0) * TILE + tl.arange(0, TILE)
    ids = segments[:, None] * SEGMENT + tl.arange(0, SEGMENT)[None, :]
    # int64: 14,134 rows of 151,936 logits pass 2**31 values.
    values = tl.load(logits + row.to(tl.int64) * logits_stride + ids, mask=ids < VOCAB, other=float("-inf"))
    values = values.to(tl.float32)
    peaks = tl.max(values, axis=1)
    places = row * NUM_SEGMENTS + segments
    tl.store(maxima + places, peaks, mask=segments < NUM_SEGMENTS)
    temperature = 1.0 if temperatures is None else tl.load(temperatures + row)
    if temperature > 0:
        bases = tl.where(peaks == float("-inf"), 0.0, peaks)  # -inf - -inf is no number
        sums = tl.sum(tl.exp2((values - bases[:, None]) * decay_of(temperature)), axis=1)
    else:
        sums = tl.sum(tl.where(tl.abs(values) >= 0, 0.0, values), axis=1)  # only NaN is left
    tl.store(masses + places, sums, mask=segments < NUM_SEGMENTS)


@triton.jit
def decay_of(temperature):
    """By how many halvings a token's weight falls for each unit that its logit lies below the maximum."""
    return LOG2E / tl.maximum(temperature, SMALLEST_NORMAL)
