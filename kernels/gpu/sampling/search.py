"""What the filters are made of: gaps, sums of weights, and the search for a cut and for a token.

A token's gap is how far its logit lies below the row's maximum. Gaps are not negative, so their float32 bits, read as
integers, are in the same order, and a cut is found by bisection over those. A row's segments of interest stand in a
list, in order of token id; only those are read.
"""

import triton
import triton.language as tl

from kernels.gpu.loops import loop_bound
from kernels.gpu.sampling.segment_statistics import SEGMENT

MOST = tl.constexpr(0x7F7FFFFF)
"""The bits of the largest finite gap."""

# Segments that are read at a time: more hide more of the memory's latency, fewer leave registers for gathered tokens.
_TILE = tl.constexpr(32)
_GATHER_TILE = tl.constexpr(1024)


@triton.jit
def load_gaps(row_logits, peak, ids, inside):
    """Gaps of tokens, float32, inf outside and where a logit is -inf; `peak` is finite."""
    values = tl.load(row_logits + ids, mask=inside, other=float("-inf"))
    return tl.abs(peak - values.to(tl.float32))


@triton.jit
def weigh(gaps, decay):
    """exp(-gap / temperature); with decay 0 a token counts 1. A logit of -inf weighs nothing."""
    return tl.where(gaps < float("inf"), tl.exp2(-gaps * decay), 0.0)


@triton.jit
def tie_class(bits, temperature):
    """The lowest and the highest bits of gaps that tie with a gap: divided by the temperature they are the same score.

    A float32 quotient's relative spacing is at least half its dividend's, so that at most two neighbours fall together
    with it on either side. (Beyond float32's normal numbers it can be more, all of no weight.)
    """
    score = tl.div_rn(bits.to(tl.float32, bitcast=True), temperature)
    lowest = bits
    highest = bits
    for _ in tl.static_range(2):
        below = tl.maximum(lowest - 1, 0)
        lowest = tl.where(tl.div_rn(below.to(tl.float32, bitcast=True), temperature) == score, below, lowest)
        above = tl.minimum(highest + 1, MOST)
        highest = tl.where(tl.div_rn(above.to(tl.float32, bitcast=True), temperature) == score, above, highest)
    return lowest, highest


@triton.jit
def list_segments(bits, high, segment_list, SPARE: tl.constexpr):
    """Write the segments whose best token has bits up to `high`, in ascending order, and return their number."""
    chosen = bits <= high
    # What is not chosen goes to a spare place. A mask would have to change its layout, by way of local memory.
    places = tl.where(chosen, tl.cumsum(chosen.to(tl.int32), axis=0) - 1, SPARE)
    tl.store(segment_list + places, tl.arange(0, bits.shape[0]))
    tl.debug_barrier()  # other threads read what these have written
    return tl.sum(chosen.to(tl.int32), axis=0)


@triton.jit
def _load_listed(row_logits, peak, segment_list, num_listed, start, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Token ids and gaps of a tile of listed segments, [TILE, SEGMENT] both."""
    places = start + tl.arange(0, TILE)
    segments = tl.load(segment_list + places, mask=places < num_listed, other=0)
    ids = segments[:, None] * SEGMENT + tl.arange(0, SEGMENT)[None, :]
    return ids, load_gaps(row_logits, peak, ids, (places < num_listed)[:, None] & (ids < VOCAB))


@triton.jit
def survey(row_logits, peak, segment_list, num_listed, low, high, decay, VOCAB: tl.constexpr):
    """How many listed tokens have gaps in (low, high], what they weigh, and what those with gaps up to low weigh."""
    counts = tl.zeros([_TILE], tl.float32)  # exact, and LLVM would count booleans by way of local memory
    within = tl.zeros([_TILE], tl.float32)
    below = tl.zeros([_TILE], tl.float32)
    for start in range(0, loop_bound(num_listed), _TILE):
        _, gaps = _load_listed(row_logits, peak, segment_list, num_listed, start, VOCAB, _TILE)
        bits = gaps.to(tl.int32, bitcast=True)
        weights = weigh(gaps, decay)
        chosen = (bits > low) & (bits <= high)
        counts += tl.sum(tl.where(chosen, 1.0, 0.0), axis=1)
        within += tl.sum(tl.where(chosen, weights, 0.0), axis=1)
        below += tl.sum(tl.where(bits <= low, weights, 0.0), axis=1)
    return tl.sum(counts, axis=0), tl.sum(within, axis=0), tl.sum(below, axis=0)


@triton.jit
def _gather(
    row_logits,
    peak,
    segment_list,
    num_listed,
    low,
    high,
    candidates,
    VOCAB: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Gaps in (low, high] of the listed tokens, the first CAPACITY of them, float32 [CAPACITY] padded with inf.

    `candidates` has one place more, for all others.
    """
    count = 0
    for start in range(0, loop_bound(num_listed * SEGMENT), _GATHER_TILE):
        offsets = start + tl.arange(0, _GATHER_TILE)
        segments = tl.load(segment_list + offsets // SEGMENT, mask=offsets < num_listed * SEGMENT, other=0)
        ids = segments * SEGMENT + offsets % SEGMENT
        gaps = load_gaps(row_logits, peak, ids, (offsets < num_listed * SEGMENT) & (ids < VOCAB))
        bits = gaps.to(tl.int32, bitcast=True)
        chosen = (bits > low) & (bits <= high)
        places = tl.where(chosen, count + tl.cumsum(chosen.to(tl.int32), axis=0) - 1, CAPACITY)
        tl.store(candidates + tl.minimum(places, CAPACITY), gaps)
        count += tl.sum(chosen.to(tl.int32), axis=0)
    tl.debug_barrier()
    places = tl.arange(0, CAPACITY)
    return tl.load(candidates + places, mask=places < count, other=float("inf"))


@triton.jit
def first_reaching(bits, weights, target, low, high):
    """The least value in (low, high] such that all with no more bits weigh `target` together; high if there is none."""
    low = tl.cast(low, tl.int32)  # what a loop carries is no constant
    high = tl.cast(high, tl.int32)
    while high - low > 1:
        middle = low + (high - low) // 2
        reached = tl.sum(tl.where(bits <= middle, weights, 0.0), axis=0) >= target
        high = tl.where(reached, middle, high)
        low = tl.where(reached, low, middle)
    return high


@triton.jit
def find_cut(
    row_logits,
    peak,
    segment_list,
    num_listed,
    low,
    high,
    decay,
    target,
    candidates,
    VOCAB: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """The least gap (its bits) up to which tokens weigh `target` together, known to lie in (low, high].

    The tokens between the bounds are gathered, CAPACITY at most, and the cut is found among those. While they are
    more, bisection over all listed segments narrows the bounds: slower, but right whatever the distribution.
    """
    low = tl.cast(low, tl.int32)  # what a loop carries is no constant
    middle = high
    count = CAPACITY + 1.0
    below = 0.0
    while (count > CAPACITY) & (high - low > 1):
        inner, within, below = survey(row_logits, peak, segment_list, num_listed, low, middle, decay, VOCAB)
        reached = (below + within >= target) | (middle == high)  # the first time round, up to high
        count = tl.where(reached, inner, count - inner)
        high = tl.where(reached, middle, high)
        low = tl.where(reached, low, middle)
        below = tl.where(reached, below, below + within)
        middle = low + (high - low) // 2
    gaps = _gather(row_logits, peak, segment_list, num_listed, low, high, candidates, VOCAB, CAPACITY)
    return first_reaching(gaps.to(tl.int32, bitcast=True), weigh(gaps, decay), target - below, low, high)


@triton.jit
def _weigh_kept(gaps, ids, decay, start, lowest, highest, first_id):
    """Weights of the tokens whose gaps have bits from start to highest; of those from lowest only ids from first_id."""
    bits = gaps.to(tl.int32, bitcast=True)
    kept = (bits >= start) & (bits <= highest) & ((bits < lowest) | (ids >= first_id))
    return tl.where(kept, weigh(gaps, decay), 0.0)


@triton.jit
def weigh_listed(
    row_logits,
    peak,
    segment_list,
    num_listed,
    decay,
    start,
    lowest,
    highest,
    first_id,
    weights,
    VOCAB: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """What the kept tokens of each listed segment weigh, float32 [SEGMENTS] in the order of the list."""
    for begin in range(0, loop_bound(num_listed), _TILE):
        ids, gaps = _load_listed(row_logits, peak, segment_list, num_listed, begin, VOCAB, _TILE)
        sums = tl.sum(_weigh_kept(gaps, ids, decay, start, lowest, highest, first_id), axis=1)
        places = begin + tl.arange(0, _TILE)
        tl.store(weights + places, sums, mask=places < num_listed)
    tl.debug_barrier()
    places = tl.arange(0, SEGMENTS)
    return tl.load(weights + places, mask=places < num_listed, other=0.0)


@triton.jit
def locate(weights, target):
    """Invert a CDF: the first place up to which the weights exceed `target`, and how much of the target is left there.

    A place of no weight is never the one, whatever the rounding; 0 if there is no weight at all.
    """
    places = tl.arange(0, weights.shape[0])
    sums = tl.cumsum(weights, axis=0)
    last = tl.max(tl.where(weights > 0, places, 0), axis=0)
    place = tl.min(tl.where((sums > target) & (weights > 0), places, last), axis=0)
    before = tl.sum(tl.where(places == place, sums - weights, 0.0), axis=0)
    return place, tl.maximum(target - before, 0.0)


@triton.jit
def locate_token(row_logits, peak, segment, target, decay, start, lowest, highest, first_id, VOCAB: tl.constexpr):
    """The first token of a segment up to which its kept tokens' weights exceed `target`."""
    ids = segment * SEGMENT + tl.arange(0, SEGMENT)
    gaps = load_gaps(row_logits, peak, ids, ids < VOCAB)
    place, _ = locate(_weigh_kept(gaps, ids, decay, start, lowest, highest, first_id), target)
    return segment * SEGMENT + place
