"""Rotary position embedding: frequencies, and the table of cosines and sines that layers read."""

import math

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from executor_svc.model.config import RopeConfig


def cos_sin_table(rope: RopeConfig, head_dim: int, max_positions: int) -> Tensor:
    """Cosines (first half) and sines (second half) of every position, float32 [max_positions, head_dim].

    Pairs that are not rotated are turned by no angle: `checkpoint_layout` puts them after the others in each half.
    """
    inv_freq, attention_factor = inverse_frequencies(rope, head_dim)
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * inv_freq
    left_alone = head_dim // 2 - len(inv_freq)
    cosines = F.pad(angles.cos() * attention_factor, (0, left_alone), value=1.0)
    sines = F.pad(angles.sin() * attention_factor, (0, left_alone))
    return torch.cat((cosines, sines), dim=-1)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Radians a position adds to each rotated pair of dimensions, and the scale of cosines and sines.

    Returns:
        float32 [rotated / 2], and the attention factor.
    """
    dims = rope.rotated or head_dim
    frequencies = rope.theta ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims)
    match rope.rope_type:
        case "linear":
            return 1.0 / frequencies / rope.factor, 1.0
        case "llama3":
            return _llama3(rope, 1.0 / frequencies), 1.0
        case "divided":
            divisors = torch.tensor(rope.divisors, dtype=torch.float32)
            return 1.0 / (divisors * frequencies), 1.0 if rope.attention_factor is None else rope.attention_factor
        case "yarn":
            return _yarn(rope, dims, frequencies)
        case _:
            return 1.0 / frequencies, 1.0


def _llama3(rope: RopeConfig, inv_freq: Tensor) -> Tensor:
    """Llama 3.1's scaling (arXiv:2407.21783): waves that are long for the pretraining context are stretched by
    `factor`, short ones stay, and a ramp leads from one to the other."""
    turns = rope.original_max_positions * inv_freq / (2 * math.pi)
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return (1 - kept) * inv_freq / rope.factor + kept * inv_freq


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
