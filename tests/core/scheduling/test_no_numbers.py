"""Rows whose scores are no numbers: the executor, its prefix cache or the sequence may be why, and only that pays."""

from array import array
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from common import messages as m
from common.plan import parse_plan
from scheduler_svc.core.fleet.fleet import DOUBTED_FOR_S
from scheduler_svc.core.sequence import Sequence
from tests.support.chores import done
from tests.support.oracle import OracleExecutor
from tests.support.scheduling import Scheduling, limits
from tests.support.service import Service

SYSTEM = [9] * 40

Decides = Callable[[int, Sequence], bool]


class Poisoned(OracleExecutor):
    """Its memory may hold what is no number: a row that reads it brings none."""

    glitches = False

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.bad: set[int] = set()  # slots

    def run(self, plan):
        columns = parse_plan(plan, self.limits)
        written = [slot for slot in columns.slot_mapping.tolist() if slot >= 0]
        self.bad = self.bad | set(written[:4]) if self.glitches else self.bad - set(written)
        self.glitches = False
        result = super().run(plan)
        tokens, tables, end, size = array("i", result.token_ids), [], 0, self.limits.block_size
        for count in columns.block_counts.tolist():
            tables.append(columns.block_ids[end : end + count].tolist())
            end += count
        for i, row in enumerate(columns.sample_rows.tolist()):
            positions = range(int(columns.context_lens[row]))
            if self.bad & {tables[row][p // size] * size + p % size for p in positions}:
                tokens[i] = m.NO_NUMBERS
        return msgspec.structs.replace(result, token_ids=tokens.tobytes())


class Numberless(Scheduling):
    """Rows of some sequences have no numbers on some executors."""

    def __init__(self, decides: Decides, *executors, **config):
        super().__init__(*executors, **config)
        self._decides = decides

    def answer(self, epoch=1):
        run, inflight = self.executors[epoch].run, self.scheduler.executor(epoch).inflight[0]

        def without(plan):
            result = run(plan)
            tokens = array("i", result.token_ids)
            for i, sequence in enumerate(inflight.sequences):
                if self._decides(epoch, sequence):
                    tokens[i] = m.NO_NUMBERS
            return msgspec.structs.replace(result, token_ids=tokens.tobytes())

        self.executors[epoch].run = without
        super().answer(epoch)
        self.executors[epoch].run = run


def test_a_glitch_in_a_shared_prefix_costs_no_request():
    run = Scheduling(limits(num_blocks=256, max_batch_tokens=256))
    run.executors[1] = Poisoned(run.executors[1].limits)
    run.executors[1].glitches = True
    for wave in range(3):
        for i in range(10):
            run.add(f"wave {wave}, {i}", SYSTEM + [i] * 6, max_tokens=5)
        run.finish()
    assert Counter(end.reason for end in run.ends.values()) == {"length": 30}
    assert run.scheduler.stats.numberless == 10, "those that were there when it happened"
    assert run.scheduler.stats.cached_prompt_tokens > 0, "what was computed since is hit"


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 9])
@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_it_goes_on_elsewhere_with_the_tokens_that_it_would_have_had(at, window, max_tokens):
    """Also if it holds no lane any more, and drops what was computed with what is no token."""

    def decides(epoch, sequence):
        return epoch == 1 and len(run.outputs[sequence]) == at

    run = Numberless(decides, limits(), limits(), window=window)
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=max_tokens)
    run.finish()
    assert run.ends[sequence].reason == "length"
    expected = [(1, "a")] if at < max_tokens else []
    assert run.convictions == expected
    assert all(executor.num_doubts == 0 for executor in run.scheduler.executors)


def test_a_request_that_no_executor_can_compute_ends_and_harms_nobody():
    run = Numberless(lambda epoch, sequence: sequence.request_id == "bad", limits(num_blocks=128), limits())
    run.add("good", SYSTEM, max_tokens=3)
    run.finish()
    (bad,) = run.add("bad", [*SYSTEM, 5], max_tokens=3)
    while run.step():
        pass
    run.add("good too", [*SYSTEM, 6], max_tokens=3)
    while run.step():
        pass
    assert (run.ends.pop(bad).code, run.outputs.pop(bad)) == ("internal_error", [])
    run.finish()
    assert run.convictions == []
    assert run.scheduler.stats.cached_prompt_tokens >= 2 * len(SYSTEM) - 4, "its prefix stays in the cache"


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_doubt_ends_with_its_sequence_or_its_executor(is_cancelled):
    run = Numberless(lambda epoch, sequence: epoch == 1, limits(), limits())
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=9)
    run.plan(1)
    run.answer(1)
    assert run.scheduler.executor(1).is_doubtful
    if is_cancelled:
        run.end(run.scheduler.cancel([sequence]))
        assert not run.scheduler.executor(1).is_doubtful
    else:
        run.lose(1)
    while run.step():
        pass
    assert not run.scheduler.sequences.in_doubt


def with_broken_executor(*others):
    """A service with an executor that computes no numbers, and with these."""
    service = Service(step_s=0.01)
    for name in ("broken", *others):
        service.join(name)
    run = service.executors["broken"].run

    def without(plan):
        result = run(plan)
        tokens = np.full(len(result.token_ids) // 4, m.NO_NUMBERS, np.int32)
        return msgspec.structs.replace(result, token_ids=tokens.tobytes())

    service.executors["broken"].run = without
    return service


@pytest.mark.parametrize("ends", ["request", "executor"])
def test_what_is_in_doubt_may_end_before_the_next_plan(ends):
    service = with_broken_executor("good")
    service.submit("a")
    planned, *_ = done(service.core.plans(service.now))
    assert planned.peer == b"broken"
    service.do(service.core.from_executor(b"broken", service.executors["broken"].run(planned.message), service.now))
    if ends == "request":
        service.say(m.Cancel(request_id="a"))
    else:
        service.do(service.core.executor_gone(b"broken", service.now))
    service.turn()
    assert service.endings == {(b"web", "a", 0): "cancelled" if ends == "request" else "length"}


def broken(num_requests, clients):
    """The same, and requests that come one after the other."""
    service = with_broken_executor("good")
    for i in range(num_requests):
        service.submit(f"r{i}", client=clients[i % len(clients)])
        service.turn()
        service.wait(0.1)
    assert set(service.endings.values()) == {"length"}
    assert len(service.endings) == num_requests
    return service


def test_an_executor_that_computes_no_numbers_attracts_nobody():
    """It answers at once, and is the idlest; one client alone does not get it out, but it is asked no more."""
    service = broken(20, ["alice"])
    assert [member.hello.executor for member in service.core.fleet] == ["broken", "good"]
    assert service.metric("baton_rows_without_numbers_total") == 1
    assert len(service.events("scores are no numbers")) == 1


def test_an_executor_is_in_doubt_for_a_while():
    service = broken(1, ["alice"])
    executor = service.core.scheduler.executor(1)
    service.wait(DOUBTED_FOR_S - 1.0)
    assert executor.is_doubtful
    service.wait(2.0)
    assert not executor.is_doubtful


def test_two_clients_get_it_out():
    """Both have a row there at once: after the first one it would be asked no more."""
    service = with_broken_executor()
    for client in ("alice", "bob"):
        service.submit(client, client=client)
    service.turn(num_answers=1)
    service.join("good")
    service.turn()
    assert [member.hello.executor for member in service.core.fleet] == ["good"]
    (lost,) = service.events("executor lost")
    assert (lost.facts["executor"], lost.facts["cause"]) == ("broken", "no_numbers")
    assert "kept out" in lost.facts["reason"]
    service.join("broken")
    assert len(service.core.fleet) == 1, "it is kept out for a while"
