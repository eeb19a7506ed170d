"""What the tests of several kernels need."""

import pytest
import torch
from torch import Tensor

from kernels.cpu.isa import choose_isas, processor_flags

# The farthest that rounding to bf16 takes a number, relative to it. Of many numbers it is 0.0017 on average.
ROUNDED_ONCE = 2**-8


def lowest_runnable() -> str:
    """The name of the simplest instruction set that this processor runs kernels of; the test skips if it runs none."""
    runnable = choose_isas(processor_flags(), {}).candidates
    if not runnable:
        pytest.skip("needs a processor with AVX2 or more")
    return runnable[-1].name


def noise(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=generator) * scale).bfloat16()


def poisoned(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan, dtype=torch.bfloat16)


def with_strides(tensor: Tensor, gap: int) -> Tensor:
    """The same rows, `gap` NaN apart."""
    wide = torch.full((tensor.shape[0], tensor.shape[1] + gap), torch.nan, dtype=tensor.dtype)
    wide[:, : tensor.shape[1]] = tensor
    return wide[:, : tensor.shape[1]]


def distance(actual: Tensor, expected: Tensor) -> float:
    """Relative, by Euclid's norm; NaN if anything in `actual` is."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30))


def few_roundings_differ(actual: Tensor, expected: Tensor) -> bool:
    """Whether two bf16 results of the same roundings are as close as float32 in another order allows.

    Then some values fall to the other side of a rounding, by a unit in the last place: few of many, any of a few.
    """
    return distance(actual, expected) < (0.0006 if actual.numel() > 1000 else 4 * ROUNDED_ONCE)
