"""Checks of a launcher's arguments: cheap enough for the hot path, and the errors name the argument and its value.

A launcher takes the shape, dtype and device that must hold from its first argument (`check_rank`, `check_dtype`) and
compares all others with them (`check_tensor`, below half a microsecond each).
"""

import torch
from torch import Tensor

ACTIVATION_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""What activations, weights and caches may be made of."""


def check_rank(name: str, tensor: Tensor, rank: int) -> None:
    """Raise ValueError unless `tensor` has `rank` dimensions."""
    if tensor.dim() != rank:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {rank} dimensions")


def check_dtype(name: str, tensor: Tensor, allowed: tuple[torch.dtype, ...] = ACTIVATION_DTYPES) -> None:
    """Raise ValueError unless the dtype of `tensor` is one of `allowed`."""
    if tensor.dtype not in allowed:
        raise ValueError(f"{name} is {tensor.dtype}, expected {' or '.join(map(str, allowed))}")


def check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """Raise ValueError unless `tensor` has exactly this shape, dtype and device."""
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name} is {tensor.dtype}, expected {dtype}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, expected {device}")


def check_last_stride(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless the last dimension of `tensor` lies densely in memory; the other strides are free."""
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name} has strides {tensor.stride()}, expected 1 for the last")


def check_contiguous(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless `tensor` is contiguous."""
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, expected it dense")


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise ValueError unless `low <= value <= high`."""
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, expected {low} to {high}")


def check_power_of_two(name: str, value: int, low: int, high: int) -> None:
    """Raise ValueError unless `value` is a power of two and `low <= value <= high`."""
    if not low <= value <= high or value & (value - 1):
        raise ValueError(f"{name} is {value}, expected a power of two from {low} to {high}")
