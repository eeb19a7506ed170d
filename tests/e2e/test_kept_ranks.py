"""KV memory of a group of two ranks: a rank is killed, and the next group computes nothing again."""

import asyncio
import os
import signal

import pytest

from scheduler_svc.client.processes.local_fleet import executor_name
from tests.e2e.streams import texts
from tests.support.eventually import eventually
from tests.support.fleets import active, rank_pids, report, running_fleet, wait_for_standby
from tests.support.processes import is_running

RANKS = 2


def wait_for_end(fleet, index):
    """Of an executor's group, which ends itself when one rank is gone."""
    eventually(lambda: [end.name for end in fleet.poll()] == [executor_name(index)], timeout_s=60)


@pytest.fixture(scope="module")
def two_groups(tmp_path_factory, ending_slowly):
    with running_fleet(tmp_path_factory.mktemp("ranks"), standbys=1, ranks=RANKS) as running:
        yield running


@pytest.fixture(scope="module")
def calm(two_groups):
    return asyncio.run(texts(two_groups))


@pytest.fixture
def fleet(two_groups, calm):
    """One of a group that serves and another that waits, whichever of them the test before has ended."""
    for index in range(2):
        if executor_name(index) not in two_groups.pids:
            two_groups.start_executor(index)
    wait_for_standby(two_groups)  # the fleet knows which of them serves, and starts the other one as a standby
    return two_groups


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
def test_a_standby_group_goes_on_where_another_one_stopped(fleet, calm, number, rank):
    """The ranks of the standby get their pools one after the other, when each rank of the old group is gone."""
    before, gone = report(fleet), active(fleet)

    def disturb():
        os.kill(rank_pids(fleet, gone)[rank], number)
        (end,) = eventually(fleet.poll)
        assert end.name == executor_name(gone)
        assert end.returncode != 0

    assert asyncio.run(texts(fleet, disturb)) == calm
    after = report(fleet)
    assert after["recomputed_tokens"] == before["recomputed_tokens"]
    assert after["pools_adopted"] == before["pools_adopted"] + 1
    assert active(fleet) == 1 - gone


@pytest.mark.slow
def test_a_standby_group_serves_before_the_ranks_that_leave_have_ended(fleet, calm, ending_slowly):
    before, leaving = report(fleet), active(fleet)
    pids = rank_pids(fleet, leaving)

    def leave():
        for pid in pids:
            os.kill(pid, signal.SIGTERM)

    with ending_slowly():
        assert asyncio.run(texts(fleet, leave)) == calm
        assert all(is_running(pid) for pid in pids)
        after = report(fleet)
        assert after["recomputed_tokens"] == before["recomputed_tokens"]
        assert after["pools_adopted"] == before["pools_adopted"] + 1
        assert active(fleet) == 1 - leaving
