"""KV memory of a group of two ranks: a rank is killed, and the next group computes nothing again."""

import asyncio
import os
import signal

import pytest

from scheduler_svc.client.processes.local_fleet import executor_name
from tests.e2e.streams import texts
from tests.support.eventually import eventually
from tests.support.fleets import rank_pids, report, running_fleet, wait_for_standby
from tests.support.processes import is_running

RANKS = 2


def wait_for_end(fleet, index):
    """Of an executor's group, which ends itself when one rank is gone."""
    eventually(lambda: [end.name for end in fleet.poll()] == [executor_name(index)], timeout_s=60)


@pytest.mark.slow
def test_a_group_that_starts_again_finds_everything(tmp_path):
    with running_fleet(tmp_path, keeps=True, ranks=RANKS) as fleet:
        calm = asyncio.run(texts(fleet))

        def disturb():
            os.kill(rank_pids(fleet, 0)[1], signal.SIGKILL)
            wait_for_end(fleet, 0)
            fleet.start_executor(0)

        assert asyncio.run(texts(fleet, disturb)) == calm
        assert (report(fleet)["recomputed_tokens"], report(fleet)["pools_adopted"]) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "rank"), [(signal.SIGKILL, 0), (signal.SIGSTOP, 1)], ids=["the first killed", "another frozen"]
)
def test_a_standby_group_goes_on_where_another_one_stopped(tmp_path, number, rank):
    """The ranks of the standby get their pools one after the other, when each rank of the old group is gone."""
    with running_fleet(tmp_path, standbys=1, ranks=RANKS) as fleet:
        wait_for_standby(fleet)
        calm = asyncio.run(texts(fleet))

        def disturb():
            os.kill(rank_pids(fleet, 0)[rank], number)
            (end,) = eventually(fleet.poll)
            assert end.name == executor_name(0)
            assert end.returncode != 0

        assert asyncio.run(texts(fleet, disturb)) == calm
        after = report(fleet)
        assert (after["recomputed_tokens"], after["pools_adopted"]) == (0, 1)
        assert [each["executor"] for each in after["executors"]] == [executor_name(1)]
        fleet.start_executor(0)
        wait_for_standby(fleet)  # it is a standby again: the fleet knows that the other group serves


@pytest.mark.slow
def test_a_standby_group_serves_before_the_ranks_that_leave_have_ended(ending_slowly, tmp_path):
    with running_fleet(tmp_path, standbys=1, ranks=RANKS) as fleet, ending_slowly():
        wait_for_standby(fleet)
        calm = asyncio.run(texts(fleet))
        pids = rank_pids(fleet, 0)

        def leave():
            for pid in pids:
                os.kill(pid, signal.SIGTERM)

        assert asyncio.run(texts(fleet, leave)) == calm
        assert all(is_running(pid) for pid in pids)
        after = report(fleet)
        assert (after["recomputed_tokens"], after["pools_adopted"]) == (0, 1)
        assert [each["executor"] for each in after["executors"]] == [executor_name(1)]
        for pid in [*pids, *rank_pids(fleet, 1)]:
            os.kill(pid, signal.SIGKILL)
