"""A device's ceilings, which figures are compared with, and how a GPU's are measured (a CPU's: cpu_ceilings.py)."""

from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.rig.gpu_timing import seconds_a_call


@dataclass(frozen=True)
class Ceilings:
    """What the device does at best, measured in the same run.

    Attributes:
        copy: bytes a second of a copy on the device, bytes read and bytes written together.
        matmul: floating-point operations a second of a large bfloat16 matrix product of random numbers.
    """

    copy: float
    matmul: float


def measure_gpu_ceilings(device: torch.device, budget_s: float) -> Ceilings:
    """Time a copy of 2 GiB and a matrix product of 8192 x 8192 x 8192."""
    source = torch.empty(2**31, dtype=torch.uint8, device=device).random_(256)
    target = torch.empty_like(source)
    copy_s = seconds_a_call([partial(target.copy_, source)], budget_s)
    size = 8192
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    matmul_s = seconds_a_call([partial(torch.mm, left, right)], budget_s)
    return Ceilings(copy=2 * 2**31 / copy_s, matmul=2 * size**3 / matmul_s)
