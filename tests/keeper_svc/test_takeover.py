"""Real processes: a pool outlives its holder, and the keeper that hands it on."""

import shutil
import signal
import subprocess
import time

import pytest

from common.heartbeats import LOSS_TIMEOUT_S
from tests.keeper_svc.processes import KeeperProcess
from tests.support.eventually import eventually

NEW_NAMESPACE = ("unshare", "--fork", "--pid", "--kill-child")


def hold_and_wait(keeper, puppet):
    """A holder that has written its pool, and a standby."""
    holder, standby = puppet(keeper, "holder"), puppet(keeper, "standby")
    holder.tell("deposit")
    assert holder.hear() == "holds 1 0 0"
    standby.tell("wait")
    assert standby.hear() == "waiting"
    assert holder.hear() == "standbys 1"
    holder.tell("write 77 12")
    assert holder.hear() == "written"
    return holder, standby


def test_a_killed_holder_leaves_its_pool_to_the_standby(keeper, puppet):
    holder, standby = hold_and_wait(keeper, puppet)
    holder.process.kill()
    assert standby.hear() == "holds 2 77 12"
    (pool,) = keeper.report().pools
    assert (pool.holder, pool.holder_pid, pool.lease) == ("standby", standby.process.pid, 2)


def test_a_stopped_holder_is_killed_for_the_standby(keeper, puppet):
    holder, standby = hold_and_wait(keeper, puppet)
    holder.tell("stop")
    assert standby.hear() == "holds 2 77 12"
    assert holder.process.wait(60.0) == -signal.SIGKILL
    assert 'event="holder is killed" executor=holder' in keeper.log()


@pytest.mark.parametrize("becomes", ["lives", pytest.param("stopped", marks=pytest.mark.slow), "killed"])
def test_a_released_pool_is_the_standbys_whatever_becomes_of_its_last_holder(keeper, puppet, becomes):
    holder, standby = hold_and_wait(keeper, puppet)
    third = puppet(keeper, "third")
    third.tell("wait")
    assert third.hear() == "waiting"
    assert holder.hear() == "standbys 2"
    holder.tell("release")
    assert standby.hear() == "holds 2 77 12"
    assert holder.hear() == "released"
    assert standby.hear() == "standbys 1"
    if becomes == "killed":
        holder.kill()
        eventually(lambda: 'event="executor gone" executor=holder' in keeper.log(), told=keeper.log)
    elif becomes == "stopped":
        holder.tell("stop")
        time.sleep(LOSS_TIMEOUT_S + 1.0)
        assert holder.process.poll() is None, "nobody waits for its end"
    assert [(pool.holder, pool.lease) for pool in keeper.report().pools] == [("standby", 2)]
    standby.tell("write 78 13")
    assert standby.hear() == "written"
    standby.kill()
    assert third.hear() == "holds 3 78 13"


def test_a_keeper_that_was_killed_is_brought_what_it_kept(keeper, puppet):
    holder, standby = hold_and_wait(keeper, puppet)
    keeper.kill()
    keeper.start()
    eventually(lambda: [pool.num_standbys for pool in keeper.report().pools] == [1], told=keeper.log)
    holder.process.kill()
    assert standby.hear() == "holds 2 77 12"


def test_a_standby_can_be_interrupted(keeper, puppet):
    holder, standby = hold_and_wait(keeper, puppet)
    standby.tell("")
    assert standby.hear() == "interrupted"
    assert holder.hear() == "standbys 0"


@pytest.fixture
def apart(folder):
    """A keeper in a PID namespace of its own: it sees no executor, and can kill none."""
    if shutil.which("unshare") is None or subprocess.call([*NEW_NAMESPACE, "true"], stderr=subprocess.DEVNULL) != 0:
        pytest.skip("this user may not make a PID namespace (unshare --pid)")
    process = KeeperProcess(folder, within=NEW_NAMESPACE)
    yield process
    process.kill()


def test_a_watchdog_kills_for_a_keeper_in_another_namespace(apart, puppet):
    holder, standby = hold_and_wait(apart, puppet)
    assert "can_kill=false" in apart.log()
    eventually(lambda: apart.log().count('event="watchdog registered"') == 2, told=apart.log)
    holder.tell("stop")
    assert standby.hear() == "holds 2 77 12"
    assert holder.process.wait(60.0) == -signal.SIGKILL
