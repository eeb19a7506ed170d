"""Kernels with one fault each, and one without: `compile_rig` has to tell them apart."""

import torch
import triton
import triton.language as tl

from tests.kernels.gpu.compiling import Launch


@triton.jit
def copy(source, target, size, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    at = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) * STRIDE
    tl.store(target + at, tl.load(source + at, mask=at < size), mask=at < size)


@triton.jit
def square(source, target, size, steps, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    product = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(steps):
        tile = tl.load(source + rows * size + columns + step * BLOCK)
        product = tl.dot(tile, tile, product)
    tl.store(target + rows * BLOCK + columns, product)


@triton.jit
def centred(source, target, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(source + at)
    tl.store(target + at, values - tl.max(values))


@triton.jit
def crooked(target, BLOCK: tl.constexpr):
    tl.store(target + tl.arange(0, BLOCK), 0)


def launches(_thorough: bool) -> list[Launch]:
    """Each is named after what is wrong with it."""
    data = torch.empty(2**20, dtype=torch.bfloat16, device="meta")
    sums = torch.empty(2**20, dtype=torch.float32, device="meta")
    many = (4096,)
    return [
        Launch("nothing", lambda: copy[many](data, data, 2**20, STRIDE=1, BLOCK=1024)),
        Launch("nothing, of another size", lambda: copy[many](data, data, 2**19, STRIDE=1, BLOCK=1024)),
        Launch("narrow loads", lambda: copy[many](data, data, 2**20, STRIDE=3, BLOCK=1024)),
        Launch("wgmma", lambda: square[many](data, sums, 1024, 8, BLOCK=64)),
        Launch("registers", lambda: centred[many](sums, sums, BLOCK=512 * 32, num_warps=1)),
        Launch("registers it may have", lambda: centred[many](sums, sums, BLOCK=4096, maxnreg=24)),
        Launch("shared memory", lambda: square[many](data, sums, 1024, 8, BLOCK=128, num_warps=8, num_stages=9)),
        Launch("does not compile", lambda: crooked[many](sums, BLOCK=3)),
        Launch(
            "the last one again, and nothing", lambda: (crooked[many](sums, BLOCK=3), copy[many](sums, sums, 1, 1, 64))
        ),
    ]
