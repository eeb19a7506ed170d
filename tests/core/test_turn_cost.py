"""What a turn of the core costs does not grow with the requests that are open, or with those that end at once."""

import pytest

from common import messages as m
from scheduler_svc.core.core import CHORES_EVERY_S
from scheduler_svc.core.requests.group_commit import BatchFailed, JournalState
from scheduler_svc.core.requests.request_manager import MAX_TOLD_AT_ONCE
from scheduler_svc.core.requests.retention import RETAIN_S
from scheduler_svc.core.scheduling.admission import MAX_LOOKS
from scheduler_svc.core.scheduling.config import SchedulerConfig
from tests.support.chores import tick
from tests.support.instructions import instructions_of
from tests.support.scheduling import Scheduling, limits
from tests.support.service import Service, restart
from tests.support.submits import submit

FEW, MANY = 1_000, 10_000
STORM, LARGER_STORM = 400, 1200  # requests: more than a tick takes of anything
GRACE_S = 0.5  # of requests whose frontend is gone, in storms
WEB, OTHER = b"web", b"other"


def resumable(request_id):
    return submit(request_id, is_resumable=True)


def crowded(num_open):
    """A core with so many open requests: a third is read, a third is detached, a third waits after a restart."""
    scheduler, third = SchedulerConfig(max_waiting=2 * MANY), num_open // 3
    before = Service(JournalState.OK, scheduler=scheduler)
    for i in range(num_open - 2 * third):
        before.core.from_frontend(OTHER, resumable(f"old-{i}"), 0.0)
    service, _ = restart(before.write_all(), scheduler=scheduler)
    for i in range(2 * third):
        service.core.from_frontend(OTHER, resumable(f"new-{i}"), 0.0)
        if i % 2:
            service.core.from_frontend(OTHER, m.Detach(request_id=f"new-{i}"), 0.0)
    service.write_all()
    tick(service.core, service.now)
    outputs(service.core)  # that they are accepted
    assert sum(service.core.requests.table.num_open_by_name.values()) == num_open
    return service


def outputs(core):
    for peer in core.frontends_with_outputs():
        while core.next_output(peer) is not None:
            core.output_sent(peer)


MOVES = {
    "nothing": lambda core, now: None,
    "a heartbeat": lambda core, now: core.from_frontend(WEB, m.FrontendHello(pid=1), now),
    "a request": lambda core, now: core.from_frontend(WEB, resumable("r"), now),
    "a client that comes back": lambda core, now: core.from_frontend(WEB, m.Attach(request_id="old-7"), now),
    "a client that goes": lambda core, now: core.from_frontend(OTHER, m.Detach(request_id="new-8"), now),
    "a frontend that goes": lambda core, now: core.frontend_gone(WEB, now),
}


@pytest.fixture(scope="module")
def costs():
    """What a turn with each of the moves costs, one after the other, among few and among many open requests."""
    return costs_among(FEW), costs_among(MANY)


def costs_among(num_open):
    service, costs = crowded(num_open), {}
    core = service.core
    core.from_frontend(WEB, resumable("mine"), service.now)
    for name, move in MOVES.items():
        service.now += 0.1

        def turn(move=move, now=service.now):
            move(core, now)
            tick(core, now)
            outputs(core)

        costs[name] = instructions_of(turn)
    return costs


@pytest.mark.parametrize("move", MOVES)
def test_a_turn_costs_the_same_among_any_number_of_open_requests(costs, move):
    few, many = costs
    assert many[move] <= few[move] + FEW // 20, "and not one instruction for each of the open requests"


def stormy(num_requests):
    """A core with so many requests of one frontend."""
    service = Service(JournalState.OK, scheduler=SchedulerConfig(max_waiting=MANY), reconnect_grace_s=GRACE_S)
    for i in range(num_requests):
        service.core.from_frontend(OTHER, resumable(f"r{i}"), 0.0)
    return service


def chores(core, now):
    """What each step of the chores costs, and then a tick."""
    steps, costs, done = core.chores(now), [], []
    while not done or done[-1] is not None:
        costs.append(instructions_of(lambda: done.append(next(steps, None))))
    return [*costs, instructions_of(lambda: core.tick(now))]


def costs_of_a_lost_frontend(num_requests):
    """What the most costly step costs that detaches, cancels and forgets so many requests."""
    service = stormy(num_requests)
    service.write_all()
    core, table = service.core, service.core.requests.table
    forgotten = instructions_of(lambda: core.frontend_gone(OTHER, 0.0))
    assert forgotten < 10 * num_requests, "what the outbox has for each is dropped at once, and nothing else is done"
    detaching = chores(core, 0.0)
    assert {request.peer for request in table.all()} == {None}
    cancelling = chores(core, 0.9)
    assert (table.num_open, len(table.all())) == (0, num_requests)
    forgetting = chores(core, 1.0 + RETAIN_S)
    assert table.all() == []
    return [max(costs) for costs in (detaching, cancelling, forgetting)]


def test_what_a_frontend_leaves_is_done_in_pieces():
    for some, more in zip(*map(costs_of_a_lost_frontend, (STORM, LARGER_STORM)), strict=True):
        assert more < 1.25 * some


def test_a_client_that_comes_back_before_its_request_is_detached_keeps_it():
    service = stormy(STORM)
    service.write_all()
    core, last = service.core, f"r{STORM - 1}"
    core.frontend_gone(OTHER, 0.0)
    core.from_frontend(WEB, m.Attach(request_id=last), 0.0)
    tick(core, 0.0)
    tick(core, 0.9)
    assert core.requests.table.num_open == 1
    assert core.requests.table.find(last).peer == WEB


def test_another_frontend_cancels_a_request_whose_frontend_is_gone_before_it_is_detached():
    service = stormy(STORM)
    core, last = service.core, f"r{STORM - 1}"
    core.frontend_gone(OTHER, 0.0)
    core.from_frontend(WEB, m.Cancel(request_id=last), 0.0)
    assert core.requests.table.num_open == STORM - 1


def test_what_a_failed_journal_releases_is_told_in_pieces_and_in_order():
    service, told = stormy(STORM), []
    core = service.core
    core.batch_written(BatchFailed(core.next_batch(1.0).number, "full"), 1.0)
    core.from_frontend(OTHER, resumable("later"), 1.0)

    def read():
        num_before = len(told)
        while (message := core.next_output(OTHER)) is not None:
            core.output_sent(OTHER)
            told.extend(message.request_ids)
        return len(told) - num_before

    assert read() == MAX_TOLD_AT_ONCE
    assert {read() for _ in core.chores(1.0)} <= {0, 1}
    assert told == [*(f"r{i}" for i in range(STORM)), "later"]


def test_chores_that_are_left_go_on_at_once_and_are_looked_for_ten_times_a_second():
    service = Service()
    core = service.core
    for name in ("a", "b"):
        service.submit(name, timeout_s=1.0)
    next(core.chores(1.5))
    assert core.scheduler.num_waiting == 1, "the caller left off after one step"
    list(core.chores(1.5))
    assert core.scheduler.num_waiting == 0
    service.submit("c", timeout_s=1.52)
    assert list(core.chores(1.55)) == []
    assert core.scheduler.num_waiting == 1
    list(core.chores(1.5 + CHORES_EVERY_S))
    assert core.scheduler.num_waiting == 0


def test_an_executor_that_is_asked_for_a_plan_in_vain_is_a_step_of_its_own():
    service = Service()
    for i in range(5):
        service.join(f"idle {i}")
    assert list(service.core.plans(service.now)) == [[]] * 5


def test_a_plan_looks_at_a_bounded_number_of_executors_however_many_wait():
    num_executors = 128
    run = Scheduling(*[limits()] * num_executors, max_waiting=1000)
    for i in range(500):
        run.add(f"{i}", [5, 6, i], max_tokens=8)
    run.scheduler.plan(1)
    placed = [sequence for sequence in run.scheduler if sequence.placed not in (0, 1)]
    assert len(placed) == MAX_LOOKS // num_executors
