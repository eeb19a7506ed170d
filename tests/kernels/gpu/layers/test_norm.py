"""RMSNorm against its twin, over shapes, strides and dtypes; nothing else in memory changes."""

import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.gpu.layers import norm
from tests.kernels.gpu import memory

EPS = 1e-6


@settings(max_examples=memory.NUM_EXAMPLES)
@given(
    rows=st.integers(1, 5),
    size=st.integers(1, 300),
    dtype=memory.DTYPES,
    gap=memory.GAPS,
    out_gap=memory.GAPS,
    seed=st.integers(0, 99),
)
@example(rows=3, size=1024, dtype=torch.bfloat16, gap=0, out_gap=0, seed=0)
@example(rows=1, size=2560, dtype=torch.float16, gap=8, out_gap=0, seed=1)
def test_rms_norm(
    rows: int, size: int, dtype: torch.dtype, gap: int, out_gap: int, seed: int, device: torch.device
) -> None:
    x = memory.framed(3 * memory.noise(seed, rows, size, dtype=dtype, device=device), beside=gap)
    weight = memory.noise(seed + 1, size, dtype=dtype, device=device)
    out = memory.poison(rows, size, dtype=dtype, device=device, beside=out_gap)
    kept, expected = memory.twin_of(x), memory.twin_of(out)
    reference.rms_norm(x, weight, EPS, expected)
    norm.rms_norm(x, weight, EPS, out)
    memory.assert_same_memory(out, expected)
    memory.assert_untouched(x, kept)


@settings(max_examples=memory.NUM_EXAMPLES)
@given(
    rows=st.integers(1, 5),
    size=st.integers(1, 300),
    dtype=memory.DTYPES,
    gap=memory.GAPS,
    residual_gap=memory.GAPS,
    seed=st.integers(0, 99),
)
@example(rows=3, size=1024, dtype=torch.bfloat16, gap=0, residual_gap=0, seed=0)
@example(rows=1, size=2560, dtype=torch.float16, gap=0, residual_gap=8, seed=1)
def test_add_rms_norm(
    rows: int, size: int, dtype: torch.dtype, gap: int, residual_gap: int, seed: int, device: torch.device
) -> None:
    x = memory.framed(3 * memory.noise(seed, rows, size, dtype=dtype, device=device), beside=gap)
    residual = memory.framed(memory.noise(seed + 1, rows, size, dtype=dtype, device=device), beside=residual_gap)
    weight = memory.noise(seed + 2, size, dtype=dtype, device=device)
    out = memory.poison(rows, size, dtype=dtype, device=device)
    kept, total, expected = memory.twin_of(x), memory.twin_of(residual), memory.twin_of(out)
    reference.add_rms_norm(x, total, weight, EPS, expected)
    norm.add_rms_norm(x, residual, weight, EPS, out)
    memory.assert_same_memory(residual, total, exact=True)
    memory.assert_same_memory(out, expected)
    memory.assert_untouched(x, kept)


@pytest.mark.parametrize("size", [40, 1024, 4096])
def test_more_rows_than_fill_the_chip(size: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "FULL_CHIP_PROGRAMS", 4)
    rows = 7
    assert norm.choose_norm_tile(rows, size).rows == (1 if size == 4096 else 4)
    x = memory.framed(memory.noise(0, rows, size, dtype=torch.float16, device=device))
    weight = memory.noise(1, size, dtype=torch.float16, device=device)
    out = memory.poison(rows, size, dtype=torch.float16, device=device)
    expected = memory.twin_of(out)
    reference.rms_norm(x, weight, EPS, expected)
    norm.rms_norm(x, weight, EPS, out)
    memory.assert_same_memory(out, expected)


def test_steps_are_rounded_as_in_the_twin(device: torch.device) -> None:
    x, residual = memory.noise(0, 2, 8, 1024, dtype=torch.float16, device=device)
    weight = memory.noise(1, 1024, dtype=torch.float16, device=device)
    total, out, expected = residual.clone(), torch.empty_like(x), torch.empty_like(x)
    reference.add_rms_norm(x, total, weight, EPS, expected)
    norm.add_rms_norm(x, residual, weight, EPS, out)
    assert memory.share_of_equal(out, expected) > 0.99
    reference.rms_norm(x, weight, EPS, expected)
    norm.rms_norm(x, weight, EPS, out)
    assert memory.share_of_equal(out, expected) > 0.99


def test_the_result_may_take_the_place_of_the_input(device: torch.device) -> None:
    x = memory.framed(memory.noise(0, 5, 72, dtype=torch.float32, device=device))
    residual = memory.framed(memory.noise(1, 5, 72, dtype=torch.float32, device=device))
    weight = memory.noise(2, 72, dtype=torch.float32, device=device)
    expected, total = memory.twin_of(x), memory.twin_of(residual)
    reference.add_rms_norm(x, total, weight, EPS, expected)
    norm.add_rms_norm(x, residual, weight, EPS, x)
    memory.assert_same_memory(x, expected)
    reference.rms_norm(expected, weight, EPS, expected)
    norm.rms_norm(x, weight, EPS, x)
    memory.assert_same_memory(x, expected)


def test_eps_keeps_rows_of_zeros_at_zero_and_small_rows_small(device: torch.device) -> None:
    x = torch.zeros(2, 64, device=device)
    x[1] = 1e-3
    out = torch.full_like(x, torch.nan)
    norm.rms_norm(x, torch.ones(64, device=device), 1e-6, out)
    assert (out[0] == 0).all()
    torch.testing.assert_close(out[1], torch.full_like(out[1], 0.5**0.5))


def test_no_rows(device: torch.device) -> None:
    empty = torch.empty(0, 64, device=device)
    weight = torch.ones(64, device=device)
    norm.rms_norm(empty, weight, EPS, empty)
    norm.add_rms_norm(empty, empty, weight, EPS, empty)


def test_offsets_beyond_32_bits(host: torch.device) -> None:
    rows, size, dtype = 3, 64, torch.float16
    x, residual, out = (memory.far_apart(rows, size, dtype) for _ in range(3))
    x.copy_(memory.noise(0, rows, size, dtype=dtype, device=host))
    residual.copy_(memory.noise(1, rows, size, dtype=dtype, device=host))
    weight = memory.noise(2, size, dtype=dtype, device=host)
    total, expected = residual.clone(), torch.empty(rows, size, dtype=dtype)
    reference.add_rms_norm(x, total, weight, EPS, expected)
    norm.add_rms_norm(x, residual, weight, EPS, out)
    assert torch.equal(residual, total)
    torch.testing.assert_close(out, expected)
    reference.rms_norm(x, weight, EPS, expected)
    norm.rms_norm(x, weight, EPS, out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("x", torch.zeros(4, 8, 1), "x has shape (4, 8, 1), expected 2 dimensions"),
        ("x", torch.zeros(4, 8, dtype=torch.int32), "x is torch.int32, expected torch.bfloat16 or"),
        ("x", torch.zeros(4, 0), "the row size of x is 0, expected 1 to 16384"),
        ("x", torch.zeros(1, 1).expand(4, 16385), "the row size of x is 16385, expected 1 to 16384"),
        ("x", torch.zeros(8, 4).T, "x has strides (1, 4), expected 1 for the last"),
        ("weight", torch.zeros(7), "weight has shape (7,), expected (8,)"),
        ("weight", torch.zeros(8).half(), "weight is torch.float16, expected torch.float32"),
        ("weight", torch.zeros(8, device="meta"), "weight is on meta, expected cpu"),
        ("weight", torch.zeros(16)[::2], "weight has strides (2,), expected 1 for the last"),
        ("out", torch.zeros(5, 8), "out has shape (5, 8), expected (4, 8)"),
        ("out", torch.zeros(4, 8).half(), "out is torch.float16, expected torch.float32"),
        ("out", torch.zeros(4, 8, device="meta"), "out is on meta, expected cpu"),
        ("out", torch.zeros(8, 4).T, "out has strides (1, 4), expected 1 for the last"),
        ("residual", torch.zeros(3, 8), "residual has shape (3, 8), expected (4, 8)"),
        ("residual", torch.zeros(4, 8).bfloat16(), "residual is torch.bfloat16, expected torch.float32"),
        ("residual", torch.zeros(4, 8, device="meta"), "residual is on meta, expected cpu"),
        ("residual", torch.zeros(8, 4).T, "residual has strides (1, 4), expected 1 for the last"),
    ],
)
def test_wrong_arguments(name: str, tensor: Tensor, message: str) -> None:
    right = {"x": torch.zeros(4, 8), "weight": torch.zeros(8), "out": torch.zeros(4, 8)}
    if name != "residual":
        with pytest.raises(ValueError, match=re.escape(message)):
            norm.rms_norm(**right | {name: tensor}, eps=EPS)
    with pytest.raises(ValueError, match=re.escape(message)):
        norm.add_rms_norm(**{"residual": torch.zeros(4, 8)} | right | {name: tensor}, eps=EPS)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1024, 2560, 4096, 5120, 5122])
@pytest.mark.parametrize("rows", [1, 256, 70_001])
def test_real_sizes(rows: int, size: int, device: torch.device) -> None:
    dtype = torch.bfloat16
    x, residual = torch.randn(2, rows, size, device=device).to(dtype)
    weight = torch.randn(size, device=device).to(dtype)
    total = residual + x
    out = torch.full_like(x, torch.nan)
    norm.add_rms_norm(x, residual, weight, EPS, out)
    assert torch.equal(residual, total)
    for part in zip(total.split(4096), out.split(4096), strict=True):
        assert memory.relative_error(part[1], _exact(part[0], weight)) < 4e-3
    out.fill_(torch.nan)
    norm.rms_norm(x, weight, EPS, out)
    for part in zip(x.split(4096), out.split(4096), strict=True):
        assert memory.relative_error(part[1], _exact(part[0], weight)) < 4e-3


@pytest.mark.gpu
def test_more_values_than_32_bits_count(device: torch.device) -> None:
    rows, size = 2**31 // 5120 + 1000, 5120
    x = torch.empty(rows, size, dtype=torch.bfloat16, device=device).normal_()
    weight = torch.randn(size, device=device).bfloat16()
    out = torch.full_like(x, torch.nan)
    norm.rms_norm(x, weight, EPS, out)
    assert memory.relative_error(out[-2000:], _exact(x[-2000:], weight)) < 4e-3
    assert not out.isnan().any()


def _exact(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.double()
