"""The sampler against its twin and against float64: which tokens survive, which a uniform draws, what is written.

Each launch samples many rows with different parameters: that is how it is used, and the interpreter is slow.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from common.sampling_columns import SAMPLING_COLUMNS
from executor_svc.staging.uniforms import uniforms as philox_uniforms
from kernels.gpu.sampling import segment_statistics as sampler_statistics
from kernels.gpu.sampling.sampler import TritonSampler
from kernels.reference import INPUT_DTYPES, NO_NUMBERS, NO_TOKEN
from tests.kernels.gpu.memory import far_apart, framed, noise
from tests.kernels.gpu.sampler_cases import (
    KINDS,
    LAST_UNIFORM,
    TOLERANCE,
    Row,
    arguments_of,
    assert_right,
    draw,
    draw_by_twin,
    exact_weights,
    make_logits,
)
from tests.support.effort import examples

QWEN_VOCAB = 151_936
ON_GPU = torch.cuda.is_available()

pytestmark = [
    # The interpreter computes both sides of a choice, and minus the logarithm of a min_p of 0.
    pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow) encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
]


SIZES = (1, 2, 3, 127, 128, 129, 1023, 1024, 1025, 4095, 4096, 4097, 4225)
"""Around a segment, the 8 and the 32 segments that a program reads at a time, and powers of two of segments."""

some_row = st.builds(
    Row,
    uniform=st.one_of(st.floats(0, LAST_UNIFORM, width=32), st.sampled_from([0.0, 0.5, LAST_UNIFORM])),
    temperature=st.sampled_from([0.0, 0.3, 0.6, 1.0, 1.0, 1.7, 100.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 20, 130, 10_000]),
    top_p=st.sampled_from([1.0, 1.0, 0.01, 0.3, 0.5, 0.9, 0.95, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.2, 0.9, 1.0]),
)


# Shrinking would take minutes.
@settings(max_examples=examples(12, quick=2), derandomize=True, phases=[Phase.generate])
@given(
    rows=st.lists(some_row, min_size=8, max_size=8),
    kind=st.sampled_from(KINDS),
    vocab_size=st.sampled_from(SIZES),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    num_candidates=st.sampled_from([2, 16, 2048]),
    seed=st.integers(0, 99),
)
def test_draws_are_those_of_the_twin(
    rows: list[Row],
    kind: str,
    vocab_size: int,
    dtype: torch.dtype,
    num_candidates: int,
    seed: int,
    device: torch.device,
) -> None:
    logits = framed(make_logits(kind, seed, len(rows), vocab_size).to(device, dtype), beside=seed % 3 * 8)
    assert_right(draw(logits, rows, num_candidates=num_candidates), logits, rows)


def test_each_parameter_alone(device: torch.device) -> None:
    columns = [parameter for name, parameter in SAMPLING_COLUMNS.items() if name in INPUT_DTYPES]
    rows = [Row(uniform, **{of.name: of.trial}) for of in columns for uniform in (0.03, 0.6)]
    logits = make_logits("normal", 6, len(rows), 300).to(device)
    assert_right(draw(logits, rows), logits, rows)


FILTERS = (
    Row(temperature=0.7, top_k=7),
    Row(temperature=1.3, top_p=0.7),
    Row(temperature=1.0, min_p=0.1),
    Row(temperature=0.8, top_k=9, top_p=0.8),
    Row(temperature=1.5, top_k=30, top_p=0.9, min_p=0.15),
)


CUTS = (*FILTERS, *(Row(top_k=k) for k in (2, 40, 150)), *(Row(top_p=p) for p in (0.4, 0.85, 0.99)), Row(min_p=0.01))


@pytest.mark.parametrize(
    ("kind", "num_candidates"),
    [
        ("normal", 2048),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [("few values", 2048), ("normal", 4), ("few values", 4)]
        ),
    ],
)
def test_filters_cut_between_the_same_two_tokens_as_in_float64(
    kind: str, num_candidates: int, device: torch.device
) -> None:
    """The last that is kept is drawn in the middle of its share, and the first that is not is not drawn where its share
    would be. Of equals the one with the higher id is likelier to be kept."""
    logits = make_logits(kind, 8, 1, 300).to(device)
    by_likelihood = logits[0].cpu().flip(0).argsort(descending=True, stable=True)
    by_likelihood = len(by_likelihood) - 1 - by_likelihood
    rows, expected = [], []
    for row in CUTS:
        weights = exact_weights(logits[0], row)
        num_kept = int((weights > 0).sum())
        last, dropped = by_likelihood[num_kept - 1], by_likelihood[num_kept]
        assert weights[last] > 0
        others = weights.copy()
        others[dropped] = exact_weights(logits[0], Row(temperature=row.temperature))[dropped]
        for token, shares in ((last, weights), (dropped, others)):
            uniform = (shares[: token + 1].sum() - shares[token] / 2) / shares.sum()
            rows.append(replace(row, uniform=float(uniform)))
            ends = weights.cumsum() / weights.sum()
            assert abs(ends - uniform).min() > 4 * TOLERANCE
            expected.append(int((ends > uniform).argmax()))
        assert expected[-2] == last
    assert draw(logits.expand(len(rows), -1), rows, num_candidates=num_candidates) == expected


@pytest.mark.parametrize(
    "row", [Row(temperature=0.6), pytest.param(FILTERS[-1], marks=pytest.mark.slow)], ids=["no filter", "all filters"]
)
def test_tokens_are_as_frequent_as_they_are_probable(row: Row, device: torch.device) -> None:
    """Pearson's chi-squared at a fixed seed, of one request's uniforms, against the exact probabilities."""
    draws = 20_000 if ON_GPU else 40
    logits = noise(3, 1, 10 if device.type == "cpu" else 400, dtype=torch.float32, device=device)
    weights = exact_weights(logits[0], row)
    expected = draws * weights / weights.sum()
    chances = philox_uniforms(np.full(draws, 42, np.uint64), np.arange(draws, dtype=np.int32))
    tokens = draw(logits.expand(draws, -1), [replace(row, uniform=float(chance)) for chance in chances])
    counts = np.bincount(tokens, minlength=len(weights))
    assert counts[expected == 0].sum() == 0
    often = expected >= 5
    assert often.sum() >= 3
    rest = expected[~often].sum()
    statistic = ((counts[often] - expected[often]) ** 2 / expected[often]).sum()
    statistic += (counts[~often].sum() - rest) ** 2 / max(rest, 1)
    # Approximately normal: mean n - 1, variance 2 (n - 1).
    freedom = often.sum()
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.slow
def test_ties_go_as_the_twins_do(device: torch.device) -> None:
    """The edges here are exact in float32, so that there is no tolerance."""
    logits = torch.zeros(12, 260, device=device)
    logits[:, 256:] = 1.0  # of one token more than 256, and in another segment
    logits[6:, :256] = -torch.inf
    first, middle, last = 0.0, 0.5, LAST_UNIFORM
    rows = [
        Row(uniform=first, top_k=1),
        Row(uniform=last, top_k=3),
        Row(uniform=first, top_k=5),
        Row(uniform=last, top_k=5),
        Row(uniform=last, min_p=1.0),
        Row(uniform=first, top_p=1e-6),
        Row(uniform=first, top_p=0.5),
        Row(uniform=last, top_p=0.5),
        Row(uniform=middle, top_p=0.25),
        Row(uniform=first, top_k=2, top_p=0.75),
        Row(uniform=first, top_p=0.0),
        Row(uniform=first, top_k=200, min_p=1.0),
    ]
    expected = [256, 259, 0, 259, 259, 259, 258, 259, 259, 257, 259, 256]
    assert draw_by_twin(logits, rows) == expected
    assert draw(logits, rows) == expected
    assert draw(logits, rows, num_candidates=2) == expected


def test_logits_that_the_temperature_makes_equal_tie(device: torch.device) -> None:
    """Neighbours in float32 whose quotients by the temperature are one number: the twin's filters see that number."""
    temperature = np.float32(1.9)
    gap = np.float32(3.9)
    while gap / temperature != np.nextafter(gap, np.float32(9)) / temperature:
        gap = np.nextafter(gap, np.float32(9))
    near, far = float(-gap), float(-np.nextafter(gap, np.float32(9)))
    logits = torch.full((6, 300), -torch.inf, device=device)
    logits[:, 0] = 0.0
    logits[::2, [130, 260]] = torch.tensor([near, far], device=device)  # in three segments
    logits[1::2, [130, 260]] = torch.tensor([far, near], device=device)
    rows = [Row(LAST_UNIFORM, float(temperature), top_k=2)] * 2 + [Row(0.95, float(temperature), top_p=0.85)] * 2
    rows += [Row(0.95, float(temperature), top_k=2, top_p=0.85)] * 2
    expected = draw_by_twin(logits, rows)
    assert expected == [260] * 6, "a tie, else the farther one at 260 would be lost"
    assert draw(logits, rows) == expected


def test_greedy_rows_take_the_first_of_the_likeliest(device: torch.device) -> None:
    logits = torch.zeros(3, 1000, device=device)
    logits[0, 700] = logits[0, 999] = 3.0
    logits[1, 5:130] = 3.0
    logits[2] = -torch.inf
    logits[2, 999] = -3e38
    rows = [Row(0.9, temperature=0.0, top_k=2, top_p=0.1)] * 3
    assert draw(logits, rows) == draw_by_twin(logits, rows) == [700, 5, 999]


def test_what_is_no_number_gives_no_token(device: torch.device) -> None:
    """However far from the likeliest it is, in the last segment too; the rows between have their tokens."""
    logits = make_logits("normal", 1, 42, 300)
    logits[:6] = torch.nan
    logits[6:12] = -torch.inf
    logits[12:18, 77] = torch.inf
    logits[18:24, 100] = torch.nan
    logits[18:24, 177] = 50.0
    logits[24:30, 299] = torch.nan
    logits[30:36] = -torch.inf
    logits[30:36, 3] = torch.nan
    kinds = [Row(0.9, temperature=0.0), Row(0.9), Row(0.9, top_k=2), Row(0.9, top_p=0.5), Row(0.9, min_p=0.5)]
    kinds.append(Row(0.9, top_k=3, top_p=0.5, min_p=0.1))
    order = torch.arange(42).view(7, 6).t().flatten()  # whole rows among broken ones
    rows = [(kinds * 7)[at] for at in order]
    logits = logits[order].to(device)
    tokens = draw(logits, rows)
    assert tokens == draw_by_twin(logits, rows)
    none = [NO_NUMBERS] * 6 + [NO_TOKEN] * 6 + [NO_NUMBERS] * 24
    assert [min(token, 0) for token in tokens] == [[*none, *[0] * 6][at] for at in order.tolist()]


def test_a_segment_of_minus_inf_is_passed_over(device: torch.device) -> None:
    logits = torch.full((4, 400), -torch.inf, device=device)
    logits[:, 130] = 1.0
    logits[:, 399] = 1.0
    rows = [Row(0.0), Row(LAST_UNIFORM), Row(LAST_UNIFORM, top_k=300), Row(LAST_UNIFORM, top_k=9, top_p=0.999)]
    assert draw(logits, rows) == [130, 399, 399, 399]


@pytest.mark.parametrize("temperature", [1e-40, 1e-30, 1e-6, 100.0])
def test_extreme_temperatures(temperature: float, device: torch.device) -> None:
    logits = torch.tensor([[-40.0, 90.0, 30.0, 90.0]], device=device).expand(4, -1)
    rows = [Row(LAST_UNIFORM, temperature, *filters) for filters in ((0,), (2,), (0, 0.9), (0, 1.0, 0.5))]
    assert draw(logits, rows) == [3, 3, 3, 3]


def test_a_row_does_not_depend_on_its_batch(device: torch.device) -> None:
    """Not by a bit: the uniforms lie on what the twin takes for edges."""
    logits = make_logits("normal", 4, 6, 700).to(device)
    rows = [Row(), Row(top_k=5), Row(temperature=0.0), Row(top_p=0.9), Row(min_p=0.1), Row(top_k=20, top_p=0.7)]
    edges = [exact_weights(logits[at], replace(row, temperature=1.0)).cumsum() for at, row in enumerate(rows)]
    rows = [
        replace(row, uniform=float(np.float32(sums[300] / sums[-1]))) for row, sums in zip(rows, edges, strict=True)
    ]
    together = draw(logits, rows)
    other_way = draw(logits.flip(0), rows[::-1], TritonSampler(9, 700, device))
    assert other_way == together[::-1]
    for at in range(6):
        assert draw(logits[at : at + 1], rows[at : at + 1]) == [together[at]]


def test_logits_may_lie_more_than_32_bits_apart() -> None:
    logits = far_apart(3, 140, torch.float16)
    logits.copy_(make_logits("normal", 5, 3, 140))
    rows = [Row(0.3), Row(0.3, temperature=0.0), Row(0.3, top_k=5, top_p=0.9)]
    assert_right(draw(logits, rows), logits, rows)


@pytest.mark.slow
def test_a_whole_vocabulary(device: torch.device) -> None:
    """Bounds from statistics, and bisection over most of the row where they leave more than can be gathered."""
    logits = torch.cat([torch.zeros(2, QWEN_VOCAB), make_logits("normal", 9, 5, QWEN_VOCAB)]).to(device)
    logits[3, 777] = 20.0
    rows = [Row(LAST_UNIFORM), Row(0.25), Row(0.3), Row(0.99), Row(0.8, top_k=20, top_p=0.95), Row(0.4, top_p=0.95)]
    rows += [Row(0.7, temperature=0.0)]
    tokens = draw(logits, rows)
    assert tokens[:2] == [QWEN_VOCAB - 1, QWEN_VOCAB // 4]
    assert_right(tokens, logits, rows)


def test_few_and_many_rows_are_cut_differently_but_summed_alike(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows are spread over more programs; what a segment weighs is the same."""
    monkeypatch.setattr(sampler_statistics, "_FULL_CHIP_PROGRAMS", 3)
    num_rows, vocab_size = 2, 4112
    configs = [sampler_statistics.choose_tiles(rows, vocab_size) for rows in (1, num_rows)]
    assert configs[0] != configs[1]
    logits = make_logits("normal", 2, num_rows, vocab_size).to(device, torch.bfloat16)
    temperatures = torch.full((num_rows,), 0.7, device=device)
    shape = (2, num_rows, sampler_statistics.count_segments(vocab_size))
    together, alone = (torch.full(shape, torch.nan, device=device) for _ in range(2))
    sampler_statistics.launch_statistics(logits, temperatures, *together)
    for row in range(num_rows):
        at = slice(row, row + 1)
        sampler_statistics.launch_statistics(logits[at], temperatures[at], *alone[:, at])
    assert alone.equal(together)
    torch.testing.assert_close(together[0].amax(1), logits.float().amax(1), rtol=0, atol=0)


def test_what_does_not_fit_is_named(device: torch.device) -> None:
    good = {"logits": torch.zeros(2, 50, device=device), **vars(arguments_of([Row(), Row()], device))}

    def sample(**change: torch.Tensor) -> None:
        inputs = replace(good["inputs"], **{name: change.pop(name) for name in [*change] if name not in good})
        TritonSampler(4, 50, device).sample(**{**good, "inputs": inputs, **change})

    floats, ids = torch.zeros(2, device=device), torch.zeros(2, dtype=torch.int32, device=device)
    for change, message in (
        ({"logits": torch.zeros(2, 51, device=device)}, "logits has shape (2, 51), expected (2, 50)"),
        ({"logits": torch.zeros(5, 50, device=device)}, "the number of rows of logits is 5, expected 0 to 4"),
        ({"logits": torch.zeros(50, device=device)}, "logits has shape (50,), expected 2 dimensions"),
        ({"logits": torch.zeros(2, 50, dtype=torch.int32, device=device)}, "logits is torch.int32, expected"),
        ({"logits": torch.zeros(50, 2, device=device).t()}, "logits has strides (1, 2), expected 1 for the last"),
        ({"temperatures": floats.double()}, "temperatures is torch.float64, expected torch.float32"),
        ({"top_ks": ids.long()}, "top_ks is torch.int64, expected torch.int32"),
        ({"top_ps": floats[:1]}, "top_ps has shape (1,), expected (2,)"),
        ({"min_ps": floats.repeat(2)[::2]}, "min_ps has shape (2,) and strides (2,), expected it dense"),
        ({"uniforms": floats.half()}, "uniforms is torch.float16"),
        ({"lanes": ids.repeat(2)}, "lanes has shape (4,), expected (2,)"),
        ({"last_tokens": ids[None]}, "last_tokens has shape (1, 2), expected 1 dimensions"),
        ({"out": ids.long()}, "out is torch.int64"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            sample(**change)
    if device.type == "cuda":
        with pytest.raises(ValueError, match="top_ps is on cpu, expected cuda"):
            sample(top_ps=floats.cpu())
    for arguments, options, message in (
        ((0, 50), {}, "max_rows is 0, expected 1 to 65535"),
        ((1, 0), {}, "vocab_size is 0, expected 1 to 262144"),
        ((1, (1 << 18) + 1), {}, "vocab_size is 262145"),
        ((1, 50), {"num_candidates": 100}, "num_candidates is 100, expected a power of two"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            TritonSampler(*arguments, device, **options)


def test_no_rows_are_no_launch(device: torch.device) -> None:
    assert draw(torch.zeros(0, 50, device=device), [], TritonSampler(4, 50, device)) == []


def mixed_rows(num_rows: int, seed: int) -> list[Row]:
    """Greedy, unfiltered and filtered rows in turn, with uniforms at random."""
    kinds = (Row(temperature=0.0), Row(), Row(temperature=0.6, top_k=20, top_p=0.95), *FILTERS, Row(top_k=2000))
    chances = torch.rand(num_rows, generator=torch.Generator().manual_seed(seed)).tolist()
    return [replace(kinds[at % len(kinds)], uniform=chance) for at, chance in enumerate(chances)]


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 7, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_at_real_size(kind: str, num_rows: int, device: torch.device) -> None:
    logits = make_logits(kind, num_rows, num_rows, QWEN_VOCAB).to(device, torch.bfloat16)
    rows = mixed_rows(num_rows, 1)
    assert_right(draw(logits, rows), logits.cpu(), rows)


@pytest.mark.gpu
def test_a_graph_replays_it_with_other_rows_and_without_a_wait(device: torch.device) -> None:
    num_rows = 64
    first, second = (make_logits("normal", seed, num_rows, QWEN_VOCAB).to(device, torch.bfloat16) for seed in (1, 2))
    arguments, others = (arguments_of(mixed_rows(num_rows, seed), device) for seed in (3, 4))
    sampler, logits = TritonSampler(num_rows, QWEN_VOCAB, device), first.clone()
    sampler.sample(logits, **vars(arguments))
    expected_first = arguments.out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampler.sample(logits, **vars(arguments))
    arguments.out.fill_(-1)
    graph.replay()
    assert arguments.out.equal(expected_first)

    logits.copy_(second)
    for column, other in zip(vars(arguments.inputs).values(), vars(others.inputs).values(), strict=True):
        column.copy_(other.roll(1))  # the kinds of all rows change
    graph.replay()
    out, last_tokens = torch.empty_like(arguments.out), torch.empty_like(arguments.last_tokens)
    eager = replace(arguments, out=out, last_tokens=last_tokens)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampler.sample(logits, **vars(eager))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert arguments.out.equal(eager.out)
