"""SwiGLU's first half in one pass, against its twin: shapes, strides, dtypes; nothing else in memory changes."""

import re
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from executor_svc.devices.gpu import FEW_ROWS, GpuKernels
from executor_svc.model.packing import Matrix, MatrixShape
from kernels import gpu, reference
from kernels.gpu.layers.gated_linear import ProductTiles, choose_gated_tiles, linear_silu_and_mul
from tests.kernels.gpu import memory


def weights_of(seed: int, size: int, in_size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[2 * size, in], so that gate and up are of about 1."""
    return (memory.noise(seed, 2 * size, in_size, dtype=torch.float32, device=device) / in_size**0.5).to(dtype)


def check(x: Tensor, weight: Tensor, out_gap: int = 0) -> None:
    out = memory.poison(len(x), len(weight) // 2, dtype=x.dtype, device=x.device, beside=out_gap)
    kept, expected = memory.twin_of(x), memory.twin_of(out)
    reference.linear_silu_and_mul(x, weight, expected)
    linear_silu_and_mul(x, weight, out)
    memory.assert_same_memory(out, expected, scale=1.0)
    memory.assert_untouched(x, kept)


@settings(max_examples=memory.NUM_EXAMPLES)
@given(
    rows=st.one_of(st.integers(1, 20), st.integers(1, 140)),
    size=st.integers(1, 90),
    in_size=st.integers(1, 300),
    dtype=st.sampled_from([torch.float16, torch.float32]),  # the interpreter multiplies no bfloat16
    gap=memory.GAPS,
    out_gap=memory.GAPS,
    seed=st.integers(0, 99),
)
@example(rows=1, size=48, in_size=256, dtype=torch.float16, gap=0, out_gap=0, seed=0)
@example(rows=33, size=64, in_size=128, dtype=torch.float16, gap=0, out_gap=8, seed=0)
@example(rows=129, size=70, in_size=64, dtype=torch.float16, gap=8, out_gap=1, seed=1)
def test_any_shape(
    rows: int, size: int, in_size: int, dtype: torch.dtype, gap: int, out_gap: int, seed: int, device: torch.device
) -> None:
    x = memory.framed(memory.noise(seed, rows, in_size, dtype=dtype, device=device), beside=gap)
    check(x, weights_of(seed + 1, size, in_size, dtype, device), out_gap)


@pytest.mark.parametrize("rows", [1, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (17, 33, 65))])
def test_weights_that_are_many_programs(device: torch.device, rows: int) -> None:
    """Wide tiles, the last of which has fewer columns."""
    size, in_size = 8464, 16
    narrow, wide = (choose_gated_tiles(rows, each, torch.float16) for each in (64, size))
    assert wide.columns >= narrow.columns
    x = memory.framed(memory.noise(0, rows, in_size, dtype=torch.float16, device=device))
    check(x, weights_of(1, size, in_size, torch.float16, device))


@pytest.mark.parametrize("size", [768, 3072, 4864, 9728, 12288, 25600])
def test_warm_up_meets_each_configuration(size: int) -> None:
    """It runs powers of two, and the most tokens."""
    for most in (1, 9, 40, 300):
        lengths = {min(1 << power, most) for power in range(10)}
        met = {tiles_of(rows, size) for rows in lengths if rows <= FEW_ROWS}
        chosen = {tiles_of(rows, size) for rows in range(1, min(most, FEW_ROWS) + 1)}
        assert chosen == met
        assert all(tiles_of(rows, size).rows >= rows for rows in lengths if rows <= FEW_ROWS)


def tiles_of(rows: int, size: int) -> ProductTiles:
    return choose_gated_tiles(rows, size, torch.bfloat16)


def test_all_sms_of_a_gpu_have_a_program() -> None:
    """At Qwen3-0.6B and 8B, but for the 64 rows of the smaller one, whose tiles are of a warp group."""
    for size, rows, most_idle in ((3072, 1, 0), (3072, 32, 0), (3072, 64, 36), (12288, 1, 0), (12288, 64, 0)):
        assert 132 - 2 * size // tiles_of(rows, size).columns <= most_idle


def test_few_rows_take_one_kernel_and_more_take_two(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weights_of(1, 24, 64, torch.float32, device)
    project = GpuKernels.__new__(GpuKernels).gated_projection(
        Matrix(MatrixShape(48, 64, gated=True), {"weight": weight})
    )
    launched: list[str] = []
    for name in ("linear_silu_and_mul", "silu_and_mul"):
        kernel = getattr(gpu, name)

        def spy(*arguments: Tensor, kernel: Any = kernel, name: str = name) -> None:
            launched.append(name)
            kernel(*arguments)

        monkeypatch.setattr(gpu, name, spy)
        if name == "silu_and_mul":
            monkeypatch.setattr(GpuKernels, name, staticmethod(spy))
    for rows, expected_kernel in ((1, "linear_silu_and_mul"), (64, "linear_silu_and_mul"), (65, "silu_and_mul")):
        x = memory.noise(rows, rows, 64, dtype=torch.float32, device=device)
        out, expected = torch.empty(2, rows, 24, device=device)
        project(x, torch.empty(rows, 48, device=device), out)
        reference.linear_silu_and_mul(x, weight, expected)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        assert launched.pop() == expected_kernel
        assert not launched


def test_no_rows(device: torch.device) -> None:
    linear_silu_and_mul(torch.empty(0, 64, device=device), torch.empty(32, 64, device=device), torch.empty(0, 16))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x", lambda x: x[0], "x has shape (64,), expected 2 dimensions"),
        ("x", lambda x: x.double(), "x is torch.float64"),
        ("x", lambda x: x.mT.contiguous().mT, "x has strides (1, 3), expected 1 for the last"),
        ("weight", lambda x: x[:-1], "weight has shape (31, 64), expected (30, 64)"),
        ("weight", lambda x: x[:, :32], "weight has shape (32, 32), expected (32, 64)"),
        ("weight", lambda x: x.bfloat16(), "weight is torch.bfloat16, expected torch.float32"),
        ("weight", lambda x: x.mT.contiguous().mT, "weight has shape (32, 64) and strides (1, 32), expected it dense"),
        ("out", lambda x: x[:, :15], "out has shape (3, 15), expected (3, 16)"),
        ("out", lambda x: x.mT.contiguous().mT, "out has strides (1, 3), expected 1 for the last"),
    ],
)
def test_what_does_not_fit(device: torch.device, name: str, change: Any, message: str) -> None:
    right = {
        "x": torch.zeros(3, 64, device=device),
        "weight": torch.zeros(32, 64, device=device),
        "out": torch.zeros(3, 16, device=device),
    }
    linear_silu_and_mul(**right)
    with pytest.raises(ValueError, match=re.escape(message)):
        linear_silu_and_mul(**right | {name: change(right[name])})


def test_rows_may_lie_more_than_32_bits_apart() -> None:
    x = memory.far_apart(3, 64, torch.float16)
    x.copy_(memory.noise(0, 3, 64, dtype=torch.float16, device=x.device))
    weight = weights_of(1, 16, 64, torch.float16, x.device)
    out, expected = torch.empty(2, 3, 16, dtype=torch.float16)
    reference.linear_silu_and_mul(x, weight, expected)
    linear_silu_and_mul(x, weight, out)
    torch.testing.assert_close(out, expected, atol=1e-3, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 33, 64, 256])
@pytest.mark.parametrize(("size", "in_size"), [(3072, 1024), (12288, 4096), (4864, 896)])
def test_sizes_of_models(device: torch.device, rows: int, size: int, in_size: int) -> None:
    x = memory.noise(0, rows, in_size, dtype=torch.bfloat16, device=device)
    weight = weights_of(1, size, in_size, torch.bfloat16, device)
    out, exact = torch.empty(rows, size, dtype=x.dtype, device=device), torch.empty(rows, size, device=device)
    reference.linear_silu_and_mul(x.float(), weight.float(), exact)
    linear_silu_and_mul(x, weight, out)
    assert memory.relative_error(out, exact.double()) < 6e-3
