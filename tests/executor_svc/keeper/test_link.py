"""The executor's link: what it asks, and that it needs no keeper once the executor serves."""

import contextlib
import fcntl
import os
import signal
import socket
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common import messages as m
from common.errors import KeeperError
from executor_svc.keeper.conversation import KEEPER_TIMEOUTS, KeeperTimeouts
from executor_svc.keeper.finding import find_keeper
from executor_svc.keeper.link import KeeperLink
from executor_svc.keeper.memory import check_memory, create_memory, seal_read_only
from executor_svc.keeper.tag import PoolTag
from executor_svc.keeper.watchdog_process import WatchdogProcess
from tests.keeper_svc.processes import KeeperProcess
from tests.keeper_svc.world import NUM_BLOCKS, POOL, WEIGHTS
from tests.support.eventually import eventually
from tests.support.processes import open_files

NUM_BYTES = 2**20


@pytest.fixture
def link(keeper):
    made = KeeperLink(keeper.path, "executor")
    yield made
    made.close()


def weights_of(content: bytes) -> int:
    fd = create_memory("weights", NUM_BYTES, to_be_read_only=True)
    os.pwrite(fd, content, 0)
    seal_read_only(fd)
    return fd


def deposit(link: KeeperLink):
    memory, tag = create_memory("pool", NUM_BYTES), PoolTag.create()
    held = link.deposit_pool(POOL, NUM_BLOCKS, NUM_BYTES, memory, tag)
    os.close(memory)
    os.close(tag)
    return held


def serve_until(link, condition, state="serving"):
    def turn():
        link.receive()
        link.tick(time.monotonic(), state)
        return condition()

    return eventually(turn, 10.0)


def test_weights_are_shared_by_fingerprint_and_by_source(keeper, link):
    other = KeeperLink(keeper.path, "other")
    assert other.find_weights(WEIGHTS, fingerprint="f") is None
    fd = weights_of(b"weights")
    link.deposit_weights(WEIGHTS, "f", NUM_BYTES, fd, source="files 1")
    os.close(fd)
    for wish in ({"fingerprint": "f"}, {"source": "files 1"}):
        found = other.find_weights(WEIGHTS, **wish)
        check_memory(found.memory_fd, NUM_BYTES, read_only=True)
        assert (found.fingerprint, os.pread(found.memory_fd, 7, 0)) == ("f", b"weights")
    other.close()


def test_weights_that_are_about_to_come_are_waited_for(keeper, link):
    has_asked = threading.Event()

    class Noticed(KeeperLink):
        def ask(self, *arguments, **options):
            answer = super().ask(*arguments, **options)
            has_asked.set()
            return answer

    other = Noticed(keeper.path, "other")
    with ThreadPoolExecutor() as pool:
        found = pool.submit(other.find_weights, WEIGHTS, source="files 1", wait_s=30.0)
        assert has_asked.wait(10.0)
        link.deposit_weights(WEIGHTS, "f", NUM_BYTES, weights_of(b"w"), source="files 1")
        assert found.result().fingerprint == "f"
    assert other.find_weights(WEIGHTS, source="files 2", wait_s=0.01) is None
    other.close()


def test_a_pool_is_found_and_leased(keeper, link):
    assert link.find_pool(POOL) == 0
    assert link.lease_pool(POOL, NUM_BLOCKS) is None
    held = deposit(link)
    assert (held.lease, held.num_blocks, held.num_bytes) == (1, NUM_BLOCKS, NUM_BYTES)
    assert held.pool not in repr(held)
    assert link.find_pool(POOL) == link.find_pool(POOL, NUM_BLOCKS) == NUM_BLOCKS
    assert link.find_pool(POOL, NUM_BLOCKS + 1) == 0


def test_no_keeper_is_an_error_that_names_the_path(folder):
    with pytest.raises(KeeperError, match=f"no keeper at {folder}/keeper.sock: No such file"):
        KeeperLink(folder / "keeper.sock", "executor")


def test_a_keeper_that_is_named_is_waited_for(folder):
    """A supervisor starts both at once."""
    path = folder / "baton" / "keeper.sock"
    with ThreadPoolExecutor() as pool:
        finding = pool.submit(find_keeper, path, "executor", is_required=False)
        keeper = KeeperProcess(folder)
        link = finding.result(20.0)
    assert link.find_pool(POOL) == 0
    link.close()
    keeper.kill()


def test_a_keeper_that_does_not_come_is_done_without(folder):
    asked = {"socket_path": folder / "keeper.sock", "executor_name": "executor"}
    asked["timeouts"] = KeeperTimeouts(start_s=0.3)
    assert find_keeper(**asked, is_required=False) is None
    with pytest.raises(KeeperError, match="a standby needs a keeper"):
        find_keeper(**asked, is_required=True)


def test_a_standby_says_whether_a_keeper_knows_of_it(keeper, link):
    told: list[bool] = []
    wake, woken = socket.socketpair()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(link.wait_for_pool, POOL, NUM_BLOCKS, woken.fileno(), told.append)
        eventually(lambda: told[-1:] == [True])
        keeper.kill()
        eventually(lambda: told[-1:] == [False])
        keeper.start()
        eventually(lambda: told[-1:] == [True])
        wake.send(b"x")
        assert waiting.result(20.0) is None
    wake.close()
    woken.close()


def test_what_a_keeper_refuses_is_an_error(link):
    with pytest.raises(KeeperError, match="refuses: it has 1125899906842624 bytes"):
        link.deposit_pool(POOL, 1, 2**50, create_memory("huge", 2**50), PoolTag.create())
    assert link.find_pool(POOL) == 0  # the link goes on


def test_a_keeper_that_hangs_is_not_waited_for(keeper):
    with contextlib.closing(KeeperLink(keeper.path, "executor", KeeperTimeouts(answer_s=2.0))) as link:
        keeper.process.send_signal(signal.SIGSTOP)
        with pytest.raises(KeeperError, match="did not answer within 2 s"):
            link.find_pool(POOL)
        keeper.process.send_signal(signal.SIGCONT)
        assert link.find_pool(POOL) == 0  # over a new connection


def test_what_a_starting_executor_asks_it_asks_the_next_keeper_again(keeper, link):
    """The first one ends before it has answered, and is started again, as a supervisor does."""
    deposit(link)
    keeper.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        keeping = pool.submit(link.deposit_weights, WEIGHTS, "f", NUM_BYTES, weights_of(b"w"))
        eventually(lambda: waiting_bytes(link) > 0)
        keeper.kill()
        keeper.start()
        keeping.result(20.0)
    report = keeper.report()
    assert ([pool.holder for pool in report.pools], [w.users for w in report.weights]) == (
        ["executor"],
        [("executor",)],
    )


def waiting_bytes(link: KeeperLink) -> int:
    """Of what the link sent and its keeper has not read (SIOCOUTQ)."""
    return int.from_bytes(fcntl.ioctl(link.fileno(), termios.TIOCOUTQ, bytes(4)), "little")


def test_an_executor_brings_all_it_has_to_the_next_keeper(keeper):
    link = KeeperLink(keeper.path, "executor", KeeperTimeouts(start_s=0.0))
    held = deposit(link)
    link.deposit_weights(WEIGHTS, "f", NUM_BYTES, weights_of(b"w"), source="files 1")
    keeper.kill()
    serve_until(link, lambda: link.fileno() < 0)
    with pytest.raises(KeeperError, match="no keeper at"):
        link.find_pool(POOL)
    keeper.start()
    serve_until(link, lambda: keeper.report().weights)
    report = keeper.report()
    assert [(pool.pool, pool.lease, pool.holder) for pool in report.pools] == [(held.pool[:8], 1, "executor")]
    assert [weights.users for weights in report.weights] == [("executor",)]
    assert link.find_pool(POOL) == NUM_BLOCKS
    link.close()


def test_a_connection_that_broke_changes_nothing_for_the_same_keeper(keeper, link):
    held = deposit(link)
    link.stop_waiting()  # which ends the connection
    assert link.lease_pool(POOL, NUM_BLOCKS).pool == held.pool
    assert keeper.report().pools[0].lease == 1
    link.stop_waiting()
    serve_until(link, lambda: link.fileno() >= 0)
    assert link.find_pool(POOL) == NUM_BLOCKS, "it has answered to all that was brought"
    assert keeper.log().count('event="executor registered"') == 1


def test_a_lease_is_released_once_and_its_pool_is_brought_to_no_other_keeper(keeper, link):
    link.release_lease()
    assert link.fileno() >= 0, "there was none, and nothing to say"
    held = deposit(link)
    link.release_lease()
    for fd in (held.memory_fd, held.tag_fd):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    other = KeeperLink(keeper.path, "other")
    assert other.lease_pool(POOL, NUM_BLOCKS).lease == 2
    keeper.kill()
    keeper.start()
    serve_until(link, lambda: link.fileno() >= 0)
    link.find_pool(POOL)  # it has answered to all that was brought
    serve_until(other, lambda: keeper.report().pools)
    assert [(pool.pool, pool.lease, pool.holder) for pool in keeper.report().pools] == [(held.pool[:8], 2, "other")]
    other.close()


def test_a_release_without_a_keeper_is_not_waited_for(keeper, link):
    deposit(link)
    keeper.kill()
    serve_until(link, lambda: link.fileno() < 0)
    begun = time.monotonic()
    with pytest.raises(KeeperError, match="is not there"):
        link.release_lease()
    assert time.monotonic() - begun < KEEPER_TIMEOUTS.start_s
    assert link.pool is None


def test_a_holder_is_told_of_standbys(keeper, link):
    deposit(link)
    with_standby = KeeperLink(keeper.path, "standby")
    assert with_standby.wait_for_pool(POOL, NUM_BLOCKS, until=0.0) is None
    told: list[m.Standbys] = []
    eventually(lambda: told.extend(link.receive()) or told, 10.0)
    assert told == [m.Standbys(count=1)]
    with_standby.close()


def test_files_are_closed_with_the_link(keeper):
    before = len(os.listdir("/proc/self/fd"))
    made = KeeperLink(keeper.path, "executor")
    deposit(made)
    fd = weights_of(b"w")
    made.deposit_weights(WEIGHTS, "f", NUM_BYTES, fd)
    os.close(fd)
    made.find_weights(WEIGHTS, fingerprint="f")
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_process_1_cannot_be_watched_and_says_so(keeper, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(KeeperError, match="process 1 of its PID namespace"):
        WatchdogProcess(keeper.path, "i" * 32).start(1.0)


def test_a_watchdog_inherits_no_device(keeper, link):
    """A device that the watchdog had open would keep the GPU working for a killed executor."""
    device = os.open("/dev/zero", os.O_RDWR)
    os.set_inheritable(device, True)
    watchdog = WatchdogProcess(keeper.path, link._talk._instance)
    watchdog.start(5.0)
    try:
        eventually(lambda: "watchdog.py" in Path(f"/proc/{watchdog._process.pid}/cmdline").read_text(), 10.0)
        opened = [file.partition(":")[0] for file in open_files(watchdog._process.pid).values()]
        assert "/dev/zero" not in opened
        assert "socket" in opened
    finally:
        watchdog.stop()
        os.close(device)


def test_what_no_executor_uses_of_the_machines_memory_is_left_to_the_keeper(keeper, link, puppet):
    left = puppet(keeper, "left")
    left.tell("deposit")
    assert left.hear().startswith("holds 1 ")
    left.kill()
    eventually(lambda: [pool.holder for pool in keeper.report().pools] == [""], 10.0)
    assert link.make_room("cpu") == 0
    assert len(keeper.report().pools) == 1


def test_what_no_executor_uses_of_a_gpu_is_given_back(keeper, link, puppet):
    left, holder = puppet(keeper, "left"), puppet(keeper, "holder")
    for each in (left, holder):
        each.tell("deposit on GPU-1")
        assert each.hear().startswith("holds 1 ")
    left.kill()
    eventually(lambda: [pool.holder for pool in keeper.report().pools] == ["", "holder"], 10.0)
    assert link.make_room("GPU-2") == link.make_room("GPU-1", pools=False) == 0
    assert link.make_room("GPU-1") == 4 * 2**20
    assert link.make_room("GPU-1") == 0
    assert [pool.holder for pool in keeper.report().pools] == ["holder"]


def test_a_pool_that_cannot_be_used_is_given_up(keeper, link):
    link.give_pool_up()
    assert link.fileno() >= 0, "there was none, and nothing to say"
    held = deposit(link)
    link.give_pool_up()
    assert link.pool is None
    assert keeper.report().pools == ()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held.memory_fd)
    assert deposit(link).pool != held.pool
