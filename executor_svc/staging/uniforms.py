"""Random numbers that depend on what is sampled and on nothing else.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is a keyed bijection of a
counter: there is no generator state to carry along, so a sequence gets the same draws on another executor.
"""

import numpy as np
import numpy.typing as npt

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Words = npt.NDArray[np.uint64]


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """One uniform for each token to be sampled.

    Args:
        seeds: uint64 [samples], the sequences' seeds.
        positions: int32 [samples], position in its sequence of each token that is being sampled.

    Returns:
        float32 [samples], multiples of 2**-24 in [0, 1).
    """
    counter = positions.astype(np.uint64)
    zeros = np.zeros_like(counter)
    word = philox4x32((counter, zeros, zeros, zeros), (seeds & _LOW, seeds >> _HALF))[0]
    return (word >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Philox4x32-10, vectorised. All words are 32-bit values in uint64 arrays of one shape; so is the result."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (product1 >> _HALF) ^ c1 ^ k0, product1 & _LOW, (product0 >> _HALF) ^ c3 ^ k1, product0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3
