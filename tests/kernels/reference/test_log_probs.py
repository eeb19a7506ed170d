"""The log-probabilities' definition, against float64 and a sort."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference.log_probs import log_probs
from tests.support.effort import examples


def look_up(
    logits: torch.Tensor, token_ids: list[int], num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = len(logits)
    chosen, top = torch.full((rows,), torch.nan), torch.full((rows, num_top), torch.nan)
    top_ids = torch.full((rows, num_top), -1, dtype=torch.int32)
    log_probs(logits, torch.tensor(token_ids, dtype=torch.int32), num_top, chosen, top, top_ids)
    return chosen, top, top_ids


@settings(max_examples=examples(60))
@given(data=st.data(), vocab_size=st.integers(1, 40), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_they_are_those_of_float64_in_the_order_of_a_stable_sort(
    data: st.DataObject, vocab_size: int, dtype: torch.dtype
) -> None:
    value = st.one_of(st.floats(-50, 50, width=16), st.sampled_from([-torch.inf, -1.0, -0.0, 0.0, 1.0]))
    row = data.draw(st.lists(value, min_size=vocab_size, max_size=vocab_size).filter(lambda row: max(row) > -torch.inf))
    num_top = data.draw(st.integers(0, vocab_size))
    token = data.draw(st.integers(0, vocab_size - 1))
    logits = torch.tensor([row, row[::-1]], dtype=dtype)
    chosen, top, top_ids = look_up(logits, [token, token], num_top)

    exact = logits.double().log_softmax(-1)
    torch.testing.assert_close(chosen.double(), exact[:, token], atol=2e-5, rtol=1e-6)
    order = logits.double().sort(dim=-1, descending=True, stable=True).indices[:, :num_top]
    assert top_ids.tolist() == order.tolist()
    torch.testing.assert_close(top.double(), exact.gather(1, order), atol=2e-5, rtol=1e-6)


def test_a_likely_token_asked_about_has_the_same_log_probability() -> None:
    """Bit for bit: lm-eval takes a token that is below the greatest for one that greedy decoding would not draw."""
    for seed, dtype in ((0, torch.float32), (1, torch.bfloat16)):
        logits = (5 * torch.randn(40, 300, generator=torch.Generator().manual_seed(seed))).to(dtype)
        top_ids = look_up(logits, [0] * 40, 4)[2]
        for place in range(4):
            chosen, top, _ = look_up(logits, top_ids[:, place].tolist(), 4)
            assert chosen.equal(top[:, place])


def test_they_are_natural_logarithms_without_a_temperature() -> None:
    chosen, top, top_ids = look_up(torch.tensor([[1.0, 3.0, 6.0]]).log(), [1], 2)
    assert chosen.tolist() == pytest.approx([math.log(0.3)])
    assert top.tolist()[0] == pytest.approx([math.log(0.6), math.log(0.3)])
    assert top_ids.tolist() == [[2, 1]]


def test_of_equals_the_lowest_id_comes_first_and_zeros_are_equal() -> None:
    logits = torch.tensor([[-0.0, 0.0, -1.0, 0.0, -torch.inf, -1.0, -torch.inf]])
    assert look_up(logits, [0], 7)[2].tolist() == [[0, 1, 3, 2, 5, 4, 6]]


def test_nan_ranks_with_minus_inf() -> None:
    logits = torch.tensor([[-torch.inf, torch.nan, 1.0, torch.inf]])
    chosen, top, top_ids = look_up(logits, [2], 4)
    assert top_ids.tolist() == [[3, 2, 0, 1]]
    assert bool(chosen.isnan().all())
    assert bool(top.isnan().all())
