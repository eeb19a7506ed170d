"""Adjusted scores: the twin's, bit for bit."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.arguments import Adjustments
from kernels.cpu import CpuKernels
from kernels.cpu.build import SOURCES
from tests.kernels.adjustment_rows import AdjustedRow, adjusted_rows, arrays_of
from tests.kernels.cpu.helpers import with_strides
from tests.kernels.no_numbers import check_rows_without_numbers
from tests.support.effort import examples

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
EVERYTHING = AdjustedRow(
    prompt=[3, 4, 4],
    generated=[5, 4, 5, 5],
    presence=0.4,
    frequency=0.3,
    repetition=1.7,
    allowed=list(range(2, 38)),
    biases={3: 1.25, 9: -torch.inf},
    words=[[7], [5, 5, 8], [4, 5, 10]],
)


def adjust(kernels: object, logits: Tensor, adjustments: Adjustments, lane_tokens: Tensor) -> Tensor:
    out = with_strides(torch.full(logits.shape, torch.nan), 5)
    kernels.adjust_logits(logits, adjustments, lane_tokens, out)
    return out


def assert_twins(kernels: CpuKernels, logits: Tensor, rows: list[AdjustedRow]) -> Tensor:
    arrays = arrays_of(rows, logits.shape[1])
    actual = adjust(kernels, logits, *arrays)
    torch.testing.assert_close(actual, adjust(reference, logits, *arrays), rtol=0, atol=0, equal_nan=True)
    assert actual._base is not None
    assert bool(actual._base[:, logits.shape[1] :].isnan().all()), "wrote beyond the rows"
    return actual


def logits_of(rows: int, vocab_size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (4 * torch.randn(rows, vocab_size, generator=generator)).to(dtype)


@settings(max_examples=examples(100))
@given(
    data=st.data(),
    vocab_size=st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 100, 1000])),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    strange=st.sampled_from([None, 0.0, -0.0, 1e-6, -1e-6, torch.nan, torch.inf, -torch.inf]),
    gap=st.sampled_from([0, 3]),
)
def test_the_twins_scores(
    kernels: CpuKernels, data: st.DataObject, vocab_size: int, dtype: torch.dtype, strange: float | None, gap: int
) -> None:
    rows = data.draw(st.lists(adjusted_rows(vocab_size), min_size=1, max_size=4))
    logits = logits_of(len(rows), vocab_size, dtype, data.draw(st.integers(0, 99)))
    if strange is not None:
        logits[:, : data.draw(st.integers(1, vocab_size))] = strange
    assert_twins(kernels, with_strides(logits, gap), rows)


@DTYPES
def test_everything_at_once_beside_rows_that_ask_for_one_thing(kernels: CpuKernels, dtype: torch.dtype) -> None:
    fields = ("presence", "frequency", "repetition", "allowed", "biases", "words")
    tokens = AdjustedRow(EVERYTHING.prompt, EVERYTHING.generated)
    rows = [EVERYTHING, *(replace(tokens, **{name: getattr(EVERYTHING, name)}) for name in fields), tokens]
    logits = logits_of(len(rows), 41, dtype)
    scores = assert_twins(kernels, logits, rows)
    assert scores[-1].equal(logits[-1].float()), "nothing was asked"
    changed = (scores != logits).sum(1).tolist()
    assert changed[1:] == [2, 2, 3, 5, 2, 2, 0]  # the third word does not end the sequence


@DTYPES
@pytest.mark.parametrize("vocab_size", [31, 32, 33, 1000])
def test_bans_of_all(kernels: CpuKernels, dtype: torch.dtype, vocab_size: int) -> None:
    words = [[token] for token in range(vocab_size)]
    biases = dict.fromkeys(range(vocab_size), -torch.inf)
    penalized = AdjustedRow([1], [1], 1.0, 1.0, 2.0)
    rows = [replace(penalized, allowed=[]), replace(penalized, words=words), replace(penalized, biases=biases)]
    assert bool((assert_twins(kernels, logits_of(3, vocab_size, dtype), rows) == -torch.inf).all())


@DTYPES
def test_what_is_no_number_shows_whatever_is_asked(kernels: CpuKernels, dtype: torch.dtype) -> None:
    check_rows_without_numbers(kernels, dtype, torch.device("cpu"))


def test_no_tokens_are_known(kernels: CpuKernels) -> None:
    asked = replace(EVERYTHING, prompt=[], generated=[])
    scores = assert_twins(kernels, logits_of(2, 41, torch.bfloat16), [asked, AdjustedRow()])
    assert scores[0, 7] == -torch.inf
    assert scores[0, 8] > -torch.inf, "its word has two tokens before it"


def test_prompts_do_not_begin_bad_words(kernels: CpuKernels) -> None:
    rows = [
        AdjustedRow(prompt, known, words=[[5, 6, 7]]) for prompt, known in (([5], [6]), ([5, 6], []), ([5], [5, 6]))
    ]
    scores = assert_twins(kernels, logits_of(3, 41, torch.bfloat16), rows)
    assert (scores == -torch.inf).nonzero().tolist() == [[2, 7]]


@DTYPES
def test_long_lanes(kernels: CpuKernels, dtype: torch.dtype) -> None:
    """Counts in the thousands, which are forgotten before the next row of the same thread."""
    generator = torch.Generator().manual_seed(5)
    vocab_size = 3000
    tokens = torch.randint(0, 40, (20_000,), generator=generator).tolist()
    every = torch.randint(0, vocab_size, (20_000,), generator=generator).tolist()
    long = [AdjustedRow(tokens[:7000], tokens[7000:], 0.3, 0.01, 1.3), AdjustedRow([], every, 0.3, 0.01, 1.3)]
    short = AdjustedRow([5], [6], 0.7, 0.9, 1.1)
    assert_twins(kernels, logits_of(9, vocab_size, dtype), [*long, short] * 3)


@DTYPES
def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels, dtype: torch.dtype) -> None:
    rows = [replace(EVERYTHING, generated=[token, 5, 5], repetition=1 + token / 8) for token in range(9)]
    logits = logits_of(9, 70, dtype)
    together, lane_tokens = arrays_of(rows, 70)
    scores = adjust(kernels, logits, together, lane_tokens)
    for row in range(9):
        alone = logits[row : row + 1]
        assert adjust(kernels, alone, *arrays_of([rows[row]], 70)).equal(scores[row : row + 1])
        assert adjust(kernels, alone, together.rows(row, row + 1), lane_tokens).equal(scores[row : row + 1])


def test_minus_one_in_a_lane_counts_nothing(kernels: CpuKernels) -> None:
    """A row that had no token may go on for a step."""
    logits = logits_of(1, 41, torch.float32)
    gone = replace(EVERYTHING, words=[], generated=[5, -1, 4])
    there = replace(gone, generated=[5, 4])
    assert adjust(kernels, logits, *arrays_of([gone], 41)).equal(adjust(reference, logits, *arrays_of([there], 41)))


def test_wrong_arrays_are_refused(kernels: CpuKernels) -> None:
    logits = logits_of(2, 41, torch.float32)
    arrays, lane_tokens = arrays_of([EVERYTHING] * 2, 41)
    for name, column in vars(arrays).items():
        bad = [column.double(), column[:-1]] if name not in ("masks", "word_tokens") else [column.double()]
        bad = bad[:1] if name == "word_offsets" else bad  # its length says how many words there are
        for wrong in bad:
            with pytest.raises(ValueError, match=r"is torch|bias"):
                adjust(kernels, logits, replace(arrays, **{name: wrong}), lane_tokens)
    with pytest.raises(ValueError, match="masks"):
        adjust(kernels, logits, replace(arrays, masks=arrays.masks[:, :1]), lane_tokens)
    with pytest.raises(ValueError, match="lane_tokens"):
        adjust(kernels, logits, arrays, lane_tokens.long())
    with pytest.raises(ValueError, match="out"):
        kernels.adjust_logits(logits, arrays, lane_tokens, torch.zeros(2, 41).bfloat16())


def test_the_struct_has_the_fields_in_their_order() -> None:
    struct = re.search(r"struct Adjustments \{(.*?)\};", (SOURCES / "adjustments.cpp").read_text(), re.DOTALL)
    assert struct
    arrays, _ = arrays_of([EVERYTHING], 41)
    c_types = {torch.float32: "float", torch.int32: "int32_t"}
    expected = [(c_types[column.dtype], name) for name, column in vars(arrays).items()]
    assert re.findall(r"const (\w+)\* (\w+);", struct[1]) == expected
