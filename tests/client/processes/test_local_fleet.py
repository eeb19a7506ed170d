"""LocalFleet: children start, end and die as asked, and never outlive their parent."""

import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from common import messages as m
from executor_svc.keeper.link import KeeperLink
from executor_svc.keeper.memory import create_memory
from executor_svc.keeper.tag import PoolTag
from scheduler_svc.client.errors import EXIT_UNREACHABLE, EXIT_USAGE, FleetError
from scheduler_svc.client.processes import local_fleet
from scheduler_svc.client.processes.keeper import pool_holders
from scheduler_svc.client.processes.local_fleet import (
    KEEPER,
    FleetSpec,
    LocalFleet,
    executor_name,
    free_ports,
)
from tests.client.fleets import FAKE, fake_spec
from tests.support.eventually import eventually
from tests.support.processes import is_running


def test_command_lines_name_model_ports_and_options():
    spec = FleetSpec(model="m", port=1, executor_port=2, scheduler_options=("-s",), executor_options=("-e", "1"))
    scheduler, executor = spec.command("scheduler"), spec.command(executor_name(3))
    assert " ".join(scheduler[1:]) == (
        "-m scheduler_svc --model m --host 127.0.0.1 --port 1 --executor-endpoint tcp://127.0.0.1:2 "
        "--stop-grace 25.0 -s"
    )
    assert " ".join(executor[1:]) == (
        "-m executor_svc --model m --scheduler tcp://127.0.0.1:2 --name executor-3 --no-keep -e 1"
    )
    assert "--model" not in FleetSpec().command("scheduler"), "the services know the demo model themselves"


def test_executors_wait_and_find_memory_at_the_keeper(tmp_path):
    spec = FleetSpec(keeper=tmp_path / "keeper.sock")
    assert " ".join(spec.command(KEEPER)[1:]) == f"-m keeper_svc --socket {tmp_path}/keeper.sock"
    assert f"--keeper {tmp_path}/keeper.sock" in " ".join(spec.command("executor-0"))
    assert "--standby" not in spec.command("executor-0")
    assert "--standby" in spec.command("executor-0", is_standby=True)


@pytest.fixture
def holders(monkeypatch) -> list[int]:
    """Processes that hold pools, as a keeper says that is not there."""
    pids: list[int] = []
    monkeypatch.setattr(local_fleet, "pool_holders", lambda socket_path: pids)
    return pids


def waits(fleet: LocalFleet, index: int, life: int = 1) -> bool:
    """Whether an executor is a standby in this life of its process."""
    lines = lambda: [line for line in fleet.log_tail(executor_name(index)).splitlines() if "--scheduler" in line]  # noqa: E731
    eventually(lambda: len(lines()) >= life)
    return "--standby" in lines()[life - 1]


def test_a_process_is_a_standby_as_long_as_enough_others_serve(tmp_path, holders):
    spec = fake_spec(executors=2, standbys=1, keeper=tmp_path / "keeper.sock", starts_keeper=False)
    with LocalFleet(spec, tmp_path) as fleet:
        assert [waits(fleet, index) for index in range(3)] == [False, False, True]
        fleet.kill_executor(0)
        holders += [fleet.pids["executor-2"]]
        fleet.start_executor(0)
        assert waits(fleet, 0, life=2), "the standby has the pool of the one that was killed"
        for index in (1, 2):
            fleet.kill_executor(index)
        fleet.start_executor(1)
        assert not waits(fleet, 1, life=2), "nobody serves, and two are wanted"


def test_where_a_pool_and_the_keeper_ended_together_not_all_wait(tmp_path, holders):
    spec = fake_spec(executors=1, standbys=1, keeper=tmp_path / "keeper.sock", starts_keeper=False)
    with LocalFleet(spec, tmp_path) as fleet:
        assert [waits(fleet, index) for index in range(2)] == [False, True]
        fleet.kill_executor(0)
        fleet.start_executor(0)
        assert not waits(fleet, 0, life=2), "no pool is left that the standby could get"


def test_a_keeper_says_who_holds_pools(tmp_path, monkeypatch):
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    socket_path = folder / "keeper.sock"
    assert pool_holders(socket_path) == []
    spec = fake_spec(executors=0, keeper=socket_path)
    with LocalFleet(spec, tmp_path):
        link = KeeperLink(socket_path, "ex")
        memory_fd, tag_fd = create_memory("pool", 4096), PoolTag.create()
        link.deposit_pool(m.PoolKind(fingerprint="f", dtype="d", layout="l"), 1, 4096, memory_fd, tag_fd)
        assert pool_holders(socket_path) == [os.getpid()]
        link.close()
        os.close(memory_fd)
        os.close(tag_fd)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8000"), ("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://[::1]:8000")],
)
def test_url_is_one_a_client_here_can_use(host, url):
    assert FleetSpec(host=host).url == url


def test_executors_see_their_own_gpus(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with LocalFleet(fake_spec(executors=2, gpus=("4", "7")), tmp_path) as fleet:
        for name, gpus in [("scheduler", "None"), ("executor-0", "4"), ("executor-1", "7")]:
            eventually(lambda name=name, gpus=gpus: f"sees GPUs {gpus}\n" in fleet.log_tail(name))


def test_free_ports_are_different():
    assert len(set(free_ports(20))) == 20


def test_start_ready_and_stop_in_order(tmp_path):
    with LocalFleet(fake_spec(executors=2), tmp_path) as fleet:
        fleet.wait_ready(10)
        pids = fleet.pids
        for name in pids:
            eventually(partial(fleet.log_tail, name))
        assert list(pids) == ["scheduler", "executor-0", "executor-1"]
        assert all(is_running(pid) for pid in pids.values())
        assert fleet.poll() == []
    assert not any(is_running(pid) for pid in pids.values())
    assert fleet.pids == {}
    for name in pids:
        assert fleet.log_tail(name).endswith("stops"), "SIGTERM reached it, not SIGKILL"
    stopped_at = {name: (tmp_path / f"{name}.log").stat().st_mtime for name in pids}
    assert stopped_at["scheduler"] <= min(stopped_at["executor-0"], stopped_at["executor-1"])


def test_killed_executor_is_gone_and_can_start_again(tmp_path):
    with LocalFleet(fake_spec(), tmp_path) as fleet:
        old_pid = fleet.pids["executor-0"]
        fleet.kill_executor(0)
        assert not is_running(old_pid)
        assert "executor-0" not in fleet.pids
        assert fleet.poll() == [], "what we killed ourselves is no news"
        assert fleet.start_executor(0) == fleet.pids["executor-0"] != old_pid


def test_terminated_executor_leaves_in_order(tmp_path):
    with LocalFleet(fake_spec(), tmp_path) as fleet:
        eventually(lambda: fleet.log_tail("executor-0"))
        fleet.terminate_executor(0)
        assert fleet.wait_executor(0) == 0
        assert list(fleet.pids) == ["scheduler"]


def test_a_child_deaf_to_sigterm_is_killed(tmp_path):
    with LocalFleet(fake_spec(executor_options=("--deaf",)), tmp_path) as fleet:
        eventually(lambda: fleet.log_tail("executor-0"))
        pid = fleet.pids["executor-0"]
        fleet.terminate_executor(0)
        assert fleet.wait_executor(0, timeout_s=0.2) == -signal.SIGKILL
        assert not is_running(pid)


def test_poll_reports_each_end_once(tmp_path):
    with LocalFleet(fake_spec(), tmp_path) as fleet:
        os.kill(fleet.pids["executor-0"], signal.SIGKILL)
        (end,) = eventually(fleet.poll)
        assert str(end) == "executor-0 was killed by signal 9 (Killed)"
        assert not end.misconfigured
        assert fleet.poll() == []


@pytest.mark.parametrize(("code", "exit_code"), [(78, EXIT_USAGE), (2, EXIT_USAGE), (1, EXIT_UNREACHABLE)])
def test_wait_ready_says_what_a_dead_child_said(tmp_path, code, exit_code):
    spec = fake_spec(scheduler_options=("--exit", str(code)))
    with LocalFleet(spec, tmp_path) as fleet, pytest.raises(FleetError, match="no such thing") as caught:
        fleet.wait_ready(10)
    assert f"scheduler exited with code {code}" in caught.value.message
    assert caught.value.exit_code == exit_code


def test_wait_ready_has_a_limit(tmp_path):
    spec = fake_spec(scheduler_command=(*FAKE, "executor"))  # lives, but serves nothing
    with LocalFleet(spec, tmp_path) as fleet, pytest.raises(FleetError, match="not ready after"):
        fleet.wait_ready(0.3)


PARENT = """
import sys, time
sys.path.insert(0, {root!r})
from tests.client.fleets import fake_spec
from scheduler_svc.client.processes.local_fleet import LocalFleet
with LocalFleet(fake_spec(executors=2)) as fleet:
    print(*fleet.pids.values(), flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, for PR_SET_PDEATHSIG")
def test_children_die_with_a_parent_that_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT.format(root=os.getcwd())], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_running(pid) for pid in pids)
        parent.kill()
    eventually(lambda: not any(is_running(pid) for pid in pids))
