"""How matrices of linear layers are laid out for kernels: what one becomes, and what turns it into that."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its memory, which is contiguous."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorSpec":
        """That of a tensor on any device, `meta` included."""
        return cls(tensor.dtype, tuple(tensor.shape))

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True)
class MatrixShape:
    """Of a linear layer.

    Attributes:
        out_size, in_size: rows and columns of the matrix.
        gated: whether the rows are a gate over an up projection, whose results become silu(gate) * up.
    """

    out_size: int
    in_size: int
    gated: bool = False


@dataclass(frozen=True)
class Matrix:
    """A matrix as a kernel set runs with it.

    Attributes:
        parts: the tensors that `Packing.parts` names.
    """

    shape: MatrixShape
    parts: Mapping[str, Tensor]


class Packing(Protocol):
    """The layout of a kernel set's matrices."""

    @property
    def name(self) -> str:
        """Of the layout, with its version and what it depends on: matrices of equal names are interchangeable."""
        ...

    @property
    def as_is(self) -> bool:
        """Whether a matrix stays what it is: its only part is `weight`, and it is never packed."""
        ...

    def parts(self, shape: MatrixShape, dtype: torch.dtype) -> dict[str, TensorSpec]:
        """What a matrix of this shape and dtype becomes, by names."""
        ...

    def pack(self, weight: Tensor, matrix: Matrix) -> None:
        """Lay a matrix [out, in] out, into the memory of `matrix`."""
        ...


class AsIs:
    """The layout of kernels that take a matrix as it is."""

    name = "plain-1"
    as_is = True

    def parts(self, shape: MatrixShape, dtype: torch.dtype) -> dict[str, TensorSpec]:
        """See `Packing.parts`."""
        return {"weight": TensorSpec(dtype, (shape.out_size, shape.in_size))}

    def pack(self, weight: Tensor, matrix: Matrix) -> None:
        """See `Packing.pack`."""
        raise AssertionError("a matrix that stays what it is was to be packed")


AS_IS: Packing = AsIs()
