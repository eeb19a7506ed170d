"""Marks: what is known of each token of a row, in 32 bits.

How often it was generated, whether the prompt has it, which bias it has, whether it would complete a bad word. They are
gathered by atomic operations on integers, whose order does not matter.
"""

import triton
import triton.language as tl

from kernels.gpu.launching import LaunchableKernel
from kernels.gpu.loops import loop_bound

# From the lowest bit: how often the token was generated; two flags; the number of its bias, counted from 1.
MOST_COUNTED = tl.constexpr((1 << 20) - 1)
IN_PROMPT = tl.constexpr(1 << 20)
BANNED = tl.constexpr(1 << 21)
BIAS_SHIFT = tl.constexpr(22)
MOST_BIASES = tl.constexpr((1 << 10) - 1)

STAGED = [
    "lanes",
    "lengths",
    "num_prompts",
    "presences",
    "frequencies",
    "repetitions",
    "mask_rows",
    "masks",
    "bias_starts",
    "bias_ids",
    "biases",
    "word_starts",
    "word_offsets",
    "word_tokens",
]
"""Fields of `Adjustments`. They come packed into one buffer, so each may begin at any address."""

_TILE_BIASES = tl.constexpr(128)
# Words are some tokens long.
_TILE_WORDS = tl.constexpr(64)
_TILE_WORD_TOKENS = tl.constexpr(8)


@triton.jit
def has_penalties(row, presences, frequencies, repetitions):
    """Whether the row's tokens count."""
    repetition = tl.load(repetitions + row)
    return (tl.load(presences + row) != 0) | (tl.load(frequencies + row) != 0) | (repetition != 1)


@triton.jit
def has_marks(row, presences, frequencies, repetitions, bias_starts, word_starts):
    """Whether the row's marks are in use; those of other rows are never written nor read."""
    num_biases = tl.load(bias_starts + row + 1) - tl.load(bias_starts + row)
    num_words = tl.load(word_starts + row + 1) - tl.load(word_starts + row)
    return has_penalties(row, presences, frequencies, repetitions) | (num_biases > 0) | (num_words > 0)


@LaunchableKernel
@triton.jit(do_not_specialize_on_alignment=STAGED)
def clear_marks_kernel(
    presences,
    frequencies,
    repetitions,
    bias_starts,
    word_starts,
    marks,
    marks_stride,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program for each row and tile of the vocabulary."""
    row = tl.program_id(1)
    if has_marks(row, presences, frequencies, repetitions, bias_starts, word_starts):
        ids = tl.program_id(0) * TILE + tl.arange(0, TILE)
        tl.store(marks + row.to(tl.int64) * marks_stride + ids, tl.zeros([TILE], tl.int32), mask=ids < VOCAB)


@LaunchableKernel
@triton.jit(do_not_specialize_on_alignment=STAGED)
def mark_kernel(
    lanes,
    lengths,
    num_prompts,
    presences,
    frequencies,
    repetitions,
    bias_starts,
    word_starts,
    bias_ids,
    word_offsets,
    word_tokens,
    lane_tokens,
    lane_stride,
    marks,
    marks_stride,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program for each row and tile of positions; a row's first one marks what its lists name as well."""
    row = tl.program_id(1)
    row_marks = marks + row.to(tl.int64) * marks_stride
    tokens = lane_tokens + tl.load(lanes + row).to(tl.int64) * lane_stride
    length = tl.load(lengths + row)
    num_prompt = tl.load(num_prompts + row)
    if has_penalties(row, presences, frequencies, repetitions):
        positions = tl.program_id(0) * TILE + tl.arange(0, TILE)
        ids = tl.load(tokens + positions, mask=positions < length, other=-1)
        counted = (ids >= 0) & (ids < VOCAB)
        tl.atomic_or(row_marks + ids, IN_PROMPT, mask=counted & (positions < num_prompt), sem="relaxed")
        tl.atomic_add(row_marks + ids, 1, mask=counted & (positions >= num_prompt), sem="relaxed")
    if tl.program_id(0) == 0:
        _mark_biases(row_marks, bias_ids, tl.load(bias_starts + row), tl.load(bias_starts + row + 1))
        first_word = tl.load(word_starts + row)
        end_word = tl.load(word_starts + row + 1)
        _ban_words(row_marks, tokens + length, length - num_prompt, word_offsets, word_tokens, first_word, end_word)


@triton.jit
def _mark_biases(row_marks, bias_ids, first, end):
    """Write the number of each bias of a row to its token."""
    for at in range(0, loop_bound(end - first), _TILE_BIASES):
        numbers = at + tl.arange(0, _TILE_BIASES)
        inside = numbers < end - first
        ids = tl.load(bias_ids + first + numbers, mask=inside, other=0)
        tl.atomic_or(row_marks + ids, (numbers + 1) << BIAS_SHIFT, mask=inside, sem="relaxed")


@triton.jit
def _ban_words(row_marks, newest, num_generated, word_offsets, word_tokens, first, end):
    """Ban the last token of each bad word of a row whose others are the newest tokens.

    Args:
        row_marks: of the row.
        newest: where the row's tokens end.
        num_generated: how many of the tokens before that count.
        word_offsets, word_tokens: see `Adjustments`.
        first, end: the row's words.
    """
    for at in range(0, loop_bound(end - first), _TILE_WORDS):
        words = first + at + tl.arange(0, _TILE_WORDS)
        starts = tl.load(word_offsets + words, mask=words < end, other=0)
        lasts = tl.load(word_offsets + words + 1, mask=words < end, other=1) - 1
        sizes = lasts - starts
        fits = (words < end) & (sizes <= num_generated)
        differences = tl.zeros([_TILE_WORDS], tl.int32)
        for begin in range(0, loop_bound(tl.max(sizes, axis=0)), _TILE_WORD_TOKENS):
            places = begin + tl.arange(0, _TILE_WORD_TOKENS)[None, :]
            compared = fits[:, None] & (places < sizes[:, None])
            wanted = tl.load(word_tokens + starts[:, None] + places, mask=compared, other=0)
            found = tl.load(newest + (places - sizes[:, None]), mask=compared, other=0)
            differences += tl.sum((wanted != found).to(tl.int32), axis=1)
        ids = tl.load(word_tokens + lasts, mask=words < end, other=0)
        tl.atomic_or(row_marks + ids, BANNED, mask=fits & (differences == 0), sem="relaxed")
