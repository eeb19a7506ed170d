"""What has to be true when a run is over: nothing is left of what has ended."""

from collections.abc import Sized
from typing import Protocol

from scheduler_svc.core.core import Core
from scheduler_svc.core.fleet.membership import Standing
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.requests.log_length import LIFE, SHARES
from scheduler_svc.core.requests.retention import RETAIN_S
from tests.sim.clients import Client, State
from tests.sim.disk import Disk
from tests.sim.frontends import FrontendProcess
from tests.sim.profiles import Profile
from tests.sim.rack import Rack
from tests.sim.service import Service
from tests.sim.witness import Witness
from tests.support.chores import tick


class Scene(Protocol):
    """What there is to look at."""

    profile: Profile
    service: Service
    disk: Disk | None
    rack: Rack
    witness: Witness
    frontends: list[FrontendProcess]
    clients: list[Client]


def is_quiet(scene: Scene) -> bool:
    """Whether all processes live and wait for work."""
    return not unrest(scene)


def unrest(scene: Scene) -> list[str]:
    """What still goes on, for people."""
    core = scene.service.core
    if core is None:
        return ["the scheduler is dead"]
    group_commit = core.requests.group_commit
    num_waiting = sum(process.is_waiting for process in scene.rack.alive)
    num_ready = sum(member.standing is Standing.READY for member in core.fleet)
    reasons = {
        "scheduler frozen": scene.service.is_frozen,
        "sequences": len(list(core.scheduler)),
        "outbox": len(core.requests.outbox.peers()),
        "journal failed": group_commit.state is JournalState.FAILED,
        "journal not true": scene.disk is not None and scene.disk.false_since is not None,
        "journal lags": group_commit.lag_s(scene.service.clock()) > 0,
        "plans in flight": sum(len(executor.inflight) for executor in core.scheduler.executors),
        "connections broke": scene.service.num_lost,
        "executors away": len(scene.rack.slots) - num_waiting - num_ready,
        "frontends away": any(not frontend.is_up for frontend in scene.frontends),
        "frontends gone": set(core.requests.frontends) != {frontend.peer for frontend in scene.frontends},
        "queries": sum(frontend.num_unanswered for frontend in scene.frontends),
    }
    return [f"{what}: {value}" for what, value in reasons.items() if value]


def check_end(scene: Scene, *, is_over: bool) -> None:
    """Assert everything that can be said at the end."""
    if not is_over:
        waiting = [f"{client.id} is {client.state.value}" for client in scene.clients if not client.is_settled]
        raise AssertionError(f"it never ends: {[*waiting, *unrest(scene)]}")
    core = scene.service.core
    assert core is not None
    scene.witness.count(core)
    _check_guilt(scene)
    _check_executors(core)
    _check_requests(core, num_executors=len(scene.rack.slots))
    _check_after_retention(core, scene.service.clock())


def check_abandoned(core: Core, clients: list[Client], since: float) -> None:
    """Assert that nothing goes on for clients who went before a time."""
    for client in clients:
        if client.state is State.LEFT and client.left_at < since:
            request = core.requests.table.find(client.id)
            assert request is None or request.ended_at is not None, f"{client.id} goes on without a reader"


def check_ghosts(core: Core, clients: list[Client], witness: Witness) -> None:
    """Assert that what clients left behind before the present life does not go on for longer than it waits for them."""
    for client in clients:
        if client.state is not State.LEFT or client.left_at >= witness.life_began:
            continue
        request = core.requests.table.find(client.id)
        if request is not None and request.ended_at is None and not witness.is_risky(0.0):
            assert client.submit.is_resumable, f"{client.id} goes on, and no client can come back for it"
            assert not witness.has_waited_long, f"{client.id} goes on, and its client did not come back"


def _check_guilt(scene: Scene) -> None:
    """No sequence has ended for failures that are not its own."""
    guilty = sorted(scene.witness.guilty)
    if scene.profile.num_poisoned:
        assert all(request_id.startswith("poison") for request_id, _ in guilty), f"{guilty} ended with the poison"
    elif scene.profile.spacing_s:
        assert not guilty, f"{guilty} ended for failures that were not theirs"


def _check_executors(core: Core) -> None:
    core.scheduler.check()
    for executor in core.scheduler.executors:
        blocks, lanes = executor.blocks, executor.running.lanes
        assert executor.num_running == 0
        assert blocks.num_free == blocks.num_blocks, f"{executor.name} leaks blocks"
        assert len(lanes.free) == len(lanes.known), f"{executor.name} leaks lanes"


def _check_requests(core: Core, *, num_executors: int) -> None:
    requests, fleet, counters = core.requests, core.fleet, core._counters
    assert core.scheduler.num_waiting == 0
    assert not requests.table.num_open_by_name, "requests are open"
    assert not _left_in(requests.outbox, but=("_num_outputs", "_limits"))
    assert set(requests.outbox._num_outputs) <= set(requests.frontends)
    assert not _left_in(core.scheduler)
    # Pools without an executor, for as long as a keeper may keep them; one pace for each task.
    kept = ("pools", "_awaited", "_paces")
    assert not _left_in(core.scheduler.sequences, but=("executors", "_deadlines", "shares", *kept))
    assert not _left_in(core.scheduler._suspects)
    assert set(counters.steps) == {member.epoch for member in fleet}
    assert not _left_in(counters, but=("steps", "ended_by"))
    assert requests.frontends._silent <= set(requests.frontends)
    for name, names in _left_in(fleet._probation).items():
        assert len(names) <= num_executors + 1, f"{name} grows"  # and one executor with an odd vocabulary


def _check_after_retention(core: Core, now: float) -> None:
    """No client has asked for anything for a long time."""
    tick(core, now + RETAIN_S + 1.0)
    table, group_commit = core.requests.table, core.requests.group_commit
    assert not _left_in(table)
    assert (table._retention._num_requests, table._retention._num_bytes) == (0, 0)
    assert not _left_in(group_commit, but=("_entries",))  # executors that are forgotten
    assert set(group_commit._log._rows) <= {LIFE, SHARES}
    assert not _left_in(group_commit._log, but=("_sizes", "_rows"))
    assert not group_commit._log.has_requests


def _left_in(thing: object, but: tuple[str, ...] = ()) -> dict[str, Sized]:
    """What an object's own containers still hold."""
    return {
        name: value
        for name, value in vars(thing).items()
        if isinstance(value, Sized) and not isinstance(value, str) and len(value) and name not in but
    }
