"""What is asked of tokens' scores, as the twin defines it: against transformers' processors, and against vLLM's
definitions spelled out in float64."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from kernels import reference
from tests.kernels.adjustment_rows import AdjustedRow, adjusted_rows, arrays_of
from tests.kernels.no_numbers import check_rows_without_numbers
from tests.support.effort import examples

VOCAB = 50
TOKENS = st.lists(st.integers(0, VOCAB - 2), max_size=12)
NO_WORD_HAS_IT = VOCAB - 1


def logits_of(rows: int, seed: int, vocab_size: int = VOCAB) -> Tensor:
    return 4 * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed))


def adjust(logits: Tensor, rows: list[AdjustedRow]) -> Tensor:
    out = torch.full(logits.shape, torch.nan)
    reference.adjust_logits(logits, *arrays_of(rows, logits.shape[1]), out)
    return out


def by_transformers(processor: LogitsProcessor, logits: Tensor, tokens: list[int]) -> Tensor:
    return processor(torch.tensor([tokens], dtype=torch.int64), logits.clone())


@settings(max_examples=examples(60))
@given(prompt=TOKENS, generated=TOKENS, penalty=st.floats(0.125, 8, width=32), seed=st.integers(0, 99))
def test_repetition_is_that_of_transformers(prompt: list[int], generated: list[int], penalty: float, seed: int) -> None:
    logits = logits_of(1, seed)
    expected = by_transformers(RepetitionPenaltyLogitsProcessor(penalty), logits, prompt + generated)
    assert adjust(logits, [AdjustedRow(prompt, generated, repetition=penalty)]).equal(expected)


@settings(max_examples=examples(60))
@given(
    biases=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
def test_biases_are_those_of_transformers(biases: dict[int, float], seed: int) -> None:
    logits = logits_of(1, seed)
    processor = SequenceBiasLogitsProcessor([[[token], bias] for token, bias in biases.items()])
    expected = by_transformers(processor, logits, [1, 2])
    assert adjust(logits, [AdjustedRow([1], [2], biases=biases)]).equal(expected)


@settings(max_examples=examples(100))
@given(data=st.data(), prompt=TOKENS, generated=TOKENS, seed=st.integers(0, 99))
def test_bad_words_are_those_of_transformers_among_generated_tokens(
    data: st.DataObject, prompt: list[int], generated: list[int], seed: int
) -> None:
    """transformers looks at the prompt, too, and passes over words that are as long as all that it sees: a token that
    no word has comes first here."""
    last = st.integers(0, VOCAB - 2)
    ends = st.integers(0, len(generated)).map(lambda start: generated[start:])
    word = st.one_of(st.lists(last, min_size=1, max_size=3), st.builds(lambda end, token: [*end, token], ends, last))
    words = data.draw(st.lists(word, min_size=1, max_size=4, unique_by=tuple))
    logits = logits_of(1, seed)
    expected = by_transformers(NoBadWordsLogitsProcessor(words), logits, [NO_WORD_HAS_IT, *generated])
    assert adjust(logits, [AdjustedRow(prompt, generated, words=words)]).equal(expected)


def test_prompts_do_not_begin_bad_words() -> None:
    for prompt, generated, banned in (([5], [6], False), ([], [5, 6], True), ([5, 6], [], False), ([6], [5, 6], True)):
        scores = adjust(torch.zeros(1, VOCAB), [AdjustedRow(prompt, generated, words=[[5, 6, 7]])])
        assert (scores[0] == -torch.inf).nonzero().flatten().tolist() == [7] * banned


@pytest.mark.parametrize("length", [0, 3, 4, 5])
def test_a_least_length_is_a_bias_of_minus_infinity(length: int) -> None:
    """The stop tokens have it as long as there are too few tokens."""
    logits, stops = logits_of(1, 7), [3, 9]
    tokens = list(range(length))
    expected = by_transformers(MinLengthLogitsProcessor(4, stops), logits, tokens)
    biases = dict.fromkeys(stops, -torch.inf) if length < 4 else {}
    assert adjust(logits, [AdjustedRow([], tokens, biases=biases)]).equal(expected)


def spelled_out(scores: list[float], row: AdjustedRow) -> list[float]:
    """vLLM's sampler in float64, one token at a time: `Sampler.forward` of V1, from its allowed token ids on."""
    counts, known = Counter(row.generated), {*row.prompt, *row.generated}
    newest_first = row.generated[::-1]
    adjusted = []
    for token, score in enumerate(scores):
        is_banned = row.allowed is not None and token not in row.allowed
        for *prefix, last in row.words:
            is_banned |= token == last and newest_first[: len(prefix)] == prefix[::-1]
        wanted = -math.inf if is_banned else score + row.biases.get(token, 0.0)
        if token in known:
            wanted = wanted / row.repetition if wanted > 0 else wanted * row.repetition
        wanted -= row.frequency * counts[token]
        wanted -= row.presence * (counts[token] > 0)
        adjusted.append(wanted)
    return adjusted


@settings(max_examples=examples(150))
@given(data=st.data(), vocab_size=st.sampled_from([1, 2, 31, 32, 33, 64, 70]), seed=st.integers(0, 99))
def test_all_of_it_in_the_order_of_vllm(data: st.DataObject, vocab_size: int, seed: int) -> None:
    rows = data.draw(st.lists(adjusted_rows(vocab_size), min_size=1, max_size=3))
    logits = logits_of(len(rows), seed, vocab_size)
    expected = [spelled_out(scores, row) for scores, row in zip(logits.tolist(), rows, strict=True)]
    torch.testing.assert_close(adjust(logits, rows).double(), torch.tensor(expected).double(), atol=1e-4, rtol=1e-5)


def test_penalties_of_presence_and_frequency() -> None:
    """The examples of OpenAI's documentation: mu[j] - c[j] * frequency - (c[j] > 0) * presence; the prompt is none."""
    row = AdjustedRow(prompt=[0, 1, 1], generated=[1, 2, 2, 2], presence=0.5, frequency=0.25)
    logits = torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    assert adjust(logits, [row]).tolist() == [[1.0, 0.25, -0.25, 1.0]]
    gains = replace(row, presence=-0.5, frequency=-0.25)
    assert adjust(logits, [gains]).tolist() == [[1.0, 1.75, 2.25, 1.0]]


def test_repetition_comes_before_presence_and_after_biases() -> None:
    row = AdjustedRow(prompt=[0], generated=[1, 1], presence=1.0, frequency=0.5, repetition=2.0, biases={0: -5, 1: 3})
    assert adjust(torch.tensor([[4.0, 4.0, 4.0]]), [row]).tolist() == [[-2.0, 1.5, 4.0]]


def test_what_is_banned_stays_banned() -> None:
    asked = AdjustedRow([0], [1, 2], -2.0, -2.0, 0.5, biases={0: 100.0, 1: 100.0, 2: 100.0})
    every = AdjustedRow([0], [1, 2], biases=dict.fromkeys(range(3), -torch.inf))
    rows = [replace(asked, allowed=[]), replace(asked, words=[[0], [1], [2]]), every]
    assert (adjust(torch.ones(3, 3), rows) == -torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_what_is_no_number_shows_whatever_is_asked(dtype: torch.dtype) -> None:
    check_rows_without_numbers(reference, dtype, torch.device("cpu"))


@settings(max_examples=examples(40))
@given(data=st.data(), seed=st.integers(0, 99))
def test_a_row_does_not_depend_on_its_batch(data: st.DataObject, seed: int) -> None:
    rows = data.draw(st.lists(adjusted_rows(40), min_size=2, max_size=4))
    logits = logits_of(len(rows), seed, 40).bfloat16()
    arrays, lane_tokens = arrays_of(rows, 40)
    together = adjust(logits, rows)
    for row in range(len(rows)):
        alone = logits[row : row + 1]
        assert adjust(alone, [rows[row]]).equal(together[row : row + 1])
        out = torch.empty(1, 40)
        reference.adjust_logits(alone, arrays.rows(row, row + 1), lane_tokens, out)
        assert out.equal(together[row : row + 1])
