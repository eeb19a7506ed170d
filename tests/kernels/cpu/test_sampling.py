"""Sampling: the twin's tokens, ties and edges included, and each as often as it should be drawn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.sampling_columns import SAMPLING_COLUMNS, SamplingColumns
from kernels import reference
from kernels.cpu import CpuKernels
from kernels.reference import INPUT_DTYPES, SamplingInputs
from tests.support.effort import examples


def draw(kernels: object, logits: Tensor, *columns: Tensor) -> list[int]:
    """With either implementation; checks that every lane got its row's token."""
    rows = len(logits)
    out, last_tokens = torch.full((rows,), -5, dtype=torch.int32), torch.full((rows + 3,), -7, dtype=torch.int32)
    lanes = torch.arange(rows, dtype=torch.int32).flip(0) + 2
    kernels.sample(logits, SamplingInputs(*[*columns, lanes]), last_tokens, out)
    assert torch.equal(last_tokens[lanes.long()], out)
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
@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    vocab_size=st.one_of(st.integers(1, 70), st.sampled_from([1023, 1024, 1025, 3000])),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    whole=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_the_twins_tokens(kernels: CpuKernels, vocab_size: int, spread: float, whole: bool, seed: int) -> None:
    """Rows of all kinds of parameters in one batch; whole numbers as logits bring ties everywhere."""
    rows = 24
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab_size, generator=generator) * spread
    logits = (logits.round() if whole else logits).bfloat16()
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


def survivors(kernels: CpuKernels, logits: list[float], **filters: float) -> set[int]:
    """All tokens that any uniform draws."""
    rows = 257
    uniforms = torch.arange(rows) / rows
    tensor = torch.tensor([logits]).bfloat16().expand(rows, -1).contiguous()
    return set(draw(kernels, tensor, *parameters(rows, **filters), uniforms))


def test_ties(kernels: CpuKernels) -> None:
    assert survivors(kernels, [1, 3, 2, 3, 2, 0], top_k=1) == {1, 3}  # all that tie with the k-th
    assert survivors(kernels, [1, 3, 2, 3, 2, 0], top_k=3) == {1, 2, 3, 4}
    assert survivors(kernels, [1, 1, 1, 1], top_p=0.5) == {2, 3}  # the highest ids of those at the edge
    assert survivors(kernels, [1, 1, 1, 1], top_p=0.0) == {3}
    assert survivors(kernels, [5, 1, 1, 1, 9], top_p=0.0) == {4}
    assert survivors(kernels, [0.0, -0.0, -5.0], top_k=1) == {0, 1}  # equal, whatever their bits
    assert survivors(kernels, [0, 0, -50], min_p=1.0) == {0, 1}
    assert draw(kernels, torch.tensor([[1, 7, 7, 0]]).bfloat16(), *parameters(1, temperature=0), torch.ones(1) / 2) == [
        1
    ]


def test_extremes(kernels: CpuKernels) -> None:
    inf, nan = torch.inf, torch.nan
    assert survivors(kernels, [-inf, 2, -inf, 2]) == {1, 3}
    assert survivors(kernels, [-inf, 2, -inf, 2], top_k=4, top_p=0.999) == {1, 3}
    assert survivors(kernels, [3e38, -3e38, 3e38], temperature=1e-30) == {0, 2}
    for logits in ([nan] * 20, [1.0, nan, 2.0], [inf, 1.0, inf], [-inf] * 3):
        for filters in ({}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"temperature": 0}):
            assert survivors(kernels, logits, **filters) <= set(range(len(logits)))


def test_each_token_as_often_as_it_should_be_drawn(kernels: CpuKernels) -> None:
    rows, vocab_size = 4096, 40
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    uniforms = torch.rand(rows, generator=torch.Generator().manual_seed(2))
    tokens = draw(kernels, logits.expand(rows, -1).contiguous(), *parameters(rows, temperature=0.8), uniforms)
    expected = (logits.double() / 0.8).softmax(-1)[0] * rows
    counts = torch.bincount(torch.tensor(tokens), minlength=vocab_size)
    assert ((counts - expected) ** 2 / expected).sum() < 72.1  # chi-squared with 39 degrees of freedom: 1 in 1000


def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels) -> None:
    rows = 9
    logits = torch.randn(rows, 1500, generator=torch.Generator().manual_seed(3)).bfloat16()
    columns = (*parameters(rows, temperature=0.7, top_k=40, top_p=0.9), torch.linspace(0, 0.99, rows))
    together = draw(kernels, logits, *columns)
    for row in range(rows):
        assert draw(kernels, logits[row : row + 1], *(column[row : row + 1] for column in columns)) == [together[row]]


@settings(max_examples=examples(20), deadline=None)
@given(rows=st.integers(1, 20), vocab_size=st.integers(1, 100), seed=st.integers(0, 2**16))
def test_argmax(kernels: CpuKernels, rows: int, vocab_size: int, seed: int) -> None:
    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)).round().bfloat16()
    out = torch.full((rows,), -1, dtype=torch.int32)
    kernels.argmax(logits, out)
    first = [row.index(max(row)) for row in logits.tolist()]
    assert out.tolist() == first
