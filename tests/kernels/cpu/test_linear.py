"""Linear layers over packed weights, against float64 and against themselves."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.cpu import CpuKernels
from tests.kernels.cpu.helpers import ROUNDED_ONCE, distance, noise, poisoned, with_strides
from tests.support.effort import examples

# The emulated tiles are slow, so the shapes are just large enough for two chunks, two segments, odd panels and padding.
SIZES = st.one_of(st.integers(1, 70), st.sampled_from([32, 512, 513, 600]))


def apply(kernels: CpuKernels, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    out = poisoned(len(x), len(weight))
    kernels.linear(x, kernels.pack(weight), bias, out)
    return out


@settings(max_examples=examples(25))
@given(
    rows=st.one_of(st.integers(1, 60), st.just(130)), in_size=SIZES, out_size=st.integers(1, 100), biased=st.booleans()
)
def test_any_shape(kernels: CpuKernels, rows: int, in_size: int, out_size: int, biased: bool) -> None:
    x, weight = noise(rows, in_size), noise(out_size, in_size, seed=1)
    bias = noise(out_size, seed=2) if biased else None
    expected = x.double() @ weight.double().T + (bias.double() if bias is not None else 0.0)
    out = with_strides(poisoned(rows, out_size), 5)
    kernels.linear(with_strides(x, 3), kernels.pack(weight), bias, out)
    assert distance(out, expected) < ROUNDED_ONCE


@pytest.mark.parametrize("rows", [449, 900])
def test_several_segments_of_rows(kernels: CpuKernels, rows: int) -> None:
    x, weight = noise(rows, 64), noise(48, 64, seed=1)
    assert distance(apply(kernels, x, weight), x.double() @ weight.double().T) < ROUNDED_ONCE


def test_agrees_with_its_twin(kernels: CpuKernels) -> None:
    x, weight, bias = noise(7, 96), noise(40, 96, seed=1), noise(40, seed=2)
    expected = poisoned(7, 40)
    reference.linear(x, weight, bias, expected)
    assert distance(apply(kernels, x, weight, bias), expected) < 2 * ROUNDED_ONCE


def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels) -> None:
    x, weight = noise(460, 544), noise(33, 544, seed=1)
    together = apply(kernels, x, weight)
    for rows in (1, 2, 13, 15, 32, 33):
        assert torch.equal(apply(kernels, x[:rows], weight), together[:rows]), rows
    assert torch.equal(apply(kernels, x[455:], weight), together[455:])


def test_neighbours_do_not_leak(kernels: CpuKernels) -> None:
    x, weight = noise(20, 64), noise(40, 64, seed=1)
    expected = apply(kernels, x, weight)
    x[3], weight[17] = torch.nan, torch.inf
    out = apply(kernels, x, weight)
    kept = [row for row in range(20) if row != 3]
    columns = [column for column in range(40) if column != 17]
    assert torch.equal(out[kept][:, columns], expected[kept][:, columns])
    assert out[3].isnan().all()


@settings(max_examples=examples(15))
@given(rows=st.integers(1, 40), in_size=SIZES, size=st.integers(1, 70))
def test_silu_and_mul_is_that_of_a_linear(kernels: CpuKernels, rows: int, in_size: int, size: int) -> None:
    x, weight = noise(rows, in_size), noise(2 * size, in_size, seed=1, scale=2 * in_size**-0.5)
    gate_up, expected, out = poisoned(rows, 2 * size), poisoned(rows, size), poisoned(rows, size)
    # A panel apart, as in the fused layer: gate and up may be cut elsewhere when they are one matrix.
    for start in (0, size):
        kernels.linear(x, kernels.pack(weight[start : start + size]), None, gate_up[:, start : start + size])
    kernels.silu_and_mul(gate_up, expected)
    kernels.linear_silu_and_mul(x, kernels.pack_gate_up(weight), out)
    assert torch.equal(out, expected)


def test_no_rows(kernels: CpuKernels) -> None:
    assert apply(kernels, noise(0, 32), noise(16, 32)).shape == (0, 16)


def test_what_does_not_fit_is_refused(kernels: CpuKernels) -> None:
    packed, gated = kernels.pack(noise(16, 32)), kernels.pack_gate_up(noise(16, 32))
    with pytest.raises(ValueError, match=r"x is torch\.bfloat16 \(2, 31\)"):
        kernels.linear(noise(2, 31), packed, None, noise(2, 16))
    with pytest.raises(ValueError, match=r"x is torch\.float32"):
        kernels.linear(noise(2, 32).float(), packed, None, noise(2, 16))
    with pytest.raises(ValueError, match="strides"):
        kernels.linear(noise(32, 2).T, packed, None, noise(2, 16))
    with pytest.raises(ValueError, match="bias"):
        kernels.linear(noise(2, 32), packed, noise(15), noise(2, 16))
    with pytest.raises(ValueError, match="other kind"):
        kernels.linear(noise(2, 32), gated, None, noise(2, 8))
    with pytest.raises(ValueError, match="contiguous"):
        kernels.pack(noise(16, 40)[:, :32])
    with pytest.raises(ValueError, match="15 rows"):
        kernels.pack_gate_up(noise(15, 32))
    with pytest.raises(ValueError, match=r"weight is torch\.bfloat16 \(16, 40\)"):
        kernels.pack_into(noise(16, 40), packed)


def test_any_number_of_threads_gives_the_same(kernels: CpuKernels) -> None:
    """More threads than panels or CPUs: they steal from each other, and are interrupted while they do."""
    x, weight = noise(3, 64), noise(400, 64, seed=1)
    expected = apply(kernels, x, weight)
    for threads in (1, 2, 3, 7, 40):
        others = CpuKernels(kernels._library, threads)
        for _ in range(20):
            assert torch.equal(apply(others, x, weight), expected), threads
