"""Constraints, starts of lanes and log-probabilities on the wire: what is taken, and what is refused."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from common import messages as m
from common.constraints import constraint_arrays
from common.errors import WireError
from common.plan import parse_plan
from common.step_result import parse_result
from tests.common.good_plan import LIMITS, floats, ints
from tests.common.good_plan import PLAN as UNCONSTRAINED
from tests.support.effort import examples

CONSTRAINTS = m.Constraints(
    frequency_penalty=0.5,
    bias_token_ids=ints(4, 2),
    biases=floats(1.5, -100.0),
    bad_words=(ints(3), ints(1, 2)),
    allowed_token_ids=ints(1, 2, 3, 4),
)
START = m.LaneStart(lane=0, num_prompt=2, tokens=ints(7, 8, 9), constraints=CONSTRAINTS)
#: Row 0 is unconstrained and decodes; row 1 is sampled for the first time since it was admitted.
PLAN = msgspec.structs.replace(
    UNCONSTRAINED, epoch=6, constrained=ints(1), lane_starts=(START,), logprob_counts=ints(0, 3)
)


def with_start(**change: Any) -> m.Plan:
    return msgspec.structs.replace(PLAN, lane_starts=(msgspec.structs.replace(START, **change),))


def test_columns_of_a_good_plan() -> None:
    columns = parse_plan(PLAN, LIMITS)
    assert (columns.epoch, columns.constrained.tolist(), columns.logprob_counts.tolist()) == (6, [1], [0, 3])
    (start,) = columns.lane_starts
    assert start.tokens.tolist() == [7, 8, 9]
    assert start.arrays.biases.tolist() == [1.5, -100.0]
    assert [word.tolist() for word in start.arrays.bad_words] == [[3], [1, 2]]
    assert start.arrays.largest_token == 4


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (msgspec.structs.replace(PLAN, constrained=ints(2)), "constrained has 2"),
        (msgspec.structs.replace(PLAN, constrained=ints(1, 1)), "not strictly ascending"),
        (msgspec.structs.replace(PLAN, constrained=b""), "lane 0 is started with 3 tokens; the context .* None"),
        (msgspec.structs.replace(PLAN, lane_starts=(START, START)), "started twice"),
        (msgspec.structs.replace(PLAN, logprob_counts=ints(1)), "logprob_counts has 1 entries for 2 samples"),
        (msgspec.structs.replace(PLAN, logprob_counts=ints(0, 22)), "logprob_counts has 22, allowed are 0 to 21"),
        (with_start(lane=3), "lane 3 is started with 3 tokens"),
        (with_start(tokens=ints(7, 8)), "lane 0 is started with 2 tokens; the context .* 3"),
        (with_start(tokens=ints(7, 8, 10)), "tokens has 10"),
        (with_start(num_prompt=4), "lane 0 has 4 prompt tokens of 3"),
        (with_start(num_prompt=0), "lane 0 has 0 prompt tokens of 3"),
        (with_start(constraints=m.Constraints(allowed_token_ids=ints(10))), "constraints name token 10"),
        (with_start(constraints=m.Constraints(biases=floats(1.0))), "1 biases for 0 tokens"),
    ],
)
def test_what_is_refused(plan: m.Plan, message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse_plan(plan, LIMITS)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (m.Constraints(bias_token_ids=ints(1, 1), biases=floats(0, 0)), "stands twice in bias_token_ids"),
        (m.Constraints(bias_token_ids=ints(1), biases=floats(101)), "not between -100 and 100"),
        (m.Constraints(bias_token_ids=ints(1), biases=floats(float("nan"))), "not between"),
        (m.Constraints(bias_token_ids=ints(-1), biases=floats(0)), "token id -1"),
        (m.Constraints(bias_token_ids=ints(*range(301)), biases=floats(*[0.0] * 301)), "301 biases, the limit is 300"),
        (m.Constraints(bad_words=(b"",)), "a bad word has 0 tokens"),
        (m.Constraints(bad_words=(bytes(4 * 65),)), "a bad word has 65 tokens, allowed are 1 to 64"),
        (m.Constraints(allowed_token_ids=b"123"), "not a multiple of 4"),
        (m.Constraints(allowed_token_ids=ints(3, 3)), "stands twice in allowed_token_ids"),
    ],
)
def test_what_contradicts_itself(constraints: m.Constraints, message: str) -> None:
    with pytest.raises(WireError, match=message):
        constraint_arrays(constraints)


def test_three_hundred_biases_are_taken() -> None:
    arrays = constraint_arrays(m.Constraints(bias_token_ids=ints(*range(300)), biases=floats(*[0.0] * 300)))
    assert arrays.largest_token == 299


def test_a_request_without_lists_names_no_token() -> None:
    assert constraint_arrays(m.Constraints(presence_penalty=1.0)).largest_token == -1


RESULT = m.StepResult(
    epoch=6,
    step=0,
    token_ids=ints(4, m.NO_TOKEN, 9),
    compute_us=1,
    logprob_ids=ints(0, 9, 1, 2),
    logprobs=floats(float("nan"), -0.5, -1.0, float("-inf")),
)


@pytest.mark.parametrize("none", [m.NO_TOKEN, m.NO_NUMBERS, m.TOO_COMPLEX, m.LATE])
def test_results_with_log_probabilities(none: int) -> None:
    counts, result = np.array([0, 1, 3], np.int32), msgspec.structs.replace(RESULT, token_ids=ints(4, none, 9))
    columns = parse_result(result, 3, 10, counts)
    assert columns.token_ids.tolist() == [4, none, 9]
    assert columns.logprob_ids.tolist() == [0, 9, 1, 2]
    assert columns.logprobs[1:].tolist() == [-0.5, -1.0, float("-inf")]
    assert columns.message(6, 0, 1) == result


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprob_ids": ints(0, 9, 1)}, "4 logprobs of 3 tokens, its plan asks for 4"),
        ({"logprobs": b""}, "0 logprobs of 4 tokens"),
        ({"logprobs": floats(0.0, float("nan"), 0.0, 0.0)}, "logprobs has nan"),
        ({"logprobs": floats(0.0, 0.0, 2.0, 0.0)}, "logprobs has 2"),
        ({"logprob_ids": ints(0, 9, 1, 10)}, "logprob_ids has 10"),
        ({"logprob_ids": ints(0, 8, 1, 2)}, "not that of its token"),
    ],
)
def test_results_that_are_refused(change: dict[str, bytes], message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse_result(msgspec.structs.replace(RESULT, **change), 3, 10, np.array([0, 1, 3], np.int32))


def test_log_probabilities_that_nobody_asked_for_are_refused() -> None:
    with pytest.raises(WireError, match="its plan asks for 0"):
        parse_result(RESULT, 3, 10)


@given(
    words=st.lists(st.binary(max_size=12), max_size=3),
    ids=st.lists(st.integers(-2, 12), max_size=4),
    biases=st.lists(st.floats(width=32), max_size=4),
    tokens=st.lists(st.integers(-2, 12), max_size=4),
)
@settings(max_examples=examples(300))
def test_what_is_taken_has_only_tokens_of_the_vocabulary(
    words: list[bytes], ids: list[int], biases: list[float], tokens: list[int]
) -> None:
    constraints = m.Constraints(
        bias_token_ids=ints(*ids), biases=floats(*biases), bad_words=tuple(words), allowed_token_ids=ints(*ids)
    )
    try:
        columns = parse_plan(with_start(constraints=constraints, tokens=ints(*tokens)), LIMITS)
    except WireError:
        return
    (start,) = columns.lane_starts
    lists = (start.tokens, start.arrays.bias_token_ids, start.arrays.allowed_token_ids, *start.arrays.bad_words)
    assert all(((one >= 0) & (one < LIMITS.vocab_size)).all() for one in lists)
    assert np.isfinite(start.arrays.biases).all()
