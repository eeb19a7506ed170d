"""What launchers are given is checked, and the message names the argument and its value."""

import re

import pytest
import torch

from kernels.gpu import checks

FLOAT = torch.float32
CPU = torch.device("cpu")


def test_rank() -> None:
    checks.check_rank("x", torch.zeros(2, 3), 2)
    with pytest.raises(ValueError, match=re.escape("x has shape (2, 3), expected 3 dimensions")):
        checks.check_rank("x", torch.zeros(2, 3), 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_activations_may_be_of_three_dtypes(dtype: torch.dtype) -> None:
    checks.check_dtype("x", torch.zeros(1, dtype=dtype))


def test_dtype() -> None:
    expected = "x is torch.float64, expected torch.bfloat16 or torch.float16 or torch.float32"
    with pytest.raises(ValueError, match=re.escape(expected)):
        checks.check_dtype("x", torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ValueError, match=re.escape("ids is torch.int64, expected torch.int32")):
        checks.check_dtype("ids", torch.zeros(1, dtype=torch.int64), (torch.int32,))


def test_tensor() -> None:
    x = torch.zeros(2, 3)
    checks.check_tensor("x", x, (2, 3), FLOAT, CPU)
    with pytest.raises(ValueError, match=re.escape("x has shape (2, 3), expected (3, 2)")):
        checks.check_tensor("x", x, (3, 2), FLOAT, CPU)
    with pytest.raises(ValueError, match=re.escape("x has shape (2, 3), expected (2, 3, 1)")):
        checks.check_tensor("x", x, (2, 3, 1), FLOAT, CPU)
    with pytest.raises(ValueError, match=re.escape("x is torch.float32, expected torch.float16")):
        checks.check_tensor("x", x, (2, 3), torch.float16, CPU)
    with pytest.raises(ValueError, match=re.escape("x is on cpu, expected cuda:1")):
        checks.check_tensor("x", x, (2, 3), FLOAT, torch.device("cuda:1"))


def test_last_stride() -> None:
    x = torch.zeros(3, 8)
    checks.check_last_stride("x", x[:, :4])
    with pytest.raises(ValueError, match=re.escape("x has strides (8, 2), expected 1 for the last")):
        checks.check_last_stride("x", x[:, ::2])


def test_contiguous() -> None:
    x = torch.zeros(3, 8)
    checks.check_contiguous("x", x)
    with pytest.raises(ValueError, match=re.escape("x has shape (3, 4) and strides (8, 1), expected it dense")):
        checks.check_contiguous("x", x[:, :4])


@pytest.mark.parametrize("value", [2, 5, 8])
def test_range_includes_its_ends(value: int) -> None:
    checks.check_range("size", value, 2, 8)


@pytest.mark.parametrize("value", [1, 9])
def test_range(value: int) -> None:
    with pytest.raises(ValueError, match=f"size is {value}, expected 2 to 8"):
        checks.check_range("size", value, 2, 8)


@pytest.mark.parametrize("value", [16, 32, 256])
def test_powers_of_two(value: int) -> None:
    checks.check_power_of_two("head_dim", value, 16, 256)


@pytest.mark.parametrize("value", [-16, 0, 8, 24, 255, 512])
def test_other_numbers(value: int) -> None:
    with pytest.raises(ValueError, match=f"head_dim is {value}, expected a power of two from 16 to 256"):
        checks.check_power_of_two("head_dim", value, 16, 256)
