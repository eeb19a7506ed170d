"""Log-probabilities against their twin: exact in what they rank, and nothing else in memory changes."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.gpu.sampling.log_probs import MAX_TOP, LogProbs
from kernels.reference.log_probs import log_probs as twin
from tests.kernels.gpu.memory import far_apart, framed
from tests.support.effort import examples

POISON = -4.0e9
QWEN_VOCAB = 151_936

pytestmark = [
    pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow) encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
]

Outputs = tuple[Tensor, Tensor, Tensor]


def outputs(rows: int, num_top: int, device: torch.device) -> tuple[Outputs, list[Tensor]]:
    """Where results go, and the memory around it, all poison."""
    memories = [
        torch.full((size + 8,), POISON if kind.is_floating_point else -7, dtype=kind, device=device)
        for size, kind in ((rows, torch.float32), (rows * num_top, torch.float32), (rows * num_top, torch.int32))
    ]
    chosen, top, top_ids = (memory[3:-5] for memory in memories)
    return (chosen, top.view(rows, num_top), top_ids.view(rows, num_top)), memories


def assert_twins(logits: Tensor, token_ids: list[int], num_top: int, lookup: LogProbs | None = None) -> Outputs:
    rows, vocab_size = logits.shape
    ids = torch.tensor(token_ids, dtype=torch.int32, device=logits.device)
    lookup = lookup or LogProbs(rows, vocab_size, logits.device)
    actual, memories = outputs(rows, num_top, logits.device)
    expected, expected_memories = outputs(rows, num_top, logits.device)
    lookup.log_probs(logits, ids, num_top, *actual)
    twin(logits, ids, num_top, *expected)
    assert memories[2].equal(expected_memories[2])
    for one, other in zip(memories[:2], expected_memories[:2], strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-6, equal_nan=True)
    return actual


@settings(max_examples=examples(12))
@given(
    vocab_size=st.sampled_from([1, 2, 20, 127, 128, 129, 1023, 1025, 4097]),
    kind=st.sampled_from(["normal", "few values", "mostly -inf"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    num_top=st.integers(0, MAX_TOP),
    gap=st.sampled_from([0, 1, 8]),
    seed=st.integers(0, 99),
)
def test_they_are_those_of_the_twin(
    vocab_size: int, kind: str, dtype: torch.dtype, num_top: int, gap: int, seed: int, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(3, vocab_size, generator=generator)
    if kind == "few values":
        logits = logits.div(6).round()  # zeros of both signs among them
    elif kind == "mostly -inf":
        logits[:, 1:].masked_fill_(torch.rand(3, vocab_size - 1, generator=generator) < 0.95, -torch.inf)
    token_ids = torch.randint(vocab_size, (3,), generator=generator).tolist()
    assert_twins(framed(logits.to(device, dtype), beside=gap), token_ids, min(num_top, vocab_size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_likely_token_asked_about_has_the_same_log_probability(dtype: torch.dtype, device: torch.device) -> None:
    """Bit for bit: lm-eval takes a token that is below the greatest for one that greedy decoding would not draw."""
    logits = (5 * torch.randn(6, 700, generator=torch.Generator().manual_seed(4))).to(device, dtype)
    _, _, top_ids = assert_twins(logits, [0] * 6, 2)
    for place in range(2):
        chosen, top, _ = assert_twins(logits, top_ids[:, place].tolist(), 2)
        assert chosen.equal(top[:, place])


def test_one_segment_may_hold_all_winners_and_a_short_one_may_run_out(device: torch.device) -> None:
    logits = torch.arange(133.0, device=device).repeat(2, 1)
    logits[0, 7:40] += 500
    _, _, top_ids = assert_twins(logits, [0, 132], MAX_TOP)
    assert top_ids[0].tolist() == list(range(39, 19, -1))
    assert top_ids[1].tolist() == list(range(132, 112, -1)), "the last segment has five tokens"


def test_what_is_no_number_gives_ids_of_the_vocabulary(device: torch.device) -> None:
    logits = torch.randn(4, 200, generator=torch.Generator().manual_seed(0)).to(device)
    logits[0] = torch.nan
    logits[1] = -torch.inf
    logits[2, 150] = torch.inf
    logits[3, 3] = torch.nan
    chosen, top, top_ids = assert_twins(logits, [5, 6, 7, 8], 5)
    assert top_ids[:2].tolist() == [list(range(5))] * 2
    assert bool(chosen.isnan().all())
    assert bool(top.isnan().all())


def test_a_row_without_a_token_asks_about_the_first(device: torch.device) -> None:
    """Before the first row lies memory that is not the logits'."""
    logits = framed(torch.randn(2, 200, generator=torch.Generator().manual_seed(4)).to(device))
    chosen, _, _ = assert_twins(logits, [-1, -1], 1)
    of_the_first, _, _ = assert_twins(logits, [0, 0], 1)
    assert chosen.equal(of_the_first)
    assert bool(chosen.isfinite().all())


def test_workspace_serves_batches_of_any_size(device: torch.device) -> None:
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(1)).to(device)
    lookup = LogProbs(5, 300, device)
    all_rows = assert_twins(logits, [1, 2, 3, 4, 5], 3, lookup)
    two_rows = assert_twins(logits[2:4], [3, 4], 3, lookup)
    assert all(one[2:4].equal(other) for one, other in zip(all_rows, two_rows, strict=True))
    assert_twins(logits[:0], [], 3, lookup)


def test_logits_may_lie_more_than_32_bits_apart() -> None:
    logits = far_apart(3, 140, torch.float16)
    logits.copy_(torch.randn(3, 140, generator=torch.Generator().manual_seed(2)))
    assert_twins(logits, [1, 139, 0], 2)


def test_what_does_not_fit_is_named(device: torch.device) -> None:
    good: dict[str, object] = {
        "logits": torch.zeros(2, 50, device=device),
        "token_ids": torch.zeros(2, dtype=torch.int32, device=device),
        "num_top": 3,
        "out_chosen": torch.zeros(2, device=device),
        "out_top": torch.zeros(2, 3, device=device),
        "out_top_ids": torch.zeros(2, 3, dtype=torch.int32, device=device),
    }
    for change, message in (
        ({"logits": torch.zeros(2, 51, device=device)}, "logits has shape (2, 51), expected (2, 50)"),
        ({"logits": torch.zeros(5, 50, device=device)}, "the number of rows of logits is 5, expected 0 to 4"),
        ({"logits": torch.zeros(2, 50, dtype=torch.float64, device=device)}, "logits is torch.float64, expected"),
        ({"logits": torch.zeros(50, 2, device=device).t()}, "logits has strides (1, 2), expected 1 for the last"),
        ({"num_top": 21}, "num_top is 21, expected 0 to 20"),
        ({"num_top": -1}, "num_top is -1, expected 0 to 20"),
        ({"num_top": 2}, "out_top has shape (2, 3), expected (2, 2)"),
        ({"token_ids": torch.zeros(2, dtype=torch.int64, device=device)}, "token_ids is torch.int64"),
        ({"out_chosen": torch.zeros(3, device=device)}, "out_chosen has shape (3,), expected (2,)"),
        ({"out_top_ids": torch.zeros(3, 2, dtype=torch.int32, device=device).t()}, "out_top_ids has shape (2, 3) and"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            LogProbs(4, 50, device).log_probs(**{**good, **change})
    with pytest.raises(ValueError, match="num_top is 3, expected 0 to 2"):
        LogProbs(4, 2, device).log_probs(**{**good, "logits": torch.zeros(2, 2, device=device)})
    with pytest.raises(ValueError, match="max_rows is 0"):
        LogProbs(0, 50, device)
    with pytest.raises(ValueError, match="vocab_size is 262145"):
        LogProbs(1, (1 << 18) + 1, device)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 256])
def test_at_real_size(rows: int, device: torch.device) -> None:
    generator = torch.Generator(device).manual_seed(rows)
    logits = (3 * torch.randn(rows, QWEN_VOCAB, generator=generator, device=device)).bfloat16()
    token_ids = torch.randint(QWEN_VOCAB, (rows,), generator=generator, device=device).tolist()
    chosen, _, top_ids = assert_twins(logits, token_ids, MAX_TOP)
    of_likeliest, top, _ = assert_twins(logits, top_ids[:, 0].tolist(), MAX_TOP)
    assert of_likeliest.equal(top[:, 0])
    exact = logits.double().log_softmax(-1)[range(rows), token_ids]
    torch.testing.assert_close(chosen.double(), exact, atol=1e-5, rtol=1e-6)
