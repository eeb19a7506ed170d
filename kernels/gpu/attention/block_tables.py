"""Ragged block tables, as they are sent, into the rectangle that attention reads.

Only the entries there are travel to the device and are written there: a row's place in a rectangle as wide as the
longest sequence may be costs a short one nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import check_contiguous, check_last_stride, check_rank, check_tensor
from kernels.gpu.launching import LaunchableKernel
from kernels.gpu.loops import loop_bound

_ENTRIES = 256


def expand_block_tables(block_ids: Tensor, table_starts: Tensor, out: Tensor) -> None:
    """Write each row's part of `block_ids` to the beginning of its row of `out`; the rest of the row stays as it is.

    Starts are trusted: tables that pass the end of `block_ids` or the width of `out` reach into foreign memory.

    Args:
        block_ids: [sum of the tables' lengths] int32.
        table_starts: [rows + 1] int32; row r's table is `block_ids[table_starts[r] : table_starts[r + 1]]`.
        out: [rows, width] int32; rows may lie apart, each must be dense.

    Raises:
        ValueError: a shape, dtype, device or stride does not fit.
    """
    check_rank("block_ids", block_ids, 1)
    check_rank("out", out, 2)
    device = out.device
    check_tensor("block_ids", block_ids, tuple(block_ids.shape), torch.int32, device)
    check_tensor("table_starts", table_starts, (len(out) + 1,), torch.int32, device)
    check_tensor("out", out, tuple(out.shape), torch.int32, device)
    check_contiguous("block_ids", block_ids)
    check_contiguous("table_starts", table_starts)
    check_last_stride("out", out)
    if out.numel() == 0:
        return
    _expand_block_tables_kernel.launch(
        (len(out),), block_ids, table_starts, out, out.stride(0), ENTRIES=_ENTRIES, num_warps=_ENTRIES // 64
    )


# Slices of a step's staged inputs: their alignment changes from step to step and buys nothing here.
@LaunchableKernel
@triton.jit(do_not_specialize_on_alignment=["block_ids", "table_starts"])
def _expand_block_tables_kernel(block_ids, table_starts, out, out_stride, ENTRIES: tl.constexpr):
    row = tl.program_id(0)
    start = tl.load(table_starts + row)
    length = tl.load(table_starts + row + 1) - start
    for first in range(0, loop_bound(length), ENTRIES):
        entries = first + tl.arange(0, ENTRIES)
        ids = tl.load(block_ids + start + entries, mask=entries < length)
        tl.store(out + row.to(tl.int64) * out_stride + entries, ids, mask=entries < length)
