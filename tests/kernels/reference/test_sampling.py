"""Sampling: which tokens survive the filters, how often each is drawn, and that nothing else matters."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from executor_svc.staging.uniforms import uniforms
from kernels import reference
from kernels.reference import NO_NUMBERS, NO_TOKEN, SamplingInputs
from tests.support.effort import examples

VOCAB = 50


def filtered(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Probabilities [rows, vocab] after the filters, with the same parameters for every row."""
    rows = logits.shape[0]
    scores, token_ids = reference.filter_logits(
        logits,
        SamplingInputs(
            temperatures=torch.full((rows,), temperature),
            top_ks=torch.full((rows,), top_k),
            top_ps=torch.full((rows,), top_p),
            min_ps=torch.full((rows,), min_p),
            uniforms=torch.zeros(rows),
            lanes=torch.arange(rows),
        ),
    )
    probs = scores.softmax(-1)
    return probs if token_ids is None else torch.zeros_like(logits).scatter_(1, token_ids, probs)


def by_transformers(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p > 0:
        warpers.append(MinPLogitsWarper(min_p))
    return warpers(torch.empty(0), logits.double()).softmax(-1)


def draw(logits: torch.Tensor, uniform: float | torch.Tensor, **parameters: float) -> list[int]:
    rows = logits.shape[0]
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **parameters}
    return sample(
        logits,
        torch.full((rows,), float(values["temperature"])),
        torch.full((rows,), int(values["top_k"])),
        torch.full((rows,), float(values["top_p"])),
        torch.full((rows,), float(values["min_p"])),
        torch.as_tensor(uniform, dtype=torch.float32).expand(rows),
    ).tolist()


def sample(logits: torch.Tensor, *columns: torch.Tensor) -> torch.Tensor:
    """The tokens of reference.sample, which must have gone to each row's lane as well; 0 for a row without one."""
    rows = len(logits)
    lanes, last_tokens, out = torch.randperm(rows + 2)[:rows], torch.full((rows + 2,), -7), torch.full((rows,), -7)
    reference.sample(logits, SamplingInputs(*[*columns, lanes]), last_tokens, out)
    assert (last_tokens[lanes] == out.clamp(min=0)).all()
    assert (last_tokens == -7).sum() == 2
    return out


@settings(max_examples=examples(200), derandomize=True)  # a float32 sum may round onto a filter's edge
@given(
    seed=st.integers(0, 2**20),
    temperature=st.floats(0.05, 5.0),
    top_k=st.sampled_from([0, 1, 2, 7, 49, 50, 1000]),
    top_p=st.sampled_from([0.03, 0.25, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.7, 1.0]),
)
def test_filters_are_those_of_transformers_in_float64(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = 3 * torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(seed))
    ours = filtered(logits, temperature, top_k, top_p, min_p)
    theirs = by_transformers(logits, temperature, top_k, top_p, min_p).float()
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        {"temperature": 1.5, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1},
    ],
    ids=str,
)
def test_tokens_are_as_frequent_as_they_are_probable(parameters: dict[str, float]) -> None:
    """Chi-squared at a fixed seed over the draws of one request with 20000 tokens."""
    draws = 20_000
    logits = 2 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(11))
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **parameters}
    probs = by_transformers(logits, **values)[0].numpy()  # type: ignore[arg-type]
    chances = torch.from_numpy(uniforms(np.full(draws, 42, np.uint64), np.arange(draws, dtype=np.int32)))
    counts = np.bincount(draw(logits.expand(draws, -1), chances, **parameters), minlength=VOCAB)
    assert counts[probs == 0].sum() == 0
    # Pearson's statistic is approximately normal for many tokens: mean n - 1, variance 2 (n - 1).
    kept = probs > 5 / draws
    statistic = ((counts[kept] - draws * probs[kept]) ** 2 / (draws * probs[kept])).sum()
    freedom = kept.sum() - 1
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


@settings(max_examples=examples(50))
@given(data=st.data())
def test_a_row_does_not_depend_on_its_batch(data: st.DataObject) -> None:
    rows = data.draw(st.integers(2, 6))
    logits = 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows))
    columns = [
        torch.tensor(data.draw(st.lists(st.sampled_from(choices), min_size=rows, max_size=rows)))
        for choices in ([0.0, 0.3, 1.0], [0, 1, 5, 60], [0.4, 0.9, 1.0], [0.0, 0.2, 1.0], [0.0, 0.37, 0.9])
    ]
    together = sample(logits, *columns)
    for row in range(rows):
        alone = sample(logits[row : row + 1], *(column[row : row + 1] for column in columns))
        assert alone.item() == together[row].item()


@pytest.mark.parametrize(
    "parameters",
    [{"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.5}, {"min_p": 0.5}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_neighbours_of_a_row_without_numbers_have_their_tokens(
    parameters: dict[str, float], dtype: torch.dtype
) -> None:
    """Its lane has 0. Its neighbours have the tokens that they have alone."""
    good = 3 * torch.randn(5, 8, generator=torch.Generator().manual_seed(8))
    none = [torch.full((8,), torch.nan), torch.full((8,), -torch.inf)]
    none += [good[0].index_fill(0, torch.tensor(7), bad) for bad in (torch.nan, torch.inf)]
    logits = torch.stack([row for pair in zip(good, none, strict=False) for row in pair] + [good[4]]).to(dtype)
    uniforms = torch.linspace(0, 0.99, 9)
    tokens = draw(logits, uniforms, **parameters)
    assert tokens[1::2] == [NO_NUMBERS, NO_TOKEN, NO_NUMBERS, NO_NUMBERS]
    assert tokens[::2] == draw(logits[::2], uniforms[::2], **parameters)
    assert min(tokens[::2]) >= 0


def test_greedy_rows_are_an_argmax() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 1.0, 0.0]])
    assert draw(logits, 0.99, temperature=0.0, top_k=2) == [1, 0]


def test_inverse_cdf_goes_by_token_id() -> None:
    logits = torch.tensor([[0.2, 0.3, 0.5]]).log()
    for uniform, token in ((0.0, 0), (0.19, 0), (0.21, 1), (0.49, 1), (0.51, 2), (1 - 2**-24, 2)):
        assert draw(logits, uniform) == [token]
        assert draw(logits, uniform, top_k=3) == [token]


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-24])
def test_dropped_tokens_are_never_drawn_even_at_the_ends(uniform: float) -> None:
    logits = torch.tensor([[-9.0, 5.0, 4.9, 4.8, -9.0]])
    assert draw(logits, uniform, top_k=1) == [1]
    assert draw(logits, uniform, top_p=1e-6) == [1]
    assert draw(logits, uniform, min_p=1.0) == [1]
    assert draw(logits, uniform, top_k=3)[0] in (1, 2, 3)


@pytest.mark.parametrize("size", [1, 2, 1000, 151_936])
def test_a_uniform_next_to_one_takes_the_last_token_and_none_beyond(size: int) -> None:
    assert draw(torch.zeros(1, size), 1 - 2**-24) == [size - 1]


def test_top_k_keeps_ties_with_the_kth() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 3.0]])
    assert (filtered(logits, 1.0, 2, 1.0, 0.0) > 0).tolist() == [[False, True, True, True, True]]


def test_top_p_cuts_ties_to_the_smallest_set() -> None:
    assert (filtered(torch.zeros(1, 4), 1.0, 0, 0.5, 0.0) > 0).tolist() == [[False, False, True, True]]
    assert (filtered(torch.zeros(1, 4), 1.0, 4, 0.5, 0.0) > 0).tolist() == [[False, False, True, True]]


def test_min_p_one_keeps_all_of_the_likeliest() -> None:
    assert (filtered(torch.tensor([[1.0, 4.0, 4.0]]), 0.7, 0, 1.0, 1.0) > 0).tolist() == [[False, True, True]]


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 100.0])
def test_extreme_temperatures(temperature: float) -> None:
    logits = torch.tensor([[-40.0, 90.0, 30.0]])
    expected = [1] if temperature < 1 else [0, 1, 2]
    assert draw(logits, 0.5, temperature=temperature)[0] in expected


def test_what_is_no_number_gives_no_token() -> None:
    logits = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    logits[0] = torch.nan
    logits[1, 7] = torch.nan
    logits[2, 0] = torch.inf
    logits[3] = -torch.inf
    for parameters in ({}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}):
        tokens = draw(logits, 0.5, **parameters)
        assert tokens[:4] == [NO_NUMBERS] * 3 + [NO_TOKEN]
        assert 0 <= tokens[4] < 8
