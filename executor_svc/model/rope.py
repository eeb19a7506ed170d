"""Rotary position embedding: frequencies, and the table of cosines and sines that layers read."""

import math

import torch
from torch import Tensor

from executor_svc.model.config import RopeConfig


def cos_sin_table(rope: RopeConfig, head_dim: int, max_positions: int) -> Tensor:
    """Cosines (first half) and sines (second half) of every position, float32 [max_positions, head_dim]."""
    inv_freq, attention_factor = inverse_frequencies(rope, head_dim)
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * inv_freq
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_factor


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Radians a position adds to each pair of dimensions, and the scale of cosines and sines.

    Returns:
        float32 [head_dim / 2], and the attention factor (1.0 except for yarn).
    """
    frequencies = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.rope_type == "default":
        return 1.0 / frequencies, 1.0
    return _yarn(rope, head_dim, frequencies)


def _yarn(rope: RopeConfig, head_dim: int, frequencies: Tensor) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): dimensions that turn often keep their frequency, those that turn
    rarely are slowed down by `factor`, and a ramp leads from one to the other."""
    low = _dimension_turning(rope.beta_fast, rope, head_dim)
    high = _dimension_turning(rope.beta_slow, rope, head_dim)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001  # transformers' guard against a ramp of no width
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    kept = 1 - ramp
    inv_freq = 1.0 / (rope.factor * frequencies) * (1 - kept) + 1.0 / frequencies * kept
    return inv_freq, _attention_factor(rope)


def _dimension_turning(rotations: float, rope: RopeConfig, head_dim: int) -> float:
    """The dimension that turns `rotations` times over the pretraining context."""
    turns = math.log(rope.original_max_positions / (rotations * 2 * math.pi))
    return head_dim * turns / (2 * math.log(rope.theta))


def _attention_factor(rope: RopeConfig) -> float:
    def temperature(mscale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return temperature(rope.mscale) / temperature(rope.mscale_all_dim)
    return temperature(1.0)
