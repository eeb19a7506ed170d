"""What a turn of the core costs does not grow with the requests that are open and do not move."""

from array import array

import pytest

from common import messages as m
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.scheduling.config import SchedulerConfig
from tests.support.instructions import instructions_of
from tests.support.service import PROMPT, Service, restart

FEW, MANY = 1_000, 10_000
WEB, OTHER = b"web", b"other"


def submit(request_id):
    params = m.SamplingParams(max_tokens=6)
    return m.Submit(request_id=request_id, prompt=array("i", PROMPT).tobytes(), params=params, is_resumable=True)


def crowded(num_open):
    """A core with so many open requests: a third is read, a third is detached, a third waits after a restart."""
    scheduler, third = SchedulerConfig(max_waiting=2 * MANY), num_open // 3
    before = Service(JournalState.OK, scheduler=scheduler)
    for i in range(num_open - 2 * third):
        before.core.from_frontend(OTHER, submit(f"old-{i}"), 0.0)
    service, _ = restart(before.write_all(), scheduler=scheduler)
    for i in range(2 * third):
        service.core.from_frontend(OTHER, submit(f"new-{i}"), 0.0)
        if i % 2:
            service.core.from_frontend(OTHER, m.Detach(request_id=f"new-{i}"), 0.0)
    service.write_all()
    outputs(service.core)  # that they are accepted
    assert sum(service.core.requests.table.clients.values()) == num_open
    return service


def outputs(core):
    for peer in core.frontends_with_outputs():
        while core.next_output(peer) is not None:
            core.output_sent(peer)


MOVES = {
    "nothing": lambda core, now: None,
    "a heartbeat": lambda core, now: core.from_frontend(WEB, m.FrontendHello(pid=1), now),
    "a request": lambda core, now: core.from_frontend(WEB, submit("r"), now),
    "a client that comes back": lambda core, now: core.from_frontend(WEB, m.Attach(request_id="old-7"), now),
    "a client that goes": lambda core, now: core.from_frontend(OTHER, m.Detach(request_id="new-8"), now),
    "a frontend that goes": lambda core, now: core.frontend_gone(WEB, now),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_turn_costs_the_same_among_any_number_of_open_requests(move):
    costs = []
    for num_open in (FEW, MANY):
        service = crowded(num_open)
        core = service.core
        core.from_frontend(WEB, submit("mine"), service.now)
        service.now += 0.1

        def turn(core=core, now=service.now):
            MOVES[move](core, now)
            core.tick(now)
            outputs(core)

        costs.append(instructions_of(turn))
    few, many = costs
    assert many <= few + FEW // 20, "and not one instruction for each of the open requests"
