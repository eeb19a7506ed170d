"""What is asked of scores, against the twin: to the bit, and nothing else in memory changes."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.messages.steps import MAX_BIASES
from kernels import reference
from kernels.gpu.sampling.adjustments import MAX_ROW_BIASES, adjust_logits
from kernels.gpu.sampling.sampler import TritonSampler
from tests.kernels.gpu.adjustment_cases import Asked, adjustments_of, random_row
from tests.kernels.gpu.memory import (
    DTYPES,
    GAPS,
    assert_same_memory,
    assert_untouched,
    far_apart,
    framed,
    noise,
    poison,
    twin_of,
)
from tests.kernels.no_numbers import ASKED, VOCAB, check_rows_without_numbers
from tests.support.effort import examples

QWEN_VOCAB = 151_936
TILE = 2048  # tokens that a program takes

pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero) encountered:RuntimeWarning")


def assert_twins(logits: Tensor, rows: list[Asked], positions: int | None = None, beside: int = 8) -> Tensor:
    """The adjusted scores, which must be the twin's."""
    positions = positions or max(len(row.tokens) for row in rows)
    adjustments, lane_tokens = adjustments_of(rows, logits.shape[1], positions, logits.device, beside)
    out = poison(*logits.shape, dtype=torch.float32, device=logits.device, beside=beside)
    expected = twin_of(out)
    given = [logits, lane_tokens, *vars(adjustments).values()]
    kept = [twin_of(tensor) for tensor in given]
    adjust_logits(logits, adjustments, lane_tokens, out)
    reference.adjust_logits(logits, adjustments, lane_tokens, expected)
    assert_same_memory(out, expected, exact=True)
    for tensor, before in zip(given, kept, strict=True):
        assert_untouched(tensor, before)
    return out


def without_some(row: Asked, generator: torch.Generator) -> Asked:
    """The row with about half of what it asks."""
    off = Asked(row.tokens, row.num_prompt)
    names = ["presence", "frequency", "repetition", "allowed", "biases", "words"]
    kept = torch.rand(len(names), generator=generator) < 0.5
    return replace(off, **{name: getattr(row, name) for name, keep in zip(names, kept, strict=True) if keep})


@settings(max_examples=examples(100))
@given(
    vocab_size=st.sampled_from([4, 31, 32, 33, 300, TILE - 1, TILE, TILE + 1, 2 * TILE + 45]),
    num_tokens=st.lists(st.sampled_from([1, 2, 7, 60, 300]), min_size=3, max_size=3),
    num_asked=st.sampled_from([0, 1, 4, 70]),
    dtype=DTYPES,
    beside=GAPS,
    seed=st.integers(0, 99),
)
def test_scores_are_those_of_the_twin(
    vocab_size: int,
    num_tokens: list[int],
    num_asked: int,
    dtype: torch.dtype,
    beside: int,
    seed: int,
    device: torch.device,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    full = [random_row(generator, vocab_size, count, num_asked) for count in num_tokens]
    rows = [full[0], without_some(full[1], generator), without_some(full[2], generator), Asked(full[0].tokens)]
    logits = framed(noise(seed, len(rows), vocab_size, dtype=dtype, device=device), beside=beside)
    assert_twins(logits, rows, beside=beside)


def test_each_thing_alone(device: torch.device) -> None:
    """A row with one thing on has a mark of its own accord, and none from its neighbours."""
    generator = torch.Generator().manual_seed(1)
    full = random_row(generator, 300, 40, 5)
    off = Asked(full.tokens, full.num_prompt)
    names = ["presence", "frequency", "repetition", "allowed", "biases", "words"]
    rows = [each for name in names for each in (replace(off, **{name: getattr(full, name)}), off)]
    logits = noise(0, 1, 300, dtype=torch.float32, device=device).repeat(len(rows), 1)
    out = assert_twins(logits, rows)
    assert out[1::2].equal(logits[1::2]), "nothing asked"
    assert bool((out[::2] != logits[::2]).any(dim=1).all())


def test_a_sequence_may_be_longer_than_a_tile_and_a_lane_longer_than_its_sequence(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = [random_row(generator, 300, count, 3) for count in (1023, 1024, 1025, 2100)]
    assert_twins(noise(0, 4, 300, dtype=torch.float32, device=device), rows, positions=3000)


def test_what_is_no_number(device: torch.device) -> None:
    """NaN and inf stay as they are; a ban makes -inf of all else."""
    logits = noise(0, 3, 100, dtype=torch.float32, device=device)
    logits[:, :40] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0], device=device).repeat(10)
    tokens = list(range(20, 60))
    biases = {0: 1.0, 1: -1.0, 2: -torch.inf, 5: -torch.inf}
    row = Asked(tokens, 20, 0.5, 0.25, 1.5, biases=biases, words=[[8], [9]])
    out = assert_twins(logits, [row, replace(row, allowed=range(10)), replace(row, allowed=[])])
    assert out[0, 8].isnan(), "banned as a bad word"
    assert out[0, 9] == torch.inf
    stays = logits[0].isnan() | (logits[0] == torch.inf)
    assert bool((out[2, ~stays] == -torch.inf).all()), "all banned"


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_what_is_no_number_shows_whatever_is_asked(dtype: torch.dtype, device: torch.device) -> None:
    sampler = TritonSampler(99 * len(ASKED), VOCAB, device)
    check_rows_without_numbers(SimpleNamespace(adjust_logits=adjust_logits, sample=sampler.sample), dtype, device)


def test_as_many_biases_and_words_as_a_request_may_have(device: torch.device) -> None:
    """A mark has room for each bias's number, the last of which has the sign bit set."""
    generator = torch.Generator().manual_seed(5)
    row = random_row(generator, 1100, 90, MAX_ROW_BIASES)
    words = [*([*row.tokens[-size:], size] for size in range(1, 64)), *row.words[:192]]
    words.append([*row.tokens[-20:-1], row.tokens[-1] ^ 1, 0])
    first = replace(row, num_prompt=1, words=words)
    assert len(first.biases) == MAX_ROW_BIASES >= MAX_BIASES + 256, "stop tokens may be banned by biases, too"
    out = assert_twins(noise(0, 2, 1100, dtype=torch.float32, device=device), [first, replace(first, num_prompt=60)])
    banned = [bool((out[at, 1:64] == -torch.inf).all()) for at in range(2)]
    assert banned == [True, False], "words of 64 tokens, and those that reach into the prompt"
    assert bool((out[:, 0] > -torch.inf).all()), "a word of which one token is another"


def test_penalties_are_of_biased_scores(device: torch.device) -> None:
    logits = torch.tensor([[1.0, 2.0, -1.0, 5.0]], device=device)
    row = Asked([0, 1, 2, 2], 1, presence=0.5, frequency=0.25, repetition=2.0, biases={0: -3.0, 2: 7.0, 3: 1.0})
    assert assert_twins(logits, [row]).tolist() == [[-4.0, 0.25, 2.0, 6.0]]


def test_a_lane_without_a_token_counts_nothing(device: torch.device) -> None:
    """A row without a token may have left -1 behind, and the step after it is on its way."""
    row = Asked([5, -1, 5, 7, 2**31 - 1, 7], 2, 0.5, 0.5, 2.0)
    logits = noise(1, 1, 8, dtype=torch.float32, device=device)
    adjustments, lane_tokens = adjustments_of([row], 8, 6, device)
    out = poison(1, 8, dtype=torch.float32, device=device)
    kept = twin_of(out)
    adjust_logits(logits, adjustments, lane_tokens, out)
    without = adjustments_of([replace(row, tokens=[5, 5, 7, 7], num_prompt=1)], 8, 6, device)
    reference.adjust_logits(logits, *without, kept)
    assert_same_memory(out, kept, exact=True)


def test_rows_and_lanes_may_lie_more_than_32_bits_apart(host: torch.device) -> None:
    logits, out, lane_tokens = (
        far_apart(rows, size, dtype)
        for rows, size, dtype in ((3, 40, torch.float16), (3, 40, torch.float32), (4, 9, torch.int32))
    )
    logits.copy_(noise(2, 3, 40, dtype=torch.float16, device=host))
    generator = torch.Generator().manual_seed(7)
    rows = [random_row(generator, 40, 9, 3) for _ in range(3)]
    lanes = [3, 0, 2]
    for lane, row in zip(lanes, rows, strict=True):
        lane_tokens[lane] = torch.tensor(row.tokens)
    adjustments = replace(adjustments_of(rows, 40, 9, host)[0], lanes=torch.tensor(lanes, dtype=torch.int32))
    expected = torch.empty(3, 40)
    adjust_logits(logits, adjustments, lane_tokens, out)
    reference.adjust_logits(logits, adjustments, lane_tokens, expected)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


def test_no_rows_are_no_launch(device: torch.device) -> None:
    adjustments, lane_tokens = adjustments_of([Asked()], 50, 4, device)
    nothing = torch.empty(0, 50, device=device)
    adjust_logits(nothing, adjustments.rows(0, 0), lane_tokens, nothing)


def test_what_does_not_fit_is_named(device: torch.device) -> None:
    adjustments, lane_tokens = adjustments_of([Asked(), Asked(biases={3: 1.0}, words=[[4]])], 50, 4, device)
    logits = torch.zeros(2, 50, device=device)
    good = {"logits": logits, "lane_tokens": lane_tokens, "out": torch.zeros_like(logits)}
    floats, ids = torch.zeros(2, device=device), torch.zeros(2, dtype=torch.int32, device=device)
    for change, message in (
        ({"logits": torch.zeros(50, device=device)}, "logits has shape (50,), expected 2 dimensions"),
        ({"logits": torch.zeros(2, 50, dtype=torch.float64, device=device)}, "logits is torch.float64, expected"),
        ({"logits": torch.zeros(50, 2, device=device).t()}, "logits has strides (1, 2), expected 1 for the last"),
        ({"logits": torch.zeros(3, 50, device=device)}, "out has shape (2, 50), expected (3, 50)"),
        ({"out": logits.bfloat16()}, "out is torch.bfloat16, expected torch.float32"),
        ({"out": torch.zeros(50, 2, device=device).t()}, "out has strides (1, 2), expected 1 for the last"),
        ({"lane_tokens": lane_tokens[0]}, "lane_tokens has shape (4,), expected 2 dimensions"),
        ({"lane_tokens": lane_tokens.long()}, "lane_tokens is torch.int64, expected torch.int32"),
        ({"lane_tokens": lane_tokens.t()}, "lane_tokens has strides (1, 4), expected 1 for the last"),
        ({"lane_tokens": lane_tokens[:, :0]}, "the number of positions of lane_tokens is 0, expected 1 to 1048575"),
        ({"lanes": ids.long()}, "lanes is torch.int64"),
        ({"lengths": ids[:1]}, "lengths has shape (1,), expected (2,)"),
        ({"repetitions": floats.half()}, "repetitions is torch.float16"),
        ({"presences": floats.repeat(2)[::2]}, "presences has shape (2,) and strides (2,), expected it dense"),
        ({"masks": torch.zeros(1, 3, dtype=torch.int32, device=device)}, "masks has shape (1, 3), expected (1, 2)"),
        ({"bias_starts": ids}, "bias_starts has shape (2,), expected (3,)"),
        ({"word_starts": ids}, "word_starts has shape (2,), expected (3,)"),
        ({"biases": floats}, "biases has shape (2,), expected (1,)"),
        ({"bias_ids": ids[None]}, "bias_ids has shape (1, 2), expected 1 dimensions"),
        ({"word_tokens": floats}, "word_tokens is torch.float32, expected torch.int32"),
    ):
        asked = replace(adjustments, **{name: tensor for name, tensor in change.items() if name not in good})
        given = {name: change.get(name, tensor) for name, tensor in good.items()}
        with pytest.raises(ValueError, match=re.escape(message)):
            adjust_logits(adjustments=asked, **given)


def mixed_rows(num_rows: int, positions: int, seed: int) -> list[Asked]:
    """Rows that ask all, something, or nothing."""
    generator = torch.Generator().manual_seed(seed)
    rows = [random_row(generator, QWEN_VOCAB, positions - 7 * at % positions, 30) for at in range(num_rows)]
    return [(row, without_some(row, generator), Asked(row.tokens))[at % 3] for at, row in enumerate(rows)]


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 64])
def test_at_real_size(num_rows: int, device: torch.device) -> None:
    logits = noise(0, num_rows, QWEN_VOCAB, dtype=torch.bfloat16, device=device)
    assert_twins(logits, mixed_rows(num_rows, 5000, 1), positions=8192)


@pytest.mark.gpu
def test_a_graph_replays_it_with_other_rows(device: torch.device) -> None:
    first, second = (adjustments_of(mixed_rows(9, 300, seed), QWEN_VOCAB, 300, device) for seed in (1, 1))
    logits = noise(0, 9, QWEN_VOCAB, dtype=torch.bfloat16, device=device)
    out = torch.empty(9, QWEN_VOCAB, device=device)
    adjust_logits(logits, *first, out)
    expected = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        adjust_logits(logits, *first, out)
    out.fill_(torch.nan)
    graph.replay()
    assert out.equal(expected)
    for column in (first[0].presences, first[0].frequencies):
        column.copy_(column.roll(1))
    first[0].lengths.sub_(first[0].lengths // 3)
    first[0].num_prompts.clamp_(max=first[0].lengths)
    graph.replay()
    reference.adjust_logits(logits, *first, expected)
    assert out.equal(expected)
    assert second[1].equal(first[1])
