"""When a plan tells an executor of a sequence's constraints, how much it may tell, and rows that have no token."""

from array import array
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from common import messages as m
from common.errors import RequestRejected, WireError
from common.wire import Codec
from scheduler_svc.core.executor import executor_state
from scheduler_svc.core.executor.plan_builder import PromptRow, lane_start
from scheduler_svc.core.fleet.hello_check import MAX_LANES
from scheduler_svc.core.scheduling import plan_budget
from scheduler_svc.core.scheduling.plan_budget import MAX_STARTED_GRAMMARS
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.server.core_process import MAX_EXECUTOR_MESSAGE_BYTES
from tests.support.rig import Rig, limits

PENALTY = m.Constraints(presence_penalty=0.5)
PROMPT = list(range(10))


def starts(plan: m.Plan | None) -> list[m.LaneStart]:
    assert plan is not None
    return list(plan.lane_starts)


def tokens(start: m.LaneStart) -> list[int]:
    return array("i", start.tokens).tolist()


def test_a_start_comes_with_the_first_sampled_row_and_only_with_it() -> None:
    rig = Rig(limits(max_batch_tokens=8), window=1)
    rig.add("a", PROMPT, constraints=PENALTY)
    assert starts(rig.plan()) == [], "the first chunk of the prompt samples nothing"
    rig.answer()
    plan = rig.plan()
    (start,) = starts(plan)
    assert plan is not None
    assert (start.num_prompt, tokens(start), start.constraints) == (10, PROMPT, PENALTY)
    assert plan.constrained == array("i", [0]).tobytes()
    rig.answer()
    plan = rig.plan()
    assert plan is not None
    assert (starts(plan), plan.constrained) == ([], array("i", [0]).tobytes())
    rig.finish()


def test_rows_that_ask_for_nothing_cost_nothing() -> None:
    rig = Rig()
    rig.add("a", PROMPT)
    rig.finish()
    for plan in rig.plans[1]:
        assert (plan.constrained, plan.lane_starts, plan.logprob_counts) == (b"", (), b"")


@pytest.mark.parametrize("move", ["preempted", "lost"])
def test_each_admission_starts_the_lane_anew_with_all_tokens(move: str) -> None:
    rig = Rig(window=1)
    (sequence,) = rig.add("a", PROMPT, constraints=PENALTY, max_tokens=9)
    for _ in range(4):
        rig.step()
    if move == "preempted":
        rig.scheduler.sequences.preempt(rig.scheduler.executor(1), sequence)
    else:
        rig.lose(1)
        rig.join(limits())
    epoch = 1 if move == "preempted" else 2
    (start,) = starts(rig.plan(epoch))
    assert (start.num_prompt, tokens(start)) == (10, PROMPT + rig.outputs[sequence])
    rig.finish()


def test_stop_tokens_go_along_where_they_are_needed() -> None:
    rig = Rig()
    asked = {
        "penalty": PENALTY,
        "min_tokens": m.Constraints(min_tokens=2),
        "grammar": m.Constraints(presence_penalty=1.0, min_tokens=1),
    }
    for name, constraints in asked.items():
        rig.add(name, PROMPT, constraints=constraints, stop_token_ids=(700, 701))
    told = [array("i", start.stop_token_ids).tolist() for start in starts(rig.plan())]
    assert told == [[], [700, 701], [700, 701]]
    rig.finish()


def test_a_plan_says_so_much_of_lanes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each list is more than half of what a plan may say: one sequence a plan, others beside it."""
    monkeypatch.setattr(plan_budget, "MAX_START_BYTES", 8000)
    num_ids = 8000 // 4 // 2 + 100
    allowed = np.arange(num_ids, dtype=np.int32).tobytes()
    rig = Rig(limits(vocab_size=num_ids), window=1)
    for number in range(3):
        rig.add(str(number), PROMPT, constraints=m.Constraints(allowed_token_ids=allowed), max_tokens=4)
        rig.add(f"small {number}", PROMPT, max_tokens=4)
    rig.finish()
    told = [len(plan.lane_starts) for plan in rig.plans[1]]
    assert told[:3] == [1, 1, 1]
    assert sum(told) == 3


def test_a_plan_starts_few_grammars() -> None:
    """Those of one text count once: an executor compiles it once."""
    rig = Rig(window=1, grammars="library")
    rig.lose(1)
    epoch = rig.join(limits(), grammars="library")
    for number in range(2 * MAX_STARTED_GRAMMARS + 1):
        for copy in range(2):
            grammar = m.Constraints(grammar=f"grammar {number}")
            rig.add(f"{number}-{copy}", PROMPT[:3], constraints=grammar, max_tokens=4)
    rig.finish()
    told = [{start.constraints.grammar for start in plan.lane_starts} for plan in rig.plans[epoch]]
    assert [len(grammars) for grammars in told if grammars] == [MAX_STARTED_GRAMMARS, MAX_STARTED_GRAMMARS, 1]


def test_the_longest_answer_fits_a_message() -> None:
    count = MAX_LANES * m.MAX_LOGPROBS
    result = m.StepResult(
        epoch=2**53,
        step=2**53,
        token_ids=bytes(4 * MAX_LANES),
        compute_us=2**31 - 1,
        logprob_ids=bytes(4 * count),
        logprobs=bytes(4 * count),
        prompt_logprob_ids=bytes(4 * m.MAX_PLAN_PROMPT_LOGPROBS),
        prompt_logprobs=bytes(4 * m.MAX_PLAN_PROMPT_LOGPROBS),
        pooled=bytes(4 * m.MAX_PLAN_POOLED_FLOATS),
    )
    frames = Codec[m.StepResult](m.StepResult).encode(result)
    assert sum(map(len, frames)) <= MAX_EXECUTOR_MESSAGE_BYTES < sum(map(len, frames)) + 2**12, "and no larger one"


@pytest.mark.parametrize(
    "constraints",
    [
        m.Constraints(bad_words=(b"123",)),
        m.Constraints(bias_token_ids=bytes(4)),
        m.Constraints(allowed_token_ids=array("i", [1000]).tobytes()),
    ],
    ids=["not whole ids", "no biases", "beyond the vocabulary"],
)
def test_malformed_constraints_are_refused_at_once(constraints: m.Constraints) -> None:
    rig = Rig()
    with pytest.raises(RequestRejected):
        rig.add("a", PROMPT, constraints=constraints)


# --- rows that have no token ---


def answer_without(rig: Rig, *sequences: Sequence) -> None:
    """Answer the oldest plan in flight; these sequences' rows have no token."""
    inflight = rig.scheduler.executor(1).inflight[0]
    result = rig.executors[1].run(rig.sent[1].popleft())
    ids = array("i", result.token_ids)
    for sequence in sequences:
        ids[inflight.sequences.index(sequence)] = -1
    output = rig.scheduler.commit(msgspec.structs.replace(result, token_ids=ids.tobytes()))
    for sequence, token in zip(output.sequences, output.tokens, strict=True):
        rig.outputs[sequence].append(token)
    assert output.logprobs is None or len(output.logprobs.counts) == len(output.sequences)
    rig.end(output.ends)
    rig.scheduler.check()


def assert_failed(rig: Rig, sequence: Sequence, num_tokens: int) -> None:
    end = rig.ends[sequence]
    assert (end.reason, end.code, sequence.state) == ("error", "no_token", State.FINISHED)
    assert len(rig.outputs[sequence]) == sequence.num_output == num_tokens


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("logprobs", [0, 3])
def test_a_running_sequence_without_a_token_ends_alone(window: int, logprobs: int) -> None:
    rig = Rig(window=window)
    (bad,) = rig.add("bad", PROMPT, logprobs=logprobs, max_tokens=20)
    (good,) = rig.add("good", PROMPT[::-1], logprobs=2 * logprobs, max_tokens=20)
    for _ in range(3):
        rig.step()
    while rig.plan() is not None:
        pass
    answer_without(rig, bad)
    assert_failed(rig, bad, 3)
    rig.finish()
    assert rig.outputs[good] == rig.expected(good)
    assert len(good.logprobs) == 20 * 2 * logprobs


def test_a_first_token_that_is_none() -> None:
    rig = Rig()
    (bad,) = rig.add("bad", PROMPT)
    rig.plan()
    answer_without(rig, bad)
    assert_failed(rig, bad, 0)
    rig.finish()


def test_a_preempted_sequence_whose_token_in_flight_is_none() -> None:
    rig = Rig()
    (bad,) = rig.add("bad", PROMPT, max_tokens=20)
    rig.step()
    rig.plan()
    rig.scheduler.sequences.preempt(rig.scheduler.executor(1), bad)
    answer_without(rig, bad)
    assert_failed(rig, bad, 1)
    while rig.sent[1]:
        rig.answer()
    rig.finish()


def test_a_completing_sequence_whose_last_token_is_none() -> None:
    rig = Rig()
    (bad,) = rig.add("bad", PROMPT, max_tokens=1)
    rig.plan()
    assert bad.state is State.COMPLETING
    answer_without(rig, bad)
    assert_failed(rig, bad, 0)


# --- schedulers that have a fault: the executors notice ---


def moved(rig: Rig) -> None:
    """Sequences with constraints are preempted, and lose their executor."""
    for number in range(3):
        rig.add(str(number), PROMPT[: 4 + number], constraints=PENALTY, max_tokens=12, temperature=1.0, seed=number)
    for _ in range(4):
        rig.step()
    executor = rig.scheduler.executor(1)
    rig.scheduler.sequences.preempt(executor, next(reversed(executor.running)))
    for _ in range(2):
        rig.step()
    rig.lose(1)
    rig.join(limits())
    rig.finish()


def forgets_to_start_again(row: PromptRow) -> m.LaneStart | None:
    return None if row.sequence.num_output else lane_start(row)


def counts_output_as_prompt(row: PromptRow) -> m.LaneStart | None:
    start = lane_start(row)
    assert start is not None
    return msgspec.structs.replace(start, num_prompt=len(start.tokens) // 4)


def starts_another_sequence(row: PromptRow) -> m.LaneStart | None:
    start = lane_start(row)
    assert start is not None
    return msgspec.structs.replace(start, tokens=start.tokens[4:] + start.tokens[:4])


@pytest.mark.parametrize("fault", [forgets_to_start_again, counts_output_as_prompt, starts_another_sequence])
def test_a_wrong_start_is_noticed(
    fault: Callable[[PromptRow], m.LaneStart | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved(Rig())
    monkeypatch.setattr(executor_state, "lane_start", fault)
    with pytest.raises((AssertionError, WireError)):
        moved(Rig())
