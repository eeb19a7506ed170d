"""Rows whose masks were late: their sequences go on with the tokens that they would have had, others at once."""

from array import array
from collections.abc import Callable

import msgspec
import pytest

from common import messages as m
from common.wire import int32_array
from scheduler_svc.core.scheduling.sequences import MAX_LATE_PAUSE
from scheduler_svc.core.sequence import Sequence, State
from tests.support.scheduling import Scheduling, limits
from tests.support.service import Service

ASKED = m.Constraints(presence_penalty=1.0)  # to the oracle a lane is one with constraints, whatever they are
PROMPT = [3] * 10

Decides = Callable[[int, Sequence], bool]


class Late(Scheduling):
    """Masks of some sequences are late on some executors."""

    def __init__(self, decides: Decides, *executors, **config):
        super().__init__(*executors, **config)
        self.decides = decides

    def answer(self, epoch=1):
        run, inflight = self.executors[epoch].run, self.scheduler.executor(epoch).inflight[0]
        late = [
            lane
            for lane, sequence in zip(inflight.lanes.tolist(), inflight.sequences, strict=True)
            if self.decides(epoch, sequence)
        ]
        self.executors[epoch].run = lambda plan: run(plan, late)
        super().answer(epoch)
        self.executors[epoch].run = run


def num_rows(run: Scheduling, sequence: Sequence, epoch: int = 1) -> int:
    """Rows of a sequence that is the only one with constraints, in all plans so far."""
    return sum(len(int32_array("constrained", plan.constrained)) for plan in run.plans[epoch])


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 9])
@pytest.mark.parametrize("window", [1, 2, 8])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("times", [1, 3])
def test_it_goes_on_with_the_tokens_that_it_would_have_had(times, at, window, max_tokens):
    """Also if it holds no lane any more, and none of what was computed behind the late row counts."""
    left = [times]

    def decides(epoch, sequence):
        is_late = sequence.request_id == "slow" and len(run.outputs[sequence]) == at and left[0] > 0
        is_late = is_late and not run.executors[epoch].late_lanes
        left[0] -= is_late
        return is_late

    run = Late(decides, limits(), window=window)
    (slow,) = run.add("slow", PROMPT, max_tokens=max_tokens, constraints=ASKED)
    run.add("other", [4] * 5, max_tokens=40)
    run.finish()
    assert {end.reason for end in run.ends.values()} == {"length"}
    assert len(run.outputs[slow]) == max_tokens
    assert (run.scheduler.stats.late_rows == 0) == (at >= max_tokens)
    assert (run.scheduler.stats.numberless, run.scheduler.stats.strikes, slow.strikes) == (0, 0, 0)


def test_others_have_a_token_in_every_plan_and_are_admitted_meanwhile():
    run = Late(lambda epoch, sequence: sequence.request_id == "slow", limits(), window=2)
    (slow,) = run.add("slow", PROMPT, constraints=ASKED)
    (old,) = run.add("old", [4] * 5, max_tokens=200)
    for step in range(100):
        run.step()
        assert len(run.outputs[old]) == step + 1
        if step == 50:
            (new,) = run.add("new", [5] * 5, max_tokens=30)
    assert run.ends[new].reason == "length"
    assert (run.outputs[slow], slow.state in (State.WAITING, State.RUNNING)) == ([], True)
    # Pauses double up to their limit: 2, 4, 8, 16, 32 and 32 plans, and each try has as many rows as fit the window.
    assert 5 <= num_rows(run, slow) <= 2 * 8
    run.decides = lambda epoch, sequence: False
    run.finish()
    assert len(run.outputs[slow]) == 8


def test_a_sequence_alone_does_not_pause():
    run = Late(lambda epoch, sequence: len(run.plans[1]) < 40, limits(), window=1)
    run.add("slow", PROMPT, constraints=ASKED)
    assert run.finish(max_steps=50) <= 50


def test_pauses_begin_anew_with_each_token():
    run = Late(lambda epoch, sequence: sequence.request_id == "slow", limits(), window=1)
    (slow,) = run.add("slow", PROMPT, constraints=ASKED)
    run.add("other", [4] * 5, max_tokens=240)
    while slow.lateness is None or slow.lateness.count < 7:
        run.step()
    assert slow.lateness.until_step <= run.scheduler.executor(1).next_step + MAX_LATE_PAUSE
    run.decides = lambda epoch, sequence: False
    while not run.outputs[slow]:
        run.step()
    run.decides = lambda epoch, sequence: sequence is slow
    while slow.lateness.num_tokens == len(PROMPT):
        run.step()
    assert slow.lateness.count == 1


def test_its_prefix_is_in_the_cache_when_it_comes_back():
    """A try costs a row of what does not fill a block, and no computed prompt."""
    run = Late(lambda epoch, sequence: True, limits(block_size=4), window=1)
    run.add("slow", [3] * 41, constraints=ASKED)
    for _ in range(10):
        run.step()
    assert [len(plan.token_ids) // 4 for plan in run.plans[1]] == [41, *[1] * 9]


@pytest.mark.parametrize("ends", ["cancelled", "lost"])
def test_a_late_row_may_be_the_last_that_is_heard_of_its_sequence(ends):
    run = Late(lambda epoch, sequence: epoch == 1, limits(), window=2)
    (slow,) = run.add("slow", PROMPT, constraints=ASKED)
    run.plan(1)
    run.plan(1)
    run.answer(1)
    if ends == "cancelled":
        run.end(run.scheduler.cancel([slow]))
        run.answer(1)
    else:
        run.lose(1)
        run.join(limits())
    run.finish()
    assert run.ends[slow].reason == ("cancelled" if ends == "cancelled" else "length")


def service_with(token: int) -> Service:
    """A service whose executor says this in place of the tokens of its first answer."""
    service = Service(step_s=0.01)
    service.join("one")
    executor = service.executors["one"]
    run = executor.run

    def without(plan):
        executor.run = run
        result = run(plan, late=int32_array("lanes", plan.lanes).tolist() if token == m.LATE else ())
        tokens = array("i", [token] * (len(result.token_ids) // 4))
        return msgspec.structs.replace(result, token_ids=tokens.tobytes())

    executor.run = without
    return service


def test_the_operator_hears_of_late_rows():
    service = service_with(m.LATE)
    service.submit("a", constraints=ASKED)
    for _ in range(30):
        service.turn()
        service.wait(0.1)
    assert [*service.endings.values()] == ["length"]
    assert service.metric("baton_rows_late_total") == 1
    (line,) = service.events("a grammar's mask was late")
    assert (line.facts["request"], line.facts["executor"]) == ("a", "one")
    assert [member.hello.executor for member in service.core.fleet] == ["one"]


def test_a_grammar_that_passes_the_limits_ends_its_sequence_with_an_error_that_says_so():
    run = Scheduling(limits())
    (sequence,) = run.add("a", PROMPT, constraints=ASKED)
    (other,) = run.add("b", [4] * 5)
    compute = run.executors[1].run

    def complex_at_once(plan):
        result = compute(plan)
        tokens = array("i", result.token_ids)
        for row in int32_array("constrained", plan.constrained).tolist():
            tokens[row] = m.TOO_COMPLEX
        return msgspec.structs.replace(result, token_ids=tokens.tobytes())

    run.executors[1].run = complex_at_once
    run.finish()
    assert (run.ends[sequence].reason, run.ends[sequence].code) == ("error", "grammar_too_complex")
    assert "too complex" in run.ends[sequence].error
    assert run.ends[other].reason == "length"
