"""Sampling: the twin's tokens, ties and edges included, and each as often as it should be drawn."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.sampling_columns import SAMPLING_COLUMNS, SamplingColumns
from kernels import reference
from kernels.cpu import CpuKernels
from kernels.reference import INPUT_DTYPES, NO_NUMBERS, NO_TOKEN, SamplingInputs
from tests.kernels.cpu.helpers import with_strides
from tests.support.effort import examples

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])


def draw(kernels: object, logits: Tensor, *columns: Tensor) -> list[int]:
    """With either implementation; checks that every lane got its row's token, or 0 where there is none."""
    rows = len(logits)
    out, last_tokens = torch.full((rows,), -5, dtype=torch.int32), torch.full((rows + 3,), -7, dtype=torch.int32)
    lanes = torch.arange(rows, dtype=torch.int32).flip(0) + 2
    kernels.sample(logits, SamplingInputs(*[*columns, lanes]), last_tokens, out)
    assert torch.equal(last_tokens[lanes.long()], out.clamp(min=0))
    assert (last_tokens == -7).sum() == 3
    return out.tolist()


def parameters(
    rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.full((rows,), float(temperature)),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
    )


# Float32 sums of the twin may round onto a filter's edge.
@settings(max_examples=examples(60), derandomize=True)
@given(
    vocab_size=st.one_of(st.integers(1, 70), st.sampled_from([1023, 1024, 1025, 3000])),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    kind=st.sampled_from(["any", "whole", "close"]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    gap=st.sampled_from([0, 3]),
    seed=st.integers(0, 2**16),
)
def test_the_twins_tokens(
    kernels: CpuKernels, vocab_size: int, spread: float, kind: str, dtype: torch.dtype, gap: int, seed: int
) -> None:
    """Rows of all kinds of parameters in one batch. Whole numbers as logits bring ties everywhere; close ones are of
    few upper halves, some negative and some positive, so that a filter's edge is found by lower halves."""
    rows = 24
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab_size, generator=generator) * spread
    if kind == "whole":
        logits = logits.round()
    elif kind == "close":
        logits = logits.sign() * (1.0 + logits.abs().mul(2**10).round() * 2**-19)
    logits = with_strides(logits.to(dtype), gap)
    uniform, temperatures, top_ps, min_ps = torch.rand(4, rows, generator=generator)
    temperatures = temperatures * 2 + 0.05
    temperatures[::6] = 0
    top_ks = torch.randint(0, vocab_size + 2, (rows,), generator=generator, dtype=torch.int32)
    top_ks[::3], top_ps[::4], min_ps[::2] = 0, 1.0, 0.0
    columns = (temperatures, top_ks, top_ps, min_ps, uniform)
    assert draw(kernels, logits, *columns) == draw(reference, logits.float(), *columns)


@pytest.mark.parametrize("name", [name for name in SAMPLING_COLUMNS if name in INPUT_DTYPES])
def test_each_parameter_alone(kernels: CpuKernels, name: str) -> None:
    rows, of = 64, SAMPLING_COLUMNS[name]
    logits = torch.randn(rows, 50, generator=torch.Generator().manual_seed(4)).bfloat16()
    columns = {each: torch.from_numpy(column) for each, column in vars(SamplingColumns.greedy(rows)).items()}
    columns |= {"temperatures": torch.ones(rows), "uniforms": torch.linspace(0, 0.99, rows)}
    columns |= {name: torch.full((rows,), of.trial, dtype=INPUT_DTYPES[name])}
    inputs = [columns[each] for each in INPUT_DTYPES if each != "lanes"]
    assert draw(kernels, logits, *inputs) == draw(reference, logits.float(), *inputs)


def survivors(kernels: CpuKernels, logits: list[float], dtype: torch.dtype, **filters: float) -> set[int]:
    """All tokens that any uniform draws."""
    rows = 257
    uniforms = torch.arange(rows) / rows
    tensor = torch.tensor([logits]).to(dtype).expand(rows, -1).contiguous()
    return set(draw(kernels, tensor, *parameters(rows, **filters), uniforms))


@DTYPES
def test_ties(kernels: CpuKernels, dtype: torch.dtype) -> None:
    kept = partial(survivors, kernels, dtype=dtype)
    assert kept([1, 3, 2, 3, 2, 0], top_k=1) == {1, 3}  # all that tie with the k-th
    assert kept([1, 3, 2, 3, 2, 0], top_k=3) == {1, 2, 3, 4}
    assert kept([1, 1, 1, 1], top_p=0.5) == {2, 3}  # the highest ids of those at the edge
    assert kept([1, 1, 1, 1], top_k=3, top_p=0.5) == {2, 3}
    assert kept([1, 1, 1, 1], top_p=0.0) == {3}
    assert kept([5, 1, 1, 1, 9], top_p=0.0) == {4}
    assert kept([0.0, -0.0, -5.0], top_k=1) == {0, 1}  # equal, whatever their bits
    assert kept([-0.0, 0.0, -5.0], top_k=1) == {0, 1}
    assert kept([0, 0, -50], min_p=1.0) == {0, 1}
    for logits, token in (([1, 7, 7, 0], 1), ([-3, -0.0, 0.0], 1), ([-3, 0.0, -0.0], 1), ([-9, -2, -2], 1)):
        assert kept(logits, temperature=0) == {token}


def test_float32_that_bfloat16_would_confuse(kernels: CpuKernels) -> None:
    kept = partial(survivors, kernels, dtype=torch.float32)
    step = 2**-20
    for start in (1.0, -1.0):
        logits = [start + place * step for place in (3, 1, 2, 2, 0)]
        assert kept(logits, temperature=0) == {0}
        assert kept(logits, top_k=1) == {0}
        assert kept(logits, top_k=2) == {0, 2, 3}
        assert kept(logits, top_k=4) == {0, 1, 2, 3}
        assert kept(logits, top_p=0.5) == {0, 2, 3}
        assert kept(logits, top_p=0.39) == {0, 3}
        assert kept(logits, top_p=0.0) == {0}
        assert kept(logits, top_k=3, top_p=0.5) == {0, 3}
        assert kept([*logits, 5.0], temperature=100, top_k=4) == {0, 2, 3, 5}


@DTYPES
def test_extremes(kernels: CpuKernels, dtype: torch.dtype) -> None:
    inf, kept = torch.inf, partial(survivors, kernels, dtype=dtype)
    assert kept([-inf, 2, -inf, 2]) == {1, 3}
    assert kept([-inf, 2, -inf, 2], top_k=3) == {1, 3}
    assert kept([-inf, 2, -inf, 2], top_k=4, top_p=0.999) == {1, 3}
    assert kept([-inf, -7, -inf], temperature=0) == {1}
    assert kept([3e38, -3e38, 3e38], temperature=1e-30) == {0, 2}


@DTYPES
@pytest.mark.parametrize("size", [1, 3, 8, 16, 33, 1500])
def test_a_row_without_numbers_has_no_token(kernels: CpuKernels, dtype: torch.dtype, size: int) -> None:
    """Its neighbours have theirs: rows with numbers and without take turns."""
    generator = torch.Generator().manual_seed(size)
    for bad in (torch.nan, -torch.nan, torch.inf):
        for place in {0, size // 2, size - 1}:
            for others in (0.0, -3.0, -torch.inf):
                check_turns(kernels, torch.full((size,), others).index_fill(0, torch.tensor(place), bad).to(dtype))
    check_turns(kernels, torch.full((size,), -torch.inf, dtype=dtype))
    check_turns(kernels, torch.full((size,), torch.nan, dtype=dtype))
    check_turns(kernels, torch.randn(size, generator=generator).to(dtype).index_fill(0, torch.tensor(0), torch.inf))


def check_turns(kernels: CpuKernels, row: Tensor) -> None:
    good = torch.linspace(-4, 4, len(row)).to(row.dtype)
    logits = torch.stack([row, good] * 5)
    uniforms = torch.rand(10, generator=torch.Generator().manual_seed(1))
    columns = (
        torch.tensor([0.0, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
        torch.tensor([0, 0, 0, 0, 2, 2, 0, 0, 0, 0], dtype=torch.int32),
        torch.tensor([1, 1, 1, 1, 1, 1, 0.5, 0.5, 1, 1]),
        torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 0.5, 0.5]),
    )
    tokens = draw(kernels, logits, *columns, uniforms)
    assert tokens[::2] == [NO_TOKEN if bool((row == -torch.inf).all()) else NO_NUMBERS] * 5
    assert tokens[1::2] == draw(kernels, logits[1::2], *(column[1::2].contiguous() for column in (*columns, uniforms)))
    assert min(tokens[1::2]) >= 0
    assert draw(reference, logits.float(), *columns, uniforms)[::2] == tokens[::2]


@DTYPES
def test_each_token_as_often_as_it_should_be_drawn(kernels: CpuKernels, dtype: torch.dtype) -> None:
    rows, vocab_size = 4096, 40
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(1)).to(dtype)
    uniforms = torch.rand(rows, generator=torch.Generator().manual_seed(2))
    tokens = draw(kernels, logits.expand(rows, -1).contiguous(), *parameters(rows, temperature=0.8), uniforms)
    expected = (logits.double() / 0.8).softmax(-1)[0] * rows
    counts = torch.bincount(torch.tensor(tokens), minlength=vocab_size)
    assert ((counts - expected) ** 2 / expected).sum() < 72.1  # chi-squared with 39 degrees of freedom: 1 in 1000


@DTYPES
def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels, dtype: torch.dtype) -> None:
    rows = 9
    logits = torch.randn(rows, 1500, generator=torch.Generator().manual_seed(3)).to(dtype)
    columns = (*parameters(rows, temperature=0.7, top_k=40, top_p=0.9), torch.linspace(0, 0.99, rows))
    together = draw(kernels, logits, *columns)
    for row in range(rows):
        assert draw(kernels, logits[row : row + 1], *(column[row : row + 1] for column in columns)) == [together[row]]


@settings(max_examples=examples(20))
@given(rows=st.integers(1, 20), vocab_size=st.integers(1, 100), seed=st.integers(0, 2**16))
def test_argmax(kernels: CpuKernels, rows: int, vocab_size: int, seed: int) -> None:
    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)).round().bfloat16()
    out = torch.full((rows,), -1, dtype=torch.int32)
    kernels.argmax(logits, out)
    first = [row.index(max(row)) for row in logits.tolist()]
    assert out.tolist() == first


def test_argmax_of_a_row_without_numbers(kernels: CpuKernels) -> None:
    out = torch.full((2,), -5, dtype=torch.int32)
    kernels.argmax(torch.tensor([[1.0, torch.nan, 2.0], [1.0, 0.0, 2.0]]).bfloat16(), out)
    assert out.tolist() == [NO_NUMBERS, 2]


def test_wrong_logits_are_refused(kernels: CpuKernels) -> None:
    for logits in (torch.zeros(2, 5, dtype=torch.float16), torch.zeros(5, 2).T, torch.zeros(2, 0)):
        with pytest.raises(ValueError, match="logits"):
            draw(kernels, logits, *parameters(2), torch.zeros(2))
