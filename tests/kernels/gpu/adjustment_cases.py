"""Rows that ask something of their scores, as tensors."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kernels.arguments import Adjustments
from kernels.reference import mask_words

STALE = 1
"""What stands in a lane behind its tokens: a token of any vocabulary but the smallest, which must not count."""


@dataclass(frozen=True)
class Asked:
    """What a row asks, of which sequence.

    Attributes:
        tokens: all known ones, the first `num_prompt` of them the prompt's.
        allowed: None allows all.
        biases: by token.
    """

    tokens: Sequence[int] = (0,)
    num_prompt: int = 1
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    allowed: Sequence[int] | None = None
    biases: dict[int, float] = field(default_factory=dict)
    words: Sequence[Sequence[int]] = ()


def adjustments_of(
    rows: Sequence[Asked], vocab_size: int, positions: int, device: torch.device, beside: int = 0
) -> tuple[Adjustments, Tensor]:
    """The rows' adjustments, and lanes in disorder between others that no row has; each lane has `beside` values
    after it."""
    generator = torch.Generator().manual_seed(len(rows))
    lanes = torch.randperm(2 * len(rows) + 1, generator=generator)[: len(rows)]
    lane_tokens = torch.full((2 * len(rows) + 1, positions + beside), STALE, dtype=torch.int32)[:, :positions]
    for lane, row in zip(lanes, rows, strict=True):
        lane_tokens[lane, : len(row.tokens)] = torch.tensor(row.tokens)
    masks = [row.allowed for row in rows if row.allowed is not None]
    words = [word for row in rows for word in row.words]
    columns = {
        "lanes": lanes,
        "lengths": [len(row.tokens) for row in rows],
        "num_prompts": [row.num_prompt for row in rows],
        "mask_rows": _mask_rows(rows),
        "bias_starts": _starts(len(row.biases) for row in rows),
        "bias_ids": [token for row in rows for token in row.biases],
        "word_starts": _starts(len(row.words) for row in rows),
        "word_offsets": _starts(map(len, words)),
        "word_tokens": [token for word in words for token in word],
    }
    floats = {
        "presences": [row.presence for row in rows],
        "frequencies": [row.frequency for row in rows],
        "repetitions": [row.repetition for row in rows],
        "biases": [bias for row in rows for bias in row.biases.values()],
    }
    adjustments = Adjustments(
        **{name: torch.as_tensor(column, dtype=torch.int32).to(device) for name, column in columns.items()},
        **{name: torch.tensor(column, dtype=torch.float32).to(device) for name, column in floats.items()},
        masks=_masks(masks, vocab_size).to(device),
    )
    return adjustments, lane_tokens.to(device)


def random_row(generator: torch.Generator, vocab_size: int, num_tokens: int, num_asked: int) -> Asked:
    """All that can be asked, of few distinct tokens, so that one token has several things asked of it.

    Args:
        generator: of everything.
        vocab_size: of the tokens.
        num_tokens: known tokens of the sequence.
        num_asked: biases and bad words, as many of each as there can be.
    """

    def integers(low: int, high: int, count: int) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    few = torch.randperm(vocab_size, generator=generator)[: max(4, num_asked)]
    num_prompt = integers(0, num_tokens, 1)[0] + 1
    tokens = few[integers(0, len(few), num_tokens)].tolist()
    ends = [tokens[len(tokens) - size :] for size in integers(0, 1 + min(4, num_tokens), num_asked)]
    others = [few[integers(0, len(few), size)].tolist() for size in integers(1, 12, num_asked)]
    last = few[integers(0, len(few), num_asked)].tolist()
    biased = few[torch.randperm(len(few), generator=generator)[:num_asked]].tolist()
    values = torch.randint(-40, 40, (len(biased),), generator=generator) / 4
    values[values < -9] = -torch.inf
    allowed = torch.rand(vocab_size, generator=generator) < 0.8
    penalties = (torch.rand(3, generator=generator) * 2 - 0.7).tolist()
    return Asked(
        tokens,
        num_prompt,
        presence=penalties[0],
        frequency=penalties[1],
        repetition=abs(penalties[2]) + 0.5,
        allowed=allowed.nonzero().flatten().tolist(),
        biases=dict(zip(biased, values.tolist(), strict=True)),
        words=[*([*end, token] for end, token in zip(ends, last, strict=True)), *others],
    )


def _mask_rows(rows: Sequence[Asked]) -> list[int]:
    numbers = itertools.count()
    return [-1 if row.allowed is None else next(numbers) for row in rows]


def _masks(masks: Sequence[Sequence[int]], vocab_size: int) -> Tensor:
    """A bit for each token; those beyond the vocabulary are set at random, as nobody reads them."""
    bits = np.ones((len(masks), 32 * mask_words(vocab_size)), np.uint8)
    for row, allowed in zip(bits, masks, strict=True):
        row[:vocab_size] = 0
        row[list(allowed)] = 1
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))


def _starts(counts: Iterable[int]) -> list[int]:
    return [0, *itertools.accumulate(counts)]
