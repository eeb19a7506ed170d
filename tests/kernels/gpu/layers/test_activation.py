"""SiLU-and-multiply against its twin, over shapes, strides and dtypes; nothing else in memory changes."""

import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.gpu.layers import activation
from tests.kernels.gpu import memory


@settings(max_examples=memory.NUM_EXAMPLES)
@given(
    rows=st.integers(1, 5),
    size=st.integers(1, 300),
    dtype=memory.DTYPES,
    gap=memory.GAPS,
    out_gap=memory.GAPS,
    seed=st.integers(0, 99),
)
@example(rows=2, size=1024, dtype=torch.bfloat16, gap=0, out_gap=0, seed=0)
@example(rows=2, size=1216, dtype=torch.float16, gap=0, out_gap=0, seed=0)
@example(rows=1, size=3072, dtype=torch.float16, gap=8, out_gap=8, seed=1)
def test_silu_and_mul(
    rows: int, size: int, dtype: torch.dtype, gap: int, out_gap: int, seed: int, device: torch.device
) -> None:
    gate_up = memory.framed(3 * memory.noise(seed, rows, 2 * size, dtype=dtype, device=device), beside=gap)
    out = memory.poison(rows, size, dtype=dtype, device=device, beside=out_gap)
    kept, expected = memory.twin_of(gate_up), memory.twin_of(out)
    reference.silu_and_mul(gate_up, expected)
    activation.silu_and_mul(gate_up, out)
    memory.assert_same_memory(out, expected)
    memory.assert_untouched(gate_up, kept)


@pytest.mark.parametrize("size", [40, 1000, 1100])
def test_more_programs_than_fill_the_chip(size: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "FULL_CHIP_PROGRAMS", 4)
    rows = 7
    assert activation.choose_activation_tile(rows, size).rows == 4
    gate_up = memory.framed(memory.noise(0, rows, 2 * size, dtype=torch.float16, device=device))
    out = memory.poison(rows, size, dtype=torch.float16, device=device)
    expected = memory.twin_of(out)
    reference.silu_and_mul(gate_up, expected)
    activation.silu_and_mul(gate_up, out)
    memory.assert_same_memory(out, expected)


def test_silu_is_rounded_as_in_the_twin(device: torch.device) -> None:
    gate_up = memory.noise(0, 8, 2048, dtype=torch.float16, device=device)
    out, expected = torch.empty(2, 8, 1024, dtype=torch.float16, device=device)
    reference.silu_and_mul(gate_up, expected)
    activation.silu_and_mul(gate_up, out)
    assert memory.share_of_equal(out, expected) > 0.99


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, in the interpreter
def test_gates_far_from_zero(device: torch.device) -> None:
    gate = torch.tensor([0.0, 30.0, 100.0, 1e4, -30.0, -87.0, -100.0, -1e4], device=device)
    out = torch.full((1, 8), torch.nan, device=device)
    activation.silu_and_mul(torch.cat((gate, torch.ones_like(gate)))[None], out)
    expected = gate.double() * torch.sigmoid(gate.double())
    torch.testing.assert_close(out[0].double(), expected, rtol=1e-5, atol=1e-30)


def test_no_rows(device: torch.device) -> None:
    activation.silu_and_mul(torch.empty(0, 64, device=device), torch.empty(0, 32, device=device))


def test_offsets_beyond_32_bits(host: torch.device) -> None:
    gate_up, out = memory.far_apart(3, 64, torch.float16), memory.far_apart(3, 32, torch.float16)
    gate_up.copy_(memory.noise(0, 3, 64, dtype=torch.float16, device=host))
    expected = torch.empty(3, 32, dtype=torch.float16)
    reference.silu_and_mul(gate_up, expected)
    activation.silu_and_mul(gate_up, out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("gate_up", torch.zeros(4), "gate_up has shape (4,), expected 2 dimensions"),
        ("gate_up", torch.zeros(4, 8).double(), "gate_up is torch.float64, expected torch.bfloat16 or"),
        ("gate_up", torch.zeros(4, 7), "gate_up has shape (4, 7), expected rows of two equal halves"),
        ("gate_up", torch.zeros(4, 0), "gate_up has shape (4, 0), expected rows of two equal halves"),
        ("gate_up", torch.zeros(8, 4).T, "gate_up has strides (1, 4), expected 1 for the last"),
        ("out", torch.zeros(4, 8), "out has shape (4, 8), expected (4, 4)"),
        ("out", torch.zeros(4, 4).half(), "out is torch.float16, expected torch.float32"),
        ("out", torch.zeros(4, 4, device="meta"), "out is on meta, expected cpu"),
        ("out", torch.zeros(4, 4).T, "out has strides (1, 4), expected 1 for the last"),
    ],
)
def test_wrong_arguments(name: str, tensor: Tensor, message: str) -> None:
    right = {"gate_up": torch.zeros(4, 8), "out": torch.zeros(4, 4)}
    with pytest.raises(ValueError, match=re.escape(message)):
        activation.silu_and_mul(**right | {name: tensor})


@pytest.mark.gpu
@pytest.mark.parametrize("size", [3072, 9728, 12288, 25600, 1217])
@pytest.mark.parametrize("rows", [1, 256, 70_001])
def test_real_sizes(rows: int, size: int, device: torch.device) -> None:
    """The longest has more than 2**31 values on both sides."""
    gate_up = torch.empty(rows, 2 * size, dtype=torch.bfloat16, device=device).normal_()
    out = torch.full((rows, size), torch.nan, dtype=torch.bfloat16, device=device)
    activation.silu_and_mul(gate_up, out)
    for part, done in ((gate_up[:4096], out[:4096]), (gate_up[-4096:], out[-4096:])):
        gate, up = part.double().chunk(2, -1)
        assert memory.relative_error(done, gate * gate.sigmoid() * up) < 4e-3
    assert not out.isnan().any()
