"""Weights of linear layers, laid out for the kernels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu.checks import BF16, FLOAT32, UINT8, check_dense
from kernels.cpu.library import Library

PACKING_VERSION = 1
"""Of the layouts: what one process packed, another one of the same version and instruction set computes with."""
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

    def panel(self, index: int) -> "PackedWeight":
        """The layer's output channels from `index * PANEL` on, of which there are `PANEL` at most; without a gate."""
        assert not self.gated
        count = -(-self.out_size // PANEL)
        panels = self.panels.view(count, -1)[index]
        scales = None if self.scales is None else self.scales.view(count, PANEL)[index]
        return PackedWeight(panels, scales, self.in_size, min(PANEL, self.out_size - index * PANEL), gated=False)


def empty_packed(
    library: Library, in_size: int, out_size: int, *, gated: bool, int8: bool, device: str
) -> PackedWeight:
    """Uninitialised memory for a matrix [out, in], of which a gated one has an even number of rows."""
    count = 2 if gated else 1
    out_size //= count
    packed_size: int = (library.packed_int8_size if int8 else library.packed_size)(in_size, out_size)
    panels = torch.empty(count * packed_size, dtype=UINT8 if int8 else BF16, device=device)
    num_scales = count * -(-out_size // PANEL) * PANEL
    scales = torch.empty(num_scales, dtype=FLOAT32, device=device) if int8 else None
    return PackedWeight(panels, scales, in_size, out_size, gated)


def pack(library: Library, threads: int, weight: Tensor, packed: PackedWeight) -> None:
    """Lay out a matrix [out, in], contiguous and bfloat16; the panels of a gate and an up projection alternate.

    Raises:
        ValueError: the matrix is something else than what the memory is for.
    """
    weights = weight.chunk(2) if packed.gated else (weight,)
    library.advise_huge_pages(packed.panels.data_ptr(), packed.panels.nbytes)
    for index, half in enumerate(weights):
        check_dense("weight", half, BF16, (packed.out_size, packed.in_size))
        where = (index, len(weights), packed.panels.data_ptr())
        shared = (half.data_ptr(), packed.in_size, packed.out_size, *where)
        if packed.scales is None:
            library.pack_weight(*shared, threads)
        else:
            library.pack_int8_weight(*shared, packed.scales.data_ptr(), threads)
