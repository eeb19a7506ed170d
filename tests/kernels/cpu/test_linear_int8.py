"""Linear layers in int8, against their twin, against bfloat16 and against themselves."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.cpu import ISA_VARIABLE, CpuKernels, load
from tests.kernels.cpu.conftest import THREADS
from tests.kernels.cpu.helpers import ROUNDED_ONCE, distance, noise, poisoned, with_strides
from tests.support.effort import examples

# Just large enough for three groups, the last of them short, odd panels and padding.
SIZES = st.one_of(st.integers(1, 140), st.sampled_from([255, 256, 257, 512, 513, 600]))


def apply(kernels: CpuKernels, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    out = poisoned(len(x), len(weight))
    kernels.linear(x, kernels.pack(weight, int8=True), bias, out)
    return out


def apply_twin(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    out = torch.empty(len(x), len(weight))
    reference.linear_int8(x.float(), *reference.quantize_weight(weight), bias, out)
    return out


@settings(max_examples=examples(25))
@given(
    rows=st.one_of(st.integers(1, 60), st.just(130)), in_size=SIZES, out_size=st.integers(1, 100), biased=st.booleans()
)
def test_any_shape(kernels: CpuKernels, rows: int, in_size: int, out_size: int, biased: bool) -> None:
    x, weight = noise(rows, in_size), noise(out_size, in_size, seed=1)
    bias = noise(out_size, seed=2) if biased else None
    out = with_strides(poisoned(rows, out_size), 5)
    kernels.linear(with_strides(x, 3), kernels.pack(weight, int8=True), bias, out)
    assert distance(out, apply_twin(x, weight, bias)) < ROUNDED_ONCE


def test_several_segments_of_rows(kernels: CpuKernels) -> None:
    x, weight = noise(900, 300), noise(48, 300, seed=1)
    assert distance(apply(kernels, x, weight), apply_twin(x, weight)) < ROUNDED_ONCE


def test_close_to_the_exact_product(kernels: CpuKernels) -> None:
    x, weight = noise(16, 1024), noise(64, 1024, seed=1)
    exact = x.double() @ weight.double().T
    error = (apply(kernels, x, weight).double() - exact).std() / exact.std()
    assert error < 0.015  # of normal numbers: half a step in 127 of three deviations, on both sides


def test_an_outlier_costs_only_its_group_precision(kernels: CpuKernels) -> None:
    x, weight = noise(1, 1024), noise(64, 1024, seed=1)
    x[0, 300] = 1000.0
    weight[:, 300] = 0
    exact = x.double() @ weight.double().T
    error = (apply(kernels, x, weight).double() - exact).std() / exact.std()
    assert 0.01 < error < 0.6  # the group's 256 elements round to 0: half of the result without groups is all of it


def test_zeros_and_the_largest(kernels: CpuKernels) -> None:
    weight = torch.full((16, 512), -2.0).bfloat16()
    x = torch.full((3, 512), 4.0).bfloat16()
    x[1] = 0
    x[2, :256] = 0
    assert apply(kernels, x, weight)[:, 5].tolist() == [-4096, 0, -2048]
    assert apply(kernels, x, torch.zeros_like(weight)).count_nonzero() == 0


def test_every_instruction_set_gives_the_same(kernels: CpuKernels) -> None:
    x, weight, bias = noise(37, 600), noise(50, 600, seed=1), noise(50, seed=2)
    lowest = load(THREADS, print, {ISA_VARIABLE: "avx2"}).kernels
    assert lowest is not None
    assert torch.equal(apply(kernels, x, weight, bias), apply(lowest, x, weight, bias))


def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels) -> None:
    x, weight = noise(460, 544), noise(33, 544, seed=1)
    together = apply(kernels, x, weight)
    for rows in (1, 2, 13, 15, 32, 33):
        assert torch.equal(apply(kernels, x[:rows], weight), together[:rows]), rows
    assert torch.equal(apply(kernels, x[455:], weight), together[455:])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_does_not_leak(kernels: CpuKernels, value: float) -> None:
    x, weight = noise(20, 300), noise(40, 300, seed=1)
    expected = apply(kernels, x, weight)
    x[3, 280], weight[17, 2] = value, value
    out = apply(kernels, x, weight)
    kept = [row for row in range(20) if row != 3]
    columns = [column for column in range(40) if column != 17]
    assert torch.equal(out[kept][:, columns], expected[kept][:, columns])
    assert out[3].isnan().all()
    assert out[:, 17].isnan().all()


@settings(max_examples=examples(15))
@given(rows=st.integers(1, 40), in_size=SIZES, size=st.integers(1, 70))
def test_silu_and_mul_is_that_of_a_linear(kernels: CpuKernels, rows: int, in_size: int, size: int) -> None:
    x, weight = noise(rows, in_size), noise(2 * size, in_size, seed=1, scale=2 * in_size**-0.5)
    gate_up, expected, out = apply(kernels, x, weight), poisoned(rows, size), poisoned(rows, size)
    kernels.silu_and_mul(gate_up, expected)
    kernels.linear_silu_and_mul(x, kernels.pack_gate_up(weight, int8=True), out)
    assert torch.equal(out, expected)


def test_no_rows(kernels: CpuKernels) -> None:
    assert apply(kernels, noise(0, 32), noise(16, 32)).shape == (0, 16)
