"""What a plan asks of prompts' log-probabilities, and the answer: each checked against the other."""

from array import array
from typing import Any

import msgspec
import numpy as np
import pytest

from common import messages as m
from common.errors import WireError
from common.plan import parse_plan
from common.prompt_targets import PromptTargets
from common.step_result import parse_result
from tests.common.good_plan import LIMITS, PLAN, floats, ints

ASKING = msgspec.structs.replace(
    PLAN,
    prompt_logprob_tokens=ints(1, 2, 3),
    prompt_logprob_targets=ints(8, 9, 0),
    prompt_logprob_counts=ints(1, 3, 2),
)
TARGETS = PromptTargets(np.array([1, 2, 3]), np.array([8, 9, 0]), np.array([1, 3, 2]))
RESULT = m.StepResult(
    epoch=1,
    step=0,
    token_ids=ints(4, 5),
    compute_us=1,
    prompt_logprob_ids=ints(-4, -1, 1, 2, -10, 7),
    prompt_logprobs=floats(-1.0, -2.0, -0.5, -0.75, float("-inf"), 0.0),
)


def test_targets_of_a_good_plan() -> None:
    targets = parse_plan(ASKING, LIMITS).prompt_targets
    assert targets is not None
    assert targets.tokens.tolist() == [1, 2, 3]
    assert targets.targets.tolist() == [8, 9, 0]
    assert targets.counts.tolist() == [1, 3, 2]
    assert targets.num_top == 2
    assert parse_plan(PLAN, LIMITS).prompt_targets is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_logprob_targets": ints(8, 9)}, "have 3, 2 and 3 entries"),
        ({"prompt_logprob_tokens": b""}, "have 0, 3 and 3 entries"),
        ({"prompt_logprob_tokens": ints(1, 2, 4)}, "prompt_logprob_tokens has 4"),
        ({"prompt_logprob_tokens": ints(-1, 2, 3)}, "prompt_logprob_tokens has -1"),
        ({"prompt_logprob_tokens": ints(1, 1, 3)}, "not strictly ascending"),
        ({"prompt_logprob_tokens": ints(0, 2, 3)}, "a token that is no prompt's"),
        ({"prompt_logprob_targets": ints(8, 9, 10)}, "prompt_logprob_targets has 10"),
        ({"prompt_logprob_targets": ints(8, -1, 0)}, "prompt_logprob_targets has -1"),
        ({"prompt_logprob_counts": ints(1, 0, 2)}, "prompt_logprob_counts has 0"),
        ({"prompt_logprob_counts": ints(1, 22, 2)}, "prompt_logprob_counts has 22"),
    ],
)
def test_plans_that_are_refused(change: dict[str, bytes], message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse_plan(msgspec.structs.replace(ASKING, **change), LIMITS)


def test_a_plan_asks_for_no_more_than_a_result_may_hold() -> None:
    most = m.MAX_PLAN_PROMPT_LOGPROBS // m.MAX_LOGPROBS
    token_ids = np.zeros(most + 1, np.int32)

    def asking(count: int) -> m.Plan:
        tokens = np.arange(count, dtype=np.int32).tobytes()
        counts = array("i", [1] * (count - 1) + [m.MAX_LOGPROBS]).tobytes()
        return msgspec.structs.replace(
            ASKING,
            prompt_logprob_tokens=tokens,
            prompt_logprob_targets=bytes(4 * count),
            prompt_logprob_counts=counts,
        )

    assert PromptTargets.of_plan(asking(most), token_ids, 10) is not None
    with pytest.raises(WireError, match="log-probabilities of prompts, the limit is 131072"):
        PromptTargets.of_plan(asking(most + 1), token_ids, 10)


def test_results() -> None:
    columns = parse_result(RESULT, 2, 10, prompt_targets=TARGETS)
    assert columns.prompt_logprob_ids.tolist() == [-4, -1, 1, 2, -10, 7]
    assert columns.prompt_logprobs.tolist() == [-1.0, -2.0, -0.5, -0.75, float("-inf"), 0.0]
    assert columns.message(1, 0, 1) == RESULT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_logprob_ids": ints(-4, -1, 1, 2, -10)}, "6 prompt_logprobs of 5 tokens, its plan asks for 6"),
        ({"prompt_logprobs": b""}, "0 prompt_logprobs of 6 tokens"),
        ({"prompt_logprob_ids": ints(-4, -1, 1, 10, -10, 7)}, "prompt_logprob_ids has 10"),
        ({"prompt_logprob_ids": ints(-4, -1, 1, 2, -10, -1)}, "prompt_logprob_ids has -1"),
        ({"prompt_logprob_ids": ints(-4, -1, 1, 2, -11, 7)}, "ranks of prompt tokens has 11"),
        ({"prompt_logprob_ids": ints(-4, 9, 1, 2, -10, 7)}, "ranks of prompt tokens has -9"),
        ({"prompt_logprobs": floats(0, 0, 0, float("nan"), 0, 0)}, "prompt_logprobs has nan"),
        ({"logprob_ids": ints(1), "logprobs": floats(0)}, "its plan asks for 0"),
    ],
)
def test_results_that_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse_result(msgspec.structs.replace(RESULT, **change), 2, 10, prompt_targets=TARGETS)


def test_what_nobody_asked_for_is_refused() -> None:
    with pytest.raises(WireError, match="its plan asks for 0"):
        parse_result(RESULT, 2, 10)
