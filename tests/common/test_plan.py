"""A plan that contradicts itself, or goes beyond the executor, is refused before it can reach a kernel."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from common.errors import WireError
from common.plan import parse_plan
from common.step_result import parse_result
from tests.common.good_plan import LIMITS, PLAN, floats, ints
from tests.support.effort import examples


@pytest.mark.parametrize(
    ("num_blocks", "max_model_len", "room"),
    [(5888, 4096, "23 sequences of 4,096 tokens"), (5887, 4096, "22 sequences of 4,096 tokens"),
     (2, 17, "1 sequence of 17 tokens"), (64_000, 1024, "1,000 sequences of 1,024 tokens")],
)  # fmt: skip
def test_room_is_counted_in_whole_sequences_of_the_greatest_length(num_blocks, max_model_len, room):
    limits = replace(LIMITS, num_blocks=num_blocks, block_size=16, max_model_len=max_model_len)
    assert limits.room == room


def test_columns_of_a_good_plan():
    columns = parse_plan(PLAN, LIMITS)
    assert columns.num_rows == 2
    assert columns.positions.tolist() == [4, 0, 1, 2]
    assert columns.sampling is not None
    assert columns.sampling.seeds.tolist() == [1, 2**64 - 1]
    greedy = msgspec.structs.replace(PLAN, temperatures=b"", top_ks=b"", top_ps=b"", min_ps=b"", seeds=b"")
    assert parse_plan(greedy, LIMITS).sampling is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": ints()}, "plan has 0 rows"),
        ({"lanes": ints(0, 1, 2, 3, 4)}, "plan has 5 rows, this executor takes 1 to 4"),
        ({"lanes": ints(3, 4)}, "lanes has 4, allowed are 0 to 3"),
        ({"lanes": ints(3, 3)}, "same lane"),
        ({"lanes": b"abc"}, "not a multiple of 4"),
        ({"query_lens": ints(1)}, "query_lens has 1 entries for 2 rows"),
        ({"query_lens": ints(0, 4)}, "query_lens has 0"),
        ({"query_lens": ints(6, 3)}, "query_len is greater than its context_len"),
        ({"query_lens": ints(2**31 - 1, 2**31 - 1), "context_lens": ints(20, 20)}, "query_lens has 2147483647"),
        ({"context_lens": ints(21, 3)}, "context_lens has 21, allowed are 1 to 20"),
        ({"context_lens": ints(-5, 3)}, "context_lens has -5"),
        ({"token_ids": ints(-1, 7, 8)}, "token_ids has 3 entries, query_lens add up to 4"),
        ({"token_ids": ints(-1, 7, 8, 10)}, "token_ids has 10, allowed are -1 to 9"),
        ({"token_ids": ints(-1, 7, -1, 9)}, "-1 in a row of several tokens"),
        ({"slot_mapping": ints(24, 4, 5)}, "slot_mapping has 3 entries"),
        ({"slot_mapping": ints(24, 4, 5, 7)}, "slot_mapping does not follow"),
        ({"slot_mapping": ints(24, 4, 5, -2)}, "slot_mapping does not follow"),
        ({"block_counts": ints(1, 1)}, r"not ceil\(context_lens / 4\)"),
        ({"block_ids": ints(2, 6)}, "block_ids has 2 entries, block_counts add up to 3"),
        ({"block_ids": ints(2, 6, 8)}, "block_ids has 8, allowed are 0 to 7"),
        ({"block_ids": ints(2, -1, 1)}, "block_ids has -1"),
        ({"sample_rows": ints(0, 2)}, "sample_rows has 2"),
        ({"sample_rows": ints(1, 0)}, "strictly ascending"),
        ({"temperatures": floats(0.0)}, "temperatures has 1 entries for 2 samples"),
        ({"temperatures": floats(0.0, float("nan"))}, "temperatures has nan"),
        ({"top_ps": floats(1.5, 1.0)}, "top_ps has 1.5"),
        ({"min_ps": floats(-0.5, 1.0)}, "min_ps has -0.5"),
        ({"top_ks": ints(-1, 0)}, "top_ks has -1"),
        ({"seeds": b"1234"}, "not a multiple of 8"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(WireError, match=message):
        parse_plan(msgspec.structs.replace(PLAN, **change), LIMITS)


def test_a_token_beyond_the_budget_is_refused():
    count = LIMITS.max_batch_tokens + 1
    plan = m.Plan(
        epoch=1,
        step=0,
        lanes=ints(0, 1),
        query_lens=ints(1, 16),
        context_lens=ints(1, 16),
        token_ids=ints(*([1] * count)),
        slot_mapping=ints(*([-1] * count)),
        block_counts=ints(1, 4),
        block_ids=ints(0, 1, 2, 3, 4),
        sample_rows=ints(),
    )
    with pytest.raises(WireError, match="plan has 17 tokens, this executor takes 16"):
        parse_plan(plan, LIMITS)


@given(data=st.data())
@settings(max_examples=examples(400))
def test_no_random_column_gets_an_index_out_of_bounds(data):
    """Whatever is in the columns: a WireError, or arrays whose every index is inside the pool."""
    field = data.draw(st.sampled_from([name for name in m.Plan.__struct_fields__[2:] if name != "lane_starts"]))
    values = data.draw(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 10), max_size=6))
    plan = msgspec.structs.replace(PLAN, **{field: ints(*values)})
    try:
        columns = parse_plan(plan, LIMITS)
    except WireError:
        return
    assert ((columns.block_ids >= 0) & (columns.block_ids < LIMITS.num_blocks)).all()
    assert (columns.slot_mapping < LIMITS.num_blocks * LIMITS.block_size).all()
    assert (columns.token_ids < LIMITS.vocab_size).all()
    assert np.all(columns.sample_rows < columns.num_rows)
    assert np.all(columns.constrained < len(columns.sample_rows))
    assert len(columns.token_ids) == len(columns.slot_mapping) == columns.query_lens.sum()


def test_results():
    result = m.StepResult(epoch=1, step=3, token_ids=ints(4, 9), compute_us=1)
    assert parse_result(result, 2, 10).token_ids.tolist() == [4, 9]
    with pytest.raises(WireError, match="step 3 has 2 tokens, its plan samples 1"):
        parse_result(result, 1, 10)
    with pytest.raises(WireError, match="token_ids has 9, allowed are -4 to 8"):
        parse_result(result, 2, 9)
    whys = [m.NO_TOKEN, m.NO_NUMBERS, m.TOO_COMPLEX, m.LATE]
    none = msgspec.structs.replace(result, token_ids=ints(*whys))
    assert parse_result(none, 4, 10).token_ids.tolist() == whys
    with pytest.raises(WireError, match="token_ids has -5, allowed are -4 to 9"):
        parse_result(msgspec.structs.replace(result, token_ids=ints(4, -5)), 2, 10)
