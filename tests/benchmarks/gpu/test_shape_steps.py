"""shape_steps.py: plans that an executor would take, and the whole benchmark once, on the CPU."""

import numpy as np
import pytest

from benchmarks.gpu import shape_steps
from benchmarks.gpu.shape_steps import Sizes
from executor_svc.model.families import read_config
from tests.benchmarks.running import lines


@pytest.mark.parametrize(("rows", "queries", "context"), [(1, 1, 640), (7, 1, 33), (2, 40, 40), (1, 5, 48)])
def test_rows_have_blocks_of_their_own(tiny, rows, queries, context):
    limits = Sizes((rows,), context, queries, rows).limits(read_config(tiny["tiny"]), 16)
    columns = shape_steps.make_plan(limits, rows, queries, context)
    assert sorted(columns.block_ids.tolist()) == list(range(rows * -(-context // 16)))
    assert columns.block_ids.max() < limits.num_blocks
    tables = np.split(columns.block_ids, np.cumsum(columns.block_counts)[:-1])
    slots = columns.slot_mapping.reshape(rows, queries)
    for table, row in zip(tables, slots, strict=True):
        positions = range(context - queries, context)
        assert row.tolist() == [int(table[at // 16]) * 16 + at % 16 for at in positions]
    assert len(columns.token_ids) == len(columns.positions) == rows * queries
    assert set(columns.token_ids.tolist()) == ({-1} if queries == 1 else {5})


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
def test_the_whole_benchmark_on_a_cpu(shape):
    options = ["--device", "cpu", "--steps", "3", "--prefill", "64", "--rows", "1,4", "--max-rows", "4"]
    started, *steps = lines(".", "gpu.shape_steps", shape, *options)
    assert started["shape"] == shape
    assert [(step["step"], step["rows"], step["context"]) for step in steps] == [
        ("decode", 1, 640),
        ("decode", 4, 640),
        ("prompt", 1, 64),
    ]
    assert all(step["us"] > 0 and step["share"] is None for step in steps)
