"""From the bytes of a tensor in a GGUF file to numbers, in two steps: groups of integers with a scale each, and values.

The layouts of the blocks are ggml's (ggml/src/ggml-common.h there), and so is the order in which values are computed:
each is bit by bit what `gguf.quants.dequantize` makes of the same bytes in float32.
"""

from collections.abc import Callable
from math import isfinite

import msgspec
import torch
from torch import Tensor

from common.errors import CheckpointError
from common.gguf import SUPPORTED_TYPES, GgufTensor

PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types whose values are stored as they are."""


class Groups(msgspec.Struct, frozen=True):
    """Rows of integers in groups. A value is `integer * scale`, or `integer * scale + offset`.

    Attributes:
        integers: [rows, groups, integers in a group] int8.
        scales: [rows, groups] float32, finite.
        offsets: [rows, groups] float32, finite; None for types that have none.
    """

    integers: Tensor
    scales: Tensor
    offsets: Tensor | None = None


def read_groups(tensor: GgufTensor, stored: Tensor) -> Groups:
    """Take rows of a quantized tensor apart.

    Args:
        tensor: whose type is none of `PLAIN_TYPES`.
        stored: [rows, bytes] uint8, whole blocks of some rows.

    Raises:
        CheckpointError: a scale or an offset is infinite or NaN.
    """
    _, num_bytes = SUPPORTED_TYPES[tensor.kind]
    assert stored.dtype == torch.uint8
    groups = _READERS[tensor.kind](stored.view(len(stored), -1, num_bytes))
    for numbers in (groups.scales, groups.offsets):
        # One addition for each of them: a sum of finite 16-bit floats, each times 63 at most, is finite in 32 bits.
        if numbers is not None and not isfinite(numbers.sum().item()):
            raise CheckpointError(f"{tensor.path}: {tensor.name} has a scale that is infinite or no number")
    return groups


def expand(groups: Groups, target: Tensor | None = None) -> Tensor:
    """Compute the values of rows.

    Args:
        target: [rows, values] float32 and contiguous, to write to; a new tensor if there is none.

    Returns:
        `target`.
    """
    rows, num_groups, size = groups.integers.shape
    if target is None:
        target = torch.empty(rows, num_groups * size)
    values = target.view(rows, num_groups, size)
    values.copy_(groups.integers)  # in place from here on: no other memory of this size is taken
    values *= groups.scales.unsqueeze(-1)
    if groups.offsets is not None:  # added after the product was rounded, as the reference does
        values += groups.offsets.unsqueeze(-1)
    return target


def _float16(block: Tensor, place: int) -> Tensor:
    """A half-precision number of each block, at a place in bytes, as float32: [rows, blocks, 1]."""
    return block[..., place : place + 2].view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """The low halves of all bytes, and after them the high ones: [..., n] to [..., 2, n]."""
    both = packed.new_empty(*packed.shape[:-1], 2, packed.shape[-1])
    torch.bitwise_and(packed, 0x0F, out=both[..., 0, :])
    torch.bitwise_right_shift(packed, 4, out=both[..., 1, :])
    return both


def _fields(packed: Tensor, bits: int) -> Tensor:
    """All fields of some bits in each byte, the lowest first: [..., n] to [..., 8 / bits, n]."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).unsqueeze(-1)
    return (packed.unsqueeze(-2) >> shifts).bitwise_and_(2**bits - 1)


def _fifth_bits(packed: Tensor) -> Tensor:
    """The bits of 4 bytes, in their place above four others: [..., 4] to [..., 32]."""
    return _fields(packed, 1).transpose(-1, -2).flatten(-2) << 4


def _q8_0(block: Tensor) -> Groups:
    return Groups(block[..., 2:].view(torch.int8), _float16(block, 0).squeeze(-1))


def _q4_0(block: Tensor) -> Groups:
    integers = _nibbles(block[..., 2:]).flatten(-2).view(torch.int8)
    return Groups(integers.sub_(8), _float16(block, 0).squeeze(-1))


def _q4_1(block: Tensor) -> Groups:
    integers = _nibbles(block[..., 4:]).flatten(-2).view(torch.int8)
    return Groups(integers, _float16(block, 0).squeeze(-1), _float16(block, 2).squeeze(-1))


def _q5_0(block: Tensor) -> Groups:
    integers = _nibbles(block[..., 6:]).flatten(-2).bitwise_or_(_fifth_bits(block[..., 2:6])).view(torch.int8)
    return Groups(integers.sub_(16), _float16(block, 0).squeeze(-1))


def _q5_1(block: Tensor) -> Groups:
    integers = _nibbles(block[..., 8:]).flatten(-2).bitwise_or_(_fifth_bits(block[..., 4:8])).view(torch.int8)
    return Groups(integers, _float16(block, 0).squeeze(-1), _float16(block, 2).squeeze(-1))


def _k_scales(block: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and offsets of the 8 groups in a block of Q4_K or Q5_K: two times [rows, 8 * blocks].

    After a factor for all scales and one for all minima, 12 bytes have 6 bits for each: the first four scales, and the
    first four minima, each with 2 bits of a later one above them; then the other 4 bits of those.
    """
    first, second, rest = block[..., 4:8], block[..., 8:12], block[..., 12:16]
    scales = torch.cat((first & 0x3F, (rest & 0x0F) | ((first >> 2) & 0x30)), dim=-1)
    minima = torch.cat((second & 0x3F, (rest >> 4) | ((second >> 2) & 0x30)), dim=-1)
    return (_float16(block, 0) * scales).flatten(1), (_float16(block, 2) * minima).flatten(1).neg_()


def _q4_k(block: Tensor) -> Groups:
    quarters = block[..., 16:].view(*block.shape[:2], 4, 32)
    integers = _nibbles(quarters).view(torch.int8).view(len(block), -1, 32)
    return Groups(integers, *_k_scales(block))


def _q5_k(block: Tensor) -> Groups:
    quarters = block[..., 48:].view(*block.shape[:2], 4, 32)
    integers = _nibbles(quarters).flatten(-3, -2).bitwise_or_(_fields(block[..., 16:48], 1) << 4)
    return Groups(integers.view(torch.int8).view(len(block), -1, 32), *_k_scales(block))


def _q6_k(block: Tensor) -> Groups:
    low = _nibbles(block[..., :128].view(*block.shape[:2], 2, 64)).view(*block.shape[:2], 8, 32)
    high = _fields(block[..., 128:192].view(*block.shape[:2], 2, 32), 2).view(*block.shape[:2], 8, 32)
    integers = low.bitwise_or_(high << 4).view(torch.int8).sub_(32)
    scales = _float16(block, 208) * block[..., 192:208].view(torch.int8)
    return Groups(integers.view(len(block), -1, 16), scales.flatten(1))


_READERS: dict[str, Callable[[Tensor], Groups]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
