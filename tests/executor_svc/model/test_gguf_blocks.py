"""Blocks of GGUF files: bit by bit the values that llama.cpp's own reader computes."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import CheckpointError
from common.gguf import SUPPORTED_TYPES, GgufTensor
from executor_svc.model.gguf_blocks import PLAIN_TYPES, Groups, expand, read_groups
from tests.support.effort import examples
from tests.support.gguf_files import SCALE_PLACES, random_blocks

KINDS = [kind for kind in SUPPORTED_TYPES if kind not in PLAIN_TYPES]
GROUP_SIZES = {"Q6_K": 16}  # 32 in all others


def groups_of(kind: str, stored: np.ndarray) -> Groups:
    values, num_bytes = SUPPORTED_TYPES[kind]
    shape = (len(stored), stored.shape[1] // num_bytes * values)
    return read_groups(GgufTensor("blk.0.x", shape, kind, Path("m.gguf"), 0, stored.size), torch.from_numpy(stored))


def assert_as_the_reference(kind: str, stored: np.ndarray) -> None:
    expected = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind])
    groups = groups_of(kind, stored)
    assert groups.integers.shape[-1] == GROUP_SIZES.get(kind, 32)
    assert groups.integers.dtype == torch.int8
    for numbers in (groups.scales, groups.offsets):
        assert numbers is None or (numbers.dtype, numbers.shape) == (torch.float32, groups.integers.shape[:-1])
    target = torch.full(expected.shape, torch.nan)
    assert expand(groups, target) is target
    for found in (target, expand(groups)):
        assert np.array_equal(found.numpy().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 256), (7, 512), (65, 1536)])
def test_values_are_the_references(kind: str, shape: tuple[int, int]):
    assert_as_the_reference(kind, random_blocks(np.random.default_rng(shape[0]), shape, kind))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith("K")])
def test_what_the_reference_quantizes_comes_back(kind: str):
    values = np.random.default_rng(1).standard_normal((16, 576), np.float32)
    stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    assert_as_the_reference(kind, stored)
    assert np.abs(expand(groups_of(kind, stored)).numpy() - values).max() < 0.4


@settings(max_examples=examples(400))
@given(kind=st.sampled_from(KINDS), data=st.data())
def test_any_bytes_are_the_references_values_or_refused(kind: str, data: st.DataObject):
    num_bytes = SUPPORTED_TYPES[kind][1]
    stored = np.frombuffer(data.draw(st.binary(min_size=2 * num_bytes, max_size=2 * num_bytes)), np.uint8)
    stored = stored.reshape(data.draw(st.sampled_from([(1, -1), (2, -1)]))).copy()
    scales = [stored.reshape(-1, num_bytes)[:, place : place + 2].copy() for place in SCALE_PLACES[kind]]
    if all(np.isfinite(each.view("<f2")).all() for each in scales):
        assert_as_the_reference(kind, stored)
    else:
        with pytest.raises(CheckpointError):
            groups_of(kind, stored)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(("kind", "place"), [(kind, place) for kind in KINDS for place in SCALE_PLACES[kind]])
def test_a_scale_that_is_no_number_is_refused_by_the_tensors_name(kind: str, place: int, number: float):
    """In a group whose own factor is 0, too."""
    stored = random_blocks(np.random.default_rng(3), (4, 512), kind)
    block = stored.reshape(-1, SUPPORTED_TYPES[kind][1])[5]
    if kind.endswith("K"):
        block[:] = 0
    block[place : place + 2] = np.array([number], "<f2").view(np.uint8)
    with pytest.raises(CheckpointError, match=r"m\.gguf: blk\.0\.x has a scale that is infinite or no number"):
        groups_of(kind, stored)


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_scales_are_numbers(kind: str):
    stored = np.full((64, SUPPORTED_TYPES[kind][1] * 8), 0xFF, np.uint8)
    for place in SCALE_PLACES[kind]:
        blocks = stored.reshape(-1, SUPPORTED_TYPES[kind][1])
        blocks[:, place : place + 2] = np.array([65504.0], "<f2").view(np.uint8)
    assert_as_the_reference(kind, stored)
