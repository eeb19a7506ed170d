"""The draw of a row's token: by inversion of the CDF, among the tokens that top_k, top_p and min_p keep.

The row is not sorted. The segments' statistics bound the cut first, and the segments that lie wholly below the bound
are never read again. Where most tokens may survive, in flat distributions, those left are the whole row; nothing
overflows.
"""

import triton
import triton.language as tl

from kernels.gpu.launching import LaunchableKernel
from kernels.gpu.sampling.search import (
    MOST,
    find_cut,
    first_reaching,
    list_segments,
    locate,
    locate_token,
    survey,
    tie_class,
    weigh,
    weigh_listed,
)
from kernels.gpu.sampling.segment_statistics import SEGMENT, SMALLEST_NORMAL, decay_of
from kernels.reference.sampling import INPUT_DTYPES, NO_NUMBERS, NO_TOKEN

# Bounds from statistics are relaxed by more than the rounding of any float32 sum in here.
_SLACK = tl.constexpr(1e-4)
_NO_TOKEN = tl.constexpr(NO_TOKEN)
_NO_NUMBERS = tl.constexpr(NO_NUMBERS)


# The inputs are packed into one buffer, so each may begin at any address. They are passed in the order of their struct.
@LaunchableKernel
@triton.jit(do_not_specialize_on_alignment=[*INPUT_DTYPES, "last_tokens", "out"])
def choose_kernel(
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
    """One program a row; arguments as in `TritonSampler.sample`, then the statistics of its segments, and scratch."""
    row = tl.program_id(0)
    row_logits = logits + row.to(tl.int64) * logits_stride
    segments = tl.arange(0, SEGMENTS)
    places = row * NUM_SEGMENTS + segments
    row_maxima = tl.load(maxima + places, mask=segments < NUM_SEGMENTS, other=float("-inf"))
    peak = tl.max(row_maxima, axis=0)
    row_masses = tl.load(masses + places, mask=segments < NUM_SEGMENTS, other=0.0)
    temperature = tl.load(temperatures + row)
    mass = tl.sum(row_masses, axis=0)  # NaN where a logit is
    token = tl.where((peak == float("-inf")) & (mass == 0), _NO_TOKEN, _NO_NUMBERS)
    if temperature > 0:
        decay = decay_of(temperature)
        gaps = tl.abs(peak - row_maxima)
        row_masses *= tl.exp2(-gaps * decay)
        total = tl.sum(row_masses, axis=0)
        if total > 0:  # it is NaN where a logit is NaN or inf, or all are -inf
            top_k = tl.load(top_ks + row)
            top_p = tl.load(top_ps + row)
            min_p = tl.load(min_ps + row)
            uniform = tl.load(uniforms + row)
            if ((top_k > 0) & (top_k < VOCAB)) | (top_p < 1) | (min_p > 0):
                token = _draw_filtered(
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
    elif (tl.abs(peak) < float("inf")) & (mass == 0):
        token = _find_likeliest(row_logits, row_maxima, peak, VOCAB, NUM_SEGMENTS)
    tl.store(out + row, token)
    tl.store(last_tokens + tl.load(lanes + row), tl.maximum(token, 0))


@triton.jit
def _find_likeliest(row_logits, row_maxima, peak, VOCAB: tl.constexpr, NUM_SEGMENTS: tl.constexpr):
    """The first token whose logit is the row's maximum, which is finite."""
    segments = tl.arange(0, row_maxima.shape[0])
    segment = tl.min(tl.where(row_maxima == peak, segments, NUM_SEGMENTS - 1), axis=0)
    ids = segment * SEGMENT + tl.arange(0, SEGMENT)
    values = tl.load(row_logits + ids, mask=ids < VOCAB, other=float("-inf")).to(tl.float32)
    return tl.min(tl.where(values == peak, ids, VOCAB - 1), axis=0)


@triton.jit
def _draw_filtered(
    row_logits,
    peak,
    gaps,
    masses,
    temperature,
    decay,
    top_k,
    top_p,
    min_p,
    uniform,
    segment_list,
    weights,
    candidates,
    VOCAB: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Draw a row's token; at least one filter is on.

    Args:
        row_logits: the row.
        peak: its maximum, finite.
        gaps, masses: float32 [segments, padded], of the segments' best tokens and of all their tokens.
        temperature, top_k, top_p, min_p, uniform: the row's parameters.
        decay: `decay_of(temperature)`.
        segment_list: [segments + 1] int32 of scratch.
        weights: [segments] float32 of scratch.
        candidates: [CAPACITY + 1] float32 of scratch.
    """
    has_top_k = (top_k > 0) & (top_k < VOCAB)
    total = tl.sum(masses, axis=0)
    min_p_cut = tl.minimum(tl.abs(tl.log(min_p) * temperature).to(tl.int32, bitcast=True), MOST)
    low = tl.full([], -1, tl.int32)
    if has_top_k:
        low, high = _bound_top_k(gaps, top_k)
    elif top_p < 1:
        low, high = _bound_top_p(gaps, masses, decay, top_p * total, (1 - top_p) * total)
    else:
        high = min_p_cut
    high = tie_class(high, temperature)[1]
    num_listed = list_segments(gaps.to(tl.int32, bitcast=True), high, segment_list, (VOCAB + SEGMENT - 1) // SEGMENT)
    # Kept are the tokens of gaps below lowest and, from there up to highest, those with ids from first_id. (In bits.)
    lowest = high
    highest = high
    first_id = 0
    if has_top_k:
        cut = find_cut(row_logits, peak, segment_list, num_listed, low, high, 0.0, top_k, candidates, VOCAB, CAPACITY)
        lowest, highest = tie_class(cut, temperature)
        low = tl.full([], -1, tl.int32)
        if top_p < 1:
            total = survey(row_logits, peak, segment_list, num_listed, -1, highest, decay, VOCAB)[1]
    if top_p < 1:
        lowest, highest, first_id = _cut_top_p(
            row_logits,
            peak,
            temperature,
            decay,
            top_p * total,
            low,
            highest,
            segment_list,
            num_listed,
            weights,
            candidates,
            VOCAB,
            gaps.shape[0],
            CAPACITY,
        )
    highest = tl.minimum(highest, min_p_cut)
    kept = weigh_listed(
        row_logits, peak, segment_list, num_listed, decay, 0, lowest, highest, first_id, weights, VOCAB, gaps.shape[0]
    )
    place, left = locate(kept, uniform * tl.sum(kept, axis=0))
    segment = tl.load(segment_list + place)
    return locate_token(row_logits, peak, segment, left, decay, 0, lowest, highest, first_id, VOCAB)


@triton.jit
def _bound_top_k(gaps, top_k):
    """Bits of two gaps between which, above the first and up to the second, the top_k-th token's lies."""
    bits = gaps.to(tl.int32, bitcast=True)
    # As many segments have a token at least as likely as the top_k-th best of the segments' best ...
    high = first_reaching(bits, weigh(gaps, 0.0), top_k, -1, MOST)
    # ... and as many segments as top_k tokens fill must have one at least as likely as the top_k-th token.
    low = first_reaching(bits, tl.full([gaps.shape[0]], SEGMENT, tl.float32), top_k, -1, high) - 1
    return low, high


@triton.jit
def _bound_top_p(gaps, masses, decay, target, budget):
    """Bits of two gaps between which the tokens reach `target`: those beyond the second weigh no more than `budget`.

    A segment whose best token lies beyond a gap drops out whole. In any other the tokens beyond the gap weigh at most
    what the segment has beside its best token, and each no more than a token at the gap.
    """
    bits = gaps.to(tl.int32, bitcast=True)
    rests = tl.maximum(masses - weigh(gaps, decay), 0.0)
    below = tl.full([], -1, tl.int32)
    high = tl.full([], MOST, tl.int32)
    while high - below > 1 << 14:  # a bound need not be exact
        middle = below + (high - below) // 2
        each = tl.exp2(-middle.to(tl.float32, bitcast=True) * decay)
        # The constant stands behind the tensor: in front of it, Triton 3.7's interpreter makes a constant of both.
        most = tl.where(bits > middle, masses, tl.minimum(rests, each * (SEGMENT - 1)))
        fits = tl.sum(most, axis=0) <= budget * (1 - _SLACK)
        high = tl.where(fits, middle, high)
        below = tl.where(fits, below, middle)
    # The segments whose best tokens reach up to the cut weigh no less than the tokens up to it.
    low = first_reaching(bits, masses, target * (1 - _SLACK), -1, high) - 1
    return low, high


@triton.jit
def _cut_top_p(
    row_logits,
    peak,
    temperature,
    decay,
    target,
    low,
    high,
    segment_list,
    num_listed,
    weights,
    candidates,
    VOCAB: tl.constexpr,
    SEGMENTS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """The lowest and the highest gap (bits) of the tokens at the edge of the set that weighs `target`, and the first
    id of those that are needed: equals drop out in order of id."""
    cut = find_cut(row_logits, peak, segment_list, num_listed, low, high, decay, target, candidates, VOCAB, CAPACITY)
    lowest, highest = tie_class(cut, temperature)
    num_ties, _, likelier = survey(row_logits, peak, segment_list, num_listed, lowest - 1, highest, decay, VOCAB)
    each = tl.maximum(weigh(cut.to(tl.float32, bitcast=True), decay), SMALLEST_NORMAL)
    num_dropped = num_ties - tl.maximum(tl.ceil((target - likelier) / each), 1.0)
    first_id = 0
    if num_dropped > 0:
        ties = weigh_listed(
            row_logits, peak, segment_list, num_listed, 0.0, lowest, lowest, highest, 0, weights, VOCAB, SEGMENTS
        )
        place, left = locate(ties, num_dropped)
        segment = tl.load(segment_list + place)
        first_id = locate_token(row_logits, peak, segment, left, 0.0, lowest, lowest, highest, 0, VOCAB)
    return lowest, highest, first_id
