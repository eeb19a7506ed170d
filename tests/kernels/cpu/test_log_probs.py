"""Log-probabilities: the twin's, in exactly its order, and closer to float64 than it is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.cpu import CpuKernels
from tests.kernels.cpu.helpers import with_strides
from tests.support.effort import examples

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
VALUES = st.one_of(
    st.floats(-50, 50, width=16), st.sampled_from([-torch.inf, torch.nan, torch.inf, -1.0, -0.0, 0.0, 1.0])
)


def look_up(kernels: object, logits: Tensor, token_ids: list[int], num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    rows = len(logits)
    chosen, memory = torch.full((rows,), -5.0), torch.full((rows, num_top + 2), -5.0)
    id_memory = torch.full((rows, num_top + 2), -5, dtype=torch.int32)
    top, top_ids = memory[:, 1 : 1 + num_top], id_memory[:, 1 : 1 + num_top]
    kernels.log_probs(logits, torch.tensor(token_ids, dtype=torch.int32), num_top, chosen, top, top_ids)
    for each in (memory, id_memory):
        assert bool((each[:, 0] == -5).all() & (each[:, -1] == -5).all()), "wrote beside the results"
    return chosen, top, top_ids


def assert_twins(kernels: CpuKernels, logits: Tensor, token_ids: list[int], num_top: int) -> Tensor:
    chosen, top, top_ids = look_up(kernels, logits, token_ids, num_top)
    twins_chosen, twins_top, twins_ids = look_up(reference, logits, token_ids, num_top)
    assert top_ids.tolist() == twins_ids.tolist()
    torch.testing.assert_close(chosen, twins_chosen, atol=2e-5, rtol=1e-6, equal_nan=True)
    torch.testing.assert_close(top, twins_top, atol=2e-5, rtol=1e-6, equal_nan=True)
    return top_ids


@settings(max_examples=examples(100))
@given(data=st.data(), vocab_size=st.integers(1, 70), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_the_twins_with_all_values(
    kernels: CpuKernels, data: st.DataObject, vocab_size: int, dtype: torch.dtype
) -> None:
    row = data.draw(st.lists(VALUES, min_size=vocab_size, max_size=vocab_size))
    num_top = data.draw(st.integers(0, min(20, vocab_size)))
    token = data.draw(st.integers(0, vocab_size - 1))
    logits = with_strides(torch.tensor([row, row[::-1]], dtype=dtype), data.draw(st.sampled_from([0, 3])))
    assert_twins(kernels, logits, [token, token], num_top)


@settings(max_examples=examples(40))
@given(
    vocab_size=st.sampled_from([127, 1023, 1024, 1025, 3000, 20_000]),
    kind=st.sampled_from(["any", "whole", "ascending", "descending", "mostly -inf"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    num_top=st.integers(0, 20),
    seed=st.integers(0, 99),
)
def test_the_twins_of_long_rows(
    kernels: CpuKernels, vocab_size: int, kind: str, dtype: torch.dtype, num_top: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(5, vocab_size, generator=generator)
    if kind == "whole":
        logits = logits.round()
    elif kind == "mostly -inf":
        logits[:, 1:].masked_fill_(torch.rand(5, vocab_size - 1, generator=generator) < 0.999, -torch.inf)
    elif kind != "any":
        logits = logits.sort(descending=kind == "descending").values
    token_ids = torch.randint(vocab_size, (5,), generator=generator).tolist()
    assert_twins(kernels, logits.to(dtype), token_ids, num_top)


@DTYPES
@pytest.mark.parametrize("scale", [0.01, 3.0, 30.0])
def test_they_are_exact(kernels: CpuKernels, dtype: torch.dtype, scale: float) -> None:
    """Within some roundings of a float32, at the size of a real vocabulary."""
    logits = (scale * torch.randn(3, 151_936, generator=torch.Generator().manual_seed(2))).to(dtype)
    chosen, top, top_ids = look_up(kernels, logits, [0, 75_000, 151_935], 20)
    exact = logits.double().log_softmax(-1)
    assert chosen.tolist() == pytest.approx(exact[torch.arange(3), [0, 75_000, 151_935]].tolist(), rel=2e-7, abs=3e-7)
    assert top.flatten().tolist() == pytest.approx(
        exact.gather(1, top_ids.long()).flatten().tolist(), rel=2e-7, abs=3e-7
    )


@DTYPES
def test_a_likely_token_asked_about_has_the_same_log_probability(kernels: CpuKernels, dtype: torch.dtype) -> None:
    """Bit for bit: lm-eval takes a token that is below the greatest for one that greedy decoding would not draw."""
    logits = (5 * torch.randn(40, 1500, generator=torch.Generator().manual_seed(4))).to(dtype)
    top_ids = look_up(kernels, logits, [0] * 40, 4)[2]
    for place in range(4):
        chosen, top, _ = look_up(kernels, logits, top_ids[:, place].tolist(), 4)
        assert chosen.equal(top[:, place])


@DTYPES
def test_of_equals_the_lowest_id_comes_first(kernels: CpuKernels, dtype: torch.dtype) -> None:
    logits = torch.tensor([[-0.0, 0.0, -1.0, 0.0, -torch.inf, -1.0, torch.nan, -torch.inf]], dtype=dtype)
    assert assert_twins(kernels, logits, [0], 8).tolist() == [[0, 1, 3, 2, 5, 4, 6, 7]]
    assert assert_twins(kernels, torch.zeros(1, 900, dtype=dtype), [5], 20).tolist() == [list(range(20))]
    assert assert_twins(kernels, logits.repeat(1, 50), [0], 4).tolist() == [[0, 1, 3, 8]]


@DTYPES
def test_rows_without_numbers_are_nan_and_still_ranked(kernels: CpuKernels, dtype: torch.dtype) -> None:
    logits = torch.tensor(
        [[-torch.inf, torch.nan, 1.0, torch.inf], [-torch.inf] * 4, [1.0, 2.0, 3.0, 4.0]], dtype=dtype
    )
    top_ids = assert_twins(kernels, logits, [2, 0, 1], 4)
    assert top_ids.tolist() == [[3, 2, 0, 1], [0, 1, 2, 3], [3, 2, 1, 0]]
    chosen, top, _ = look_up(kernels, logits, [2, 0, 1], 4)
    assert chosen.isnan().tolist() == [True, True, False]
    assert top.isnan().tolist() == [[True] * 4, [True] * 4, [False] * 4]


def test_what_is_no_token_has_no_log_probability(kernels: CpuKernels) -> None:
    chosen, _, top_ids = look_up(kernels, torch.tensor([[1.0, 2.0], [1.0, 2.0]]), [-1, 1], 1)
    assert chosen.isnan().tolist() == [True, False]
    assert top_ids.tolist() == [[1], [1]]


@DTYPES
def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels, dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(9, 1500, generator=torch.Generator().manual_seed(3))).to(dtype)
    logits[3, 70] = torch.nan
    token_ids = torch.arange(0, 900, 100).tolist()
    together = look_up(kernels, logits, token_ids, 7)
    for row in range(9):
        for alone, all_rows in zip(
            look_up(kernels, logits[row : row + 1], token_ids[row : row + 1], 7), together, strict=True
        ):
            torch.testing.assert_close(alone, all_rows[row : row + 1], rtol=0, atol=0, equal_nan=True)


def test_wrong_arguments_are_refused(kernels: CpuKernels) -> None:
    logits = torch.zeros(2, 5)
    for num_top in (-1, 6):
        with pytest.raises(ValueError, match="num_top"):
            kernels.log_probs(
                logits, torch.zeros(2).int(), num_top, torch.zeros(2), torch.zeros(2, 6), torch.zeros(2, 6).int()
            )
    good = [torch.zeros(2).int(), torch.zeros(2), torch.zeros(2, 3), torch.zeros(2, 3).int()]
    for place, name in enumerate(("token_ids", "out_chosen", "out_top", "out_top_ids")):
        for wrong in (good[place].double(), good[place][:1]):
            token_ids, *outs = [*good[:place], wrong, *good[place + 1 :]]
            with pytest.raises(ValueError, match=name):
                kernels.log_probs(logits, token_ids, 3, *outs)
    with pytest.raises(ValueError, match="logits"):
        kernels.log_probs(logits.half(), good[0], 3, *good[1:])
