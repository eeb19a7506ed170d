"""What dies is started again, ever more slowly; what cannot work ends `up`."""

import os
import signal
from dataclasses import replace

import pytest

from scheduler_svc.client.errors import FleetError
from scheduler_svc.client.processes.child import ChildEnd
from scheduler_svc.client.processes.local_fleet import KEEPER, LocalFleet
from scheduler_svc.client.processes.supervisor import RestartPolicy, Supervisor
from tests.client.clocks import RacingClock
from tests.client.fleets import fake_spec
from tests.keeper_svc.processes import KeeperProcess
from tests.support.eventually import eventually


def test_crashes_in_a_row_wait_twice_as_long_up_to_a_limit():
    policy = RestartPolicy()
    delays = [policy.delay_s(ChildEnd("executor-0", 1, uptime_s=3.0)) for _ in range(9)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert policy.delay_s(ChildEnd("executor-1", 1, uptime_s=3.0)) == 0.5, "each child has its own count"


def test_a_stable_life_forgives():
    policy = RestartPolicy()
    for _ in range(5):
        policy.delay_s(ChildEnd("executor-0", -9, uptime_s=1.0))
    assert policy.delay_s(ChildEnd("executor-0", -9, uptime_s=61.0)) == 0.5


def test_a_drained_child_is_replaced_at_once():
    assert RestartPolicy().delay_s(ChildEnd("executor-0", 0, uptime_s=1.0)) == 0.0


def test_dead_children_come_back(tmp_path):
    lines = []
    with LocalFleet(fake_spec(), tmp_path) as fleet:
        supervisor = Supervisor(fleet, lines.append, RacingClock())
        eventually(supervisor.poll)
        old = fleet.pids
        for pid in old.values():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: supervisor.poll() and len(lines) == 4)
        assert fleet.pids.keys() == old.keys()
        assert not set(fleet.pids.values()) & set(old.values())
        eventually(fleet.is_ready)
    assert "executor-0 was killed by signal 9 (Killed); starting it again in 0.5 s" in lines


@pytest.mark.parametrize("code", [2, 78])
@pytest.mark.parametrize("has_files", [True, False])
def test_a_misconfigured_executor_is_not_tried_again(tmp_path, code, has_files):
    """Its last words are the error's, whether its log is in a file or passed on."""
    with LocalFleet(fake_spec(executor_options=("--exit", str(code))), tmp_path if has_files else None) as fleet:
        supervisor = Supervisor(fleet, pytest.fail)
        with pytest.raises(FleetError, match="no such thing") as caught:
            eventually(lambda: supervisor.poll() and False)
    assert caught.value.exit_code == 2


def test_what_cannot_start_now_ends_a_fleet_that_was_never_ready(tmp_path):
    with LocalFleet(fake_spec(executor_options=("--exit", "75")), tmp_path) as fleet:
        fleet.is_ready = lambda: False
        supervisor = Supervisor(fleet, pytest.fail)
        with pytest.raises(FleetError, match="no such thing") as caught:
            eventually(lambda: supervisor.poll() and False)
    assert caught.value.exit_code == 3


def test_what_cannot_start_now_is_started_again_once_the_fleet_was_ready(tmp_path):
    lines = []
    with LocalFleet(fake_spec(executors=0), tmp_path) as fleet:
        supervisor = Supervisor(fleet, lines.append, RacingClock())
        eventually(supervisor.poll)
        fleet.spec = replace(fleet.spec, executor_options=("--exit", "75"))
        fleet.start_executor(0)
        eventually(lambda: supervisor.poll() and len(lines) >= 2)
    assert lines[0] == "executor-0 exited with code 75; starting it again in 0.5 s"
    assert lines[1].startswith("executor-0 started again")


def test_a_fleet_that_was_never_ready_is_given_up(tmp_path):
    lines = []
    with LocalFleet(fake_spec(scheduler_options=("--exit", "1")), tmp_path) as fleet:
        supervisor = Supervisor(fleet, lines.append, RacingClock())
        with pytest.raises(FleetError, match="scheduler exited with code 1"):
            eventually(lambda: supervisor.poll() and False)
    assert len(lines) == 4, "two restarts, each announced and done"


def test_an_executor_that_the_system_kills_is_said_to_take_too_much_memory(tmp_path):
    with LocalFleet(fake_spec(scheduler_options=("--exit", "1")), tmp_path) as fleet:
        error = fleet.failure(ChildEnd("executor-0", -signal.SIGKILL, uptime_s=3.0))
    assert "executor-0 was killed by signal 9 (Killed); so the system ends what takes too much memory" in str(error)


def test_a_keeper_that_comes_first_is_used(tmp_path):
    """Two `baton up` at once: each has seen no keeper, and starts one."""
    tmp_path.chmod(0o700)
    first, lines = KeeperProcess(tmp_path), []
    with LocalFleet(replace(fake_spec(executors=0), keeper=first.path), tmp_path) as fleet:
        supervisor = Supervisor(fleet, lines.append, RacingClock())
        eventually(lambda: supervisor.poll() and KEEPER not in fleet.pids)
        assert lines == [f"another keeper has come first at {first.path}, and is used"]
    first.kill()


def test_a_keeper_of_another_fleet_is_taken_over_when_it_ends(tmp_path):
    """The second `baton up` uses the first one's; without it, what its executors hold would end with them."""
    tmp_path.chmod(0o700)
    first, lines = KeeperProcess(tmp_path), []
    spec = replace(fake_spec(executors=0), keeper=first.path, starts_keeper=False)
    with LocalFleet(spec, tmp_path) as fleet:
        supervisor = Supervisor(fleet, lines.append, RacingClock())
        eventually(supervisor.poll)
        assert KEEPER not in fleet.pids
        first.kill()
        eventually(lambda: supervisor.poll() and KEEPER in fleet.pids)
        eventually(fleet.keeper_listens)
        assert lines == [
            f"the keeper at {first.path}, which was not this fleet's, has ended; keeper has pid {fleet.pids[KEEPER]}"
        ]
        second = fleet.pids[KEEPER]
        os.kill(second, signal.SIGKILL)
        eventually(lambda: supervisor.poll() and fleet.pids.get(KEEPER, second) != second)
        eventually(fleet.keeper_listens)
