"""Weights of linear layers, laid out for the kernels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu.checks import BF16, FLOAT32, UINT8, check_dense
from kernels.cpu.library import Library

PANEL = 16
"""Output channels that lie together."""


@dataclass(frozen=True)
class PackedWeight:
    """A linear layer's matrix, laid out for the kernels.

    Attributes:
        panels: one-dimensional; bfloat16, or uint8 if it was quantized.
        scales: float32, one for each output channel of a quantized one, in the order of the panels; otherwise None.
        in_size, out_size: of the layer; with a gate, of what is left after `silu(gate) * up`.
        gated: whether it holds a gate and an up projection.
    """

    panels: Tensor
    scales: Tensor | None
    in_size: int
    out_size: int
    gated: bool


def pack(library: Library, threads: int, weights: list[Tensor], int8: bool) -> PackedWeight:
    """Lay out one matrix [out, in], or a gate and an up projection whose panels alternate; all contiguous bfloat16.

    Raises:
        ValueError: a matrix is something else, or its memory was given back.
    """
    out_size, in_size = weights[0].shape
    packed_size: int = (library.packed_int8_size if int8 else library.packed_size)(in_size, out_size)
    panels = torch.empty(len(weights) * packed_size, dtype=UINT8 if int8 else BF16)
    scales = torch.empty(len(weights) * -(-out_size // PANEL) * PANEL, dtype=FLOAT32) if int8 else None
    library.advise_huge_pages(panels.data_ptr(), panels.nbytes)
    for index, weight in enumerate(weights):
        check_dense("weight", weight, BF16, (out_size, in_size))
        if weight.untyped_storage().nbytes() < weight.nbytes:
            raise ValueError("the weight's memory was given back, as after it was packed")
        shared = (weight.data_ptr(), in_size, out_size, index, len(weights), panels.data_ptr())
        if scales is None:
            library.pack_weight(*shared, threads)
        else:
            library.pack_int8_weight(*shared, scales.data_ptr(), threads)
    return PackedWeight(panels, scales, in_size, out_size, gated=len(weights) == 2)
