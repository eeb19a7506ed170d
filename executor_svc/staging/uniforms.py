"""Random numbers that depend on what is sampled and on nothing else.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is a keyed bijection of a
counter: there is no generator state to carry along, so a sequence gets the same draws on another executor.
"""

import numpy as np
import numpy.typing as npt

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)  # of the even words
_WEYL = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None] * np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
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
    counter = np.zeros((4, len(positions)), dtype=np.uint64)
    counter[0] = positions
    word: Words = philox4x32(counter, np.stack((seeds & _LOW, seeds >> _HALF)))[0]
    return (word >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)


def philox4x32(counter: Words, key: Words) -> Words:
    """Philox4x32-10, vectorised. All words are 32-bit values in uint64.

    Args:
        counter: [4, n].
        key: [2, n].

    Returns:
        [4, n].
    """
    even, odd = counter[::2], counter[1::2]
    for round_key in (key + _WEYL) & _LOW:
        products = even * _MULTIPLIERS
        even = (products >> _HALF)[::-1] ^ odd ^ round_key
        odd = (products & _LOW)[::-1]
    return np.stack((even, odd), axis=1).reshape(counter.shape)
