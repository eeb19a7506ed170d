"""Ragged block tables into a rectangle, against the twin."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.gpu.attention.block_tables import expand_block_tables
from tests.support.effort import examples


@settings(max_examples=examples(30))
@given(lengths=st.lists(st.sampled_from([0, 1, 2, 255, 256, 257, 600]), min_size=1, max_size=5), apart=st.booleans())
def test_tables_are_copied_and_nothing_else_is_written(lengths: list[int], apart: bool, device: torch.device) -> None:
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    block_ids = torch.arange(sum(lengths), dtype=torch.int32) * 7
    width = max(lengths) + 3
    expected = torch.full((len(lengths) + 1, 2 * width), -5, dtype=torch.int32)
    out = expected.to(device)
    chosen = (slice(0, len(lengths)), slice(0, width if apart else 2 * width))
    reference.expand_block_tables(block_ids, starts, expected[chosen])
    expand_block_tables(block_ids.to(device), starts.to(device), out[chosen])
    assert (out.cpu() == expected).all()
    assert (out.cpu()[-1] == -5).all()
    for row, length in enumerate(lengths):
        assert out[row, :length].tolist() == block_ids[starts[row] : starts[row + 1]].tolist()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"table_starts": torch.zeros(2, dtype=torch.int32)}, r"table_starts has shape \(2,\), expected \(3,\)"),
        ({"block_ids": torch.zeros(4)}, "block_ids is torch.float32, expected torch.int32"),
        ({"out": torch.zeros(2, 8, dtype=torch.int32)[:, ::2]}, r"out has strides \(8, 2\), expected 1 for the last"),
    ],
)
def test_wrong_arguments(change: dict[str, torch.Tensor], complaint: str) -> None:
    arguments = {
        "block_ids": torch.zeros(4, dtype=torch.int32),
        "table_starts": torch.zeros(3, dtype=torch.int32),
        "out": torch.zeros(2, 4, dtype=torch.int32),
    }
    with pytest.raises(ValueError, match=complaint):
        expand_block_tables(**{**arguments, **change})
