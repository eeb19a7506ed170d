"""The generator gives the published values, and its draws depend on seed and position only."""

import numpy as np
import pytest

from executor_svc.staging.uniforms import philox4x32, uniforms


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # Random123's kat_vectors, philox4x32 with 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    def words(values: tuple[int, ...]) -> np.ndarray:
        return np.array([values, (0,) * len(values)], dtype=np.uint64).T

    result = philox4x32(words(counter), words(key))
    assert result.shape == (4, 2)
    assert tuple(result[:, 0].tolist()) == expected


def test_a_draw_depends_on_seed_and_position_only() -> None:
    seeds = np.array([0, 0, 1, 2**63 - 1, 2**64 - 1, 7], dtype=np.uint64)
    positions = np.array([0, 1, 0, 5, 5, 2**31 - 1], dtype=np.int32)
    together = uniforms(seeds, positions)
    assert together[0] == np.float32((0x6627E8D5 >> 8) * 2.0**-24)
    for index in range(len(seeds)):
        assert uniforms(seeds[index : index + 1], positions[index : index + 1])[0] == together[index]
    assert len(np.unique(together)) == len(together)


def test_range_and_spread() -> None:
    draws = uniforms(np.full(100_000, 3, dtype=np.uint64), np.arange(100_000, dtype=np.int32))
    assert draws.dtype == np.float32
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.005
    assert (draws * 2**24 == np.floor(draws * 2**24)).all()
