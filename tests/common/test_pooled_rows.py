"""What a plan asks of pooled rows, and the answer: each checked against the other."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from common import messages as m
from common.errors import WireError
from common.plan import parse_plan
from common.pooled_rows import PooledRows
from common.step_result import parse_result
from tests.common.good_plan import LIMITS, PLAN, floats, ints

EVERY = replace(LIMITS, tasks=("generate", "embed", "score"))
ASKING = msgspec.structs.replace(  # with a third row, of one token at position 1
    PLAN,
    lanes=ints(3, 0, 1),
    query_lens=ints(1, 3, 1),
    context_lens=ints(5, 3, 2),
    token_ids=ints(-1, 7, 8, 9, 2),
    slot_mapping=ints(6 * 4 + 0, 1 * 4 + 0, 1 * 4 + 1, 1 * 4 + 2, 3 * 4 + 1),
    block_counts=ints(2, 1, 1),
    block_ids=ints(2, 6, 1, 3),
    sample_rows=ints(1),
    temperatures=b"",
    top_ks=b"",
    top_ps=b"",
    min_ps=b"",
    seeds=b"",
    pooled_rows=ints(0, 2),
    pooled_counts=ints(0, 2),
    pooled_token_ids=ints(9, 0),
)
RESULT = m.StepResult(epoch=1, step=0, token_ids=ints(5), compute_us=1, pooled=floats(1, 2, 3, 4, -1, -2))


def test_pooled_rows_of_a_good_plan() -> None:
    columns = parse_plan(ASKING, EVERY)
    assert columns.pooled is not None
    assert columns.pooled.rows.tolist() == [0, 2]
    assert columns.pooled.sizes.tolist() == [LIMITS.hidden_size, 2]
    assert columns.pooled.token_ids.tolist() == [9, 0]
    assert columns.pooled.columns() == {
        name: getattr(ASKING, name) for name in ("pooled_rows", "pooled_counts", "pooled_token_ids")
    }
    assert parse_plan(PLAN, EVERY).pooled is None
    assert parse_result(RESULT, 1, 10, pooled=columns.pooled).pooled.tolist() == [1, 2, 3, 4, -1, -2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooled_counts": ints(0)}, "1 entries for 2 pooled_rows"),
        ({"pooled_rows": b""}, "2 entries for 0 pooled_rows"),
        ({"pooled_rows": ints(0, 3)}, "pooled_rows has 3"),
        ({"pooled_rows": ints(-1, 2)}, "pooled_rows has -1"),
        ({"pooled_rows": ints(2, 0)}, "not strictly ascending"),
        ({"pooled_rows": ints(0, 0)}, "not strictly ascending"),
        ({"pooled_rows": ints(0, 1)}, "a row is sampled and pooled"),
        ({"pooled_counts": ints(0, 3)}, "2 entries, pooled_counts add up to 3"),
        ({"pooled_counts": ints(0, -2)}, "pooled_counts has -2"),
        ({"pooled_counts": ints(0, 17)}, "pooled_counts has 17"),
        ({"pooled_token_ids": ints(9, 10)}, "pooled_token_ids has 10"),
        ({"pooled_token_ids": ints(-1, 0)}, "pooled_token_ids has -1"),
        ({"pooled_token_ids": b"abc"}, "not a multiple of 4"),
    ],
)
def test_plans_that_are_refused(change: dict[str, bytes], message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse_plan(msgspec.structs.replace(ASKING, **change), EVERY)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (("embed", "score"), "the plan samples rows, and this executor takes embed, score"),
        (("generate", "embed"), "rows of score, and this executor takes generate, embed"),
        (("generate", "score"), "rows of embed, and this executor takes generate, score"),
    ],
)
def test_a_plan_with_rows_of_a_task_that_the_executor_does_not_take(tasks: tuple[m.Task, ...], message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse_plan(ASKING, replace(EVERY, tasks=tasks))


def test_more_values_than_a_result_has_room_for() -> None:
    parse_plan(ASKING, replace(EVERY, hidden_size=m.MAX_PLAN_POOLED_FLOATS - 2))
    with pytest.raises(WireError, match="524289 pooled values, the limit is 524288"):
        parse_plan(ASKING, replace(EVERY, hidden_size=m.MAX_PLAN_POOLED_FLOATS - 1))


@pytest.mark.parametrize("pooled", [b"", floats(1, 2, 3, 4, -1), floats(1, 2, 3, 4, -1, -2, 3), b"abc"])
def test_results_that_are_not_what_the_plan_asked_for(pooled: bytes) -> None:
    asked = parse_plan(ASKING, EVERY).pooled
    with pytest.raises(WireError, match="pooled"):
        parse_result(msgspec.structs.replace(RESULT, pooled=pooled), 1, 10, pooled=asked)


def test_results_that_no_plan_asked_for() -> None:
    with pytest.raises(WireError, match="6 pooled values, its plan asks for 0"):
        parse_result(RESULT, 1, 10)


@given(data=st.data())
def test_what_is_sent_is_what_is_read(data: Any) -> None:
    rows = data.draw(st.lists(st.integers(0, 5), unique=True).map(sorted))
    counts = [data.draw(st.integers(0, m.MAX_POOLED_TOKEN_IDS)) for _ in rows]
    token_ids = [data.draw(st.integers(0, 9)) for _ in range(sum(counts))]
    asked = PooledRows(*(np.array(column, np.int32) for column in (rows, counts, token_ids)), hidden_size=4)
    plan = msgspec.structs.replace(PLAN, **asked.columns())
    read = PooledRows.of_plan(plan, np.zeros(0, np.int32), 6, 4, 10, EVERY.tasks)
    if read is None:
        assert rows == []
        return
    assert (read.rows.tolist(), read.counts.tolist(), read.token_ids.tolist()) == (rows, counts, token_ids)
    assert read.sizes.tolist() == [count or 4 for count in counts]
