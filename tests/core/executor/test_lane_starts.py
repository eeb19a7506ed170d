"""When a plan tells an executor of a sequence's constraints, how much it may tell, and rows that have no token."""

from array import array
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from common import messages as m
from common.errors import RequestRejected, WireError
from common.wire import Codec
from scheduler_svc.core.fleet.hello_check import MAX_LANES
from scheduler_svc.core.scheduling.plan_budget import MAX_STARTED_GRAMMARS
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.server.core_process import MAX_EXECUTOR_MESSAGE_BYTES
from tests.support.scheduling import Scheduling, limits, with_budget

PENALTY = m.Constraints(presence_penalty=0.5)
PROMPT = list(range(10))


def starts(plan: m.Plan | None) -> list[m.LaneStart]:
    assert plan is not None
    return list(plan.lane_starts)


def tokens(start: m.LaneStart) -> list[int]:
    return array("i", start.tokens).tolist()


def test_a_start_comes_with_the_first_sampled_row_and_only_with_it() -> None:
    run = Scheduling(limits(max_batch_tokens=8), window=1)
    run.add("a", PROMPT, constraints=PENALTY)
    assert starts(run.plan()) == [], "the first chunk of the prompt samples nothing"
    run.answer()
    plan = run.plan()
    (start,) = starts(plan)
    assert plan is not None
    assert (start.num_prompt, tokens(start), start.constraints) == (10, PROMPT, PENALTY)
    assert plan.constrained == array("i", [0]).tobytes()
    run.answer()
    plan = run.plan()
    assert plan is not None
    assert (starts(plan), plan.constrained) == ([], array("i", [0]).tobytes())
    run.finish()


def test_rows_that_ask_for_nothing_cost_nothing() -> None:
    run = Scheduling()
    run.add("a", PROMPT)
    run.finish()
    for plan in run.plans[1]:
        assert (plan.constrained, plan.lane_starts, plan.logprob_counts) == (b"", (), b"")


@pytest.mark.parametrize("move", ["preempted", "lost"])
def test_each_admission_starts_the_lane_anew_with_all_tokens(move: str) -> None:
    run = Scheduling(window=1)
    (sequence,) = run.add("a", PROMPT, constraints=PENALTY, max_tokens=9)
    for _ in range(4):
        run.step()
    if move == "preempted":
        run.scheduler.sequences.preempt(run.scheduler.executor(1), sequence)
    else:
        run.lose(1)
        run.join(limits())
    epoch = 1 if move == "preempted" else 2
    (start,) = starts(run.plan(epoch))
    assert (start.num_prompt, tokens(start)) == (10, PROMPT + run.outputs[sequence])
    run.finish()


def test_stop_tokens_go_along_where_they_are_needed() -> None:
    run = Scheduling()
    asked = {
        "penalty": PENALTY,
        "min_tokens": m.Constraints(min_tokens=2),
        "grammar": m.Constraints(presence_penalty=1.0, min_tokens=1),
    }
    for name, constraints in asked.items():
        run.add(name, PROMPT, constraints=constraints, stop_token_ids=(700, 701))
    told = [array("i", start.stop_token_ids).tolist() for start in starts(run.plan())]
    assert told == [[], [700, 701], [700, 701]]
    run.finish()


def test_a_plan_says_so_much_of_lanes_and_no_more() -> None:
    """Each list is more than half of what a plan may say: one sequence a plan, others beside it."""
    scheduler = with_budget(max_start_bytes=8000)
    num_ids = 8000 // 4 // 2 + 100
    allowed = np.arange(num_ids, dtype=np.int32).tobytes()
    run = Scheduling(limits(vocab_size=num_ids), window=1, scheduler_type=scheduler)
    for number in range(3):
        run.add(str(number), PROMPT, constraints=m.Constraints(allowed_token_ids=allowed), max_tokens=4)
        run.add(f"small {number}", PROMPT, max_tokens=4)
    run.finish()
    told = [len(plan.lane_starts) for plan in run.plans[1]]
    assert told[:3] == [1, 1, 1]
    assert sum(told) == 3


def test_a_plan_starts_few_grammars() -> None:
    """Those of one text count once: an executor compiles it once."""
    run = Scheduling(window=1, grammars="library")
    run.lose(1)
    epoch = run.join(limits(), grammars="library")
    for number in range(2 * MAX_STARTED_GRAMMARS + 1):
        for copy in range(2):
            grammar = m.Constraints(grammar=f"grammar {number}")
            run.add(f"{number}-{copy}", PROMPT[:3], constraints=grammar, max_tokens=4)
    run.finish()
    told = [{start.constraints.grammar for start in plan.lane_starts} for plan in run.plans[epoch]]
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
    run = Scheduling()
    with pytest.raises(RequestRejected):
        run.add("a", PROMPT, constraints=constraints)


# --- rows that have no token ---


def answer_without(run: Scheduling, *sequences: Sequence) -> None:
    """Answer the oldest plan in flight; these sequences' rows have no token."""
    inflight = run.scheduler.executor(1).inflight[0]
    result = run.executors[1].run(run.sent[1].popleft())
    ids = array("i", result.token_ids)
    for sequence in sequences:
        ids[inflight.sequences.index(sequence)] = -1
    output = run.scheduler.commit(msgspec.structs.replace(result, token_ids=ids.tobytes()))
    for sequence, token in zip(output.sequences, output.tokens, strict=True):
        run.outputs[sequence].append(token)
    assert output.logprobs is None or len(output.logprobs.counts) == len(output.sequences)
    run.end(output.ends)
    run.scheduler.check()


def assert_failed(run: Scheduling, sequence: Sequence, num_tokens: int) -> None:
    end = run.ends[sequence]
    assert (end.reason, end.code, sequence.state) == ("error", "no_token", State.FINISHED)
    assert len(run.outputs[sequence]) == sequence.num_output == num_tokens


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("logprobs", [0, 3])
def test_a_running_sequence_without_a_token_ends_alone(window: int, logprobs: int) -> None:
    run = Scheduling(window=window)
    (bad,) = run.add("bad", PROMPT, logprobs=logprobs, max_tokens=20)
    (good,) = run.add("good", PROMPT[::-1], logprobs=2 * logprobs, max_tokens=20)
    for _ in range(3):
        run.step()
    while run.plan() is not None:
        pass
    answer_without(run, bad)
    assert_failed(run, bad, 3)
    run.finish()
    assert run.outputs[good] == run.expected(good)
    assert len(good.logprobs) == 20 * 2 * logprobs


def test_a_first_token_that_is_none() -> None:
    run = Scheduling()
    (bad,) = run.add("bad", PROMPT)
    run.plan()
    answer_without(run, bad)
    assert_failed(run, bad, 0)
    run.finish()


def test_a_preempted_sequence_whose_token_in_flight_is_none() -> None:
    run = Scheduling()
    (bad,) = run.add("bad", PROMPT, max_tokens=20)
    run.step()
    run.plan()
    run.scheduler.sequences.preempt(run.scheduler.executor(1), bad)
    answer_without(run, bad)
    assert_failed(run, bad, 1)
    while run.sent[1]:
        run.answer()
    run.finish()


def test_a_completing_sequence_whose_last_token_is_none() -> None:
    run = Scheduling()
    (bad,) = run.add("bad", PROMPT, max_tokens=1)
    run.plan()
    assert bad.state is State.COMPLETING
    answer_without(run, bad)
    assert_failed(run, bad, 0)


# --- schedulers that have a fault: the executors notice ---


def moved(run: Scheduling) -> None:
    """Sequences with constraints are preempted, and lose their executor."""
    for number in range(3):
        run.add(str(number), PROMPT[: 4 + number], constraints=PENALTY, max_tokens=12, temperature=1.0, seed=number)
    for _ in range(4):
        run.step()
    executor = run.scheduler.executor(1)
    run.scheduler.sequences.preempt(executor, next(reversed(executor.running)))
    for _ in range(2):
        run.step()
    run.lose(1)
    run.join(limits())
    run.finish()


def forgets_to_start_again(start: m.LaneStart) -> m.LaneStart | None:
    return start if start.num_prompt == len(start.tokens) // 4 else None


def counts_output_as_prompt(start: m.LaneStart) -> m.LaneStart | None:
    return msgspec.structs.replace(start, num_prompt=len(start.tokens) // 4)


def starts_another_sequence(start: m.LaneStart) -> m.LaneStart | None:
    return msgspec.structs.replace(start, tokens=start.tokens[4:] + start.tokens[:4])


@pytest.mark.parametrize("fault", [forgets_to_start_again, counts_output_as_prompt, starts_another_sequence])
def test_a_wrong_start_is_noticed(fault: Callable[[m.LaneStart], m.LaneStart | None]) -> None:
    class Faulty(Scheduler):
        def plan(self, epoch: int) -> m.Plan | None:
            if (plan := super().plan(epoch)) is None:
                return None
            told = tuple(start for each in plan.lane_starts if (start := fault(each)) is not None)
            return msgspec.structs.replace(plan, lane_starts=told)

    moved(Scheduling())
    with pytest.raises((AssertionError, WireError)):
        moved(Scheduling(scheduler_type=Faulty))
