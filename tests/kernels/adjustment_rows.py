"""What tests ask of rows' scores, a row at a time, and the arrays that kernels take."""

import itertools
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernels.arguments import Adjustments
from kernels.reference.adjustments import MASK_BITS, mask_words

OTHER_TOKEN = 2**30
"""Fills lanes beyond their tokens: an index that no vocabulary has."""


@dataclass(frozen=True)
class AdjustedRow:
    """The tokens of a row's sequence, and what is asked of its scores. `allowed` is None for all tokens."""

    prompt: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    allowed: list[int] | None = None
    biases: dict[int, float] = field(default_factory=dict)
    words: list[list[int]] = field(default_factory=list)


def arrays_of(rows: list[AdjustedRow], vocab_size: int, positions: int | None = None) -> tuple[Adjustments, Tensor]:
    """The adjustments, and the lanes' tokens: rows take the lanes from the last one down to lane 1."""
    masks = [_mask(row.allowed, vocab_size) for row in rows if row.allowed is not None]
    numbers = itertools.count()
    words = [word for row in rows for word in row.words]
    lanes = [len(rows) - row for row in range(len(rows))]
    tokens = [row.prompt + row.generated for row in rows]
    lane_tokens = torch.full((len(rows) + 1, positions or max(map(len, tokens)) + 2), OTHER_TOKEN, dtype=torch.int32)
    for lane, known in zip(lanes, tokens, strict=True):
        lane_tokens[lane, : len(known)] = _ints(known)
    adjustments = Adjustments(
        lanes=_ints(lanes),
        lengths=_ints([len(known) for known in tokens]),
        num_prompts=_ints([len(row.prompt) for row in rows]),
        presences=_floats([row.presence for row in rows]),
        frequencies=_floats([row.frequency for row in rows]),
        repetitions=_floats([row.repetition for row in rows]),
        mask_rows=_ints([-1 if row.allowed is None else next(numbers) for row in rows]),
        masks=torch.stack(masks) if masks else torch.zeros(0, mask_words(vocab_size), dtype=torch.int32),
        bias_starts=_starts([len(row.biases) for row in rows]),
        bias_ids=_ints([token for row in rows for token in row.biases]),
        biases=_floats([bias for row in rows for bias in row.biases.values()]),
        word_starts=_starts([len(row.words) for row in rows]),
        word_offsets=_starts([len(word) for word in words]),
        word_tokens=_ints([token for word in words for token in word]),
    )
    return adjustments, lane_tokens


def adjusted_rows(vocab_size: int, most_tokens: int = 12) -> st.SearchStrategy[AdjustedRow]:
    """Rows with everything that may be asked of a row, each on or off. Few tokens occur, so that they occur often."""
    token = st.one_of(st.integers(0, min(3, vocab_size - 1)), st.integers(0, vocab_size - 1))
    tokens = st.lists(token, max_size=most_tokens)
    penalty = st.one_of(st.just(0.0), st.floats(-2, 2, width=32))
    return st.builds(
        AdjustedRow,
        prompt=tokens,
        generated=tokens,
        presence=penalty,
        frequency=penalty,
        repetition=st.one_of(st.just(1.0), st.floats(0.125, 8, width=32)),
        allowed=st.one_of(st.none(), st.lists(token, max_size=vocab_size), st.just(list(range(vocab_size)))),
        biases=st.dictionaries(token, st.one_of(st.floats(-100, 100, width=32), st.just(-torch.inf)), max_size=4),
        words=st.lists(st.lists(token, min_size=1, max_size=3), max_size=4),
    )


def _mask(allowed: list[int], vocab_size: int) -> Tensor:
    """The bits beyond the vocabulary are random, as nobody may look at them."""
    bits = torch.zeros(mask_words(vocab_size) * MASK_BITS, dtype=torch.int64)
    bits[vocab_size:] = torch.arange(len(bits) - vocab_size) % 2
    bits[allowed] = 1
    words = (bits.view(-1, MASK_BITS) << torch.arange(MASK_BITS)).sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def _ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _floats(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def _starts(lengths: list[int]) -> Tensor:
    return _ints([0, *itertools.accumulate(lengths)])
