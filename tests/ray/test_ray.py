"""`baton ray` on a real cluster of two raylets: up, two crashes, fewer executors, a rollout, down."""

import asyncio
import os
import signal

import pytest

from tests.e2e.service import output_of, start_baton, status
from tests.ray.cluster import RayCluster
from tests.ray.streams import Readers


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = RayCluster(tmp_path_factory.mktemp("ray"), 2, 1)
    yield cluster
    cluster.close()


@pytest.mark.slow
def test_a_fleet_from_up_to_down(cluster: RayCluster):
    said = cluster.baton("up", *cluster.up_options(2))
    url = cluster.ask("view")["url"]
    assert f"Baton is ready at {url}" in said
    assert f"{cluster.journal}, which every node sees" in said
    executors = sorted(status(url)["executors"], key=lambda executor: executor["executor"])
    assert [executor["executor"] for executor in executors] == ["executor-0-0", "executor-1-0"]
    assert {executor["node"] for executor in executors} == {url.removeprefix("http://").partition(":")[0]}
    assert all(executor["keeps_pool"] for executor in executors)
    assert len(output_of(start_baton(url, "generate", "ROMEO:", "--max-tokens", 20))) > 20

    refused = cluster.baton("up", *cluster.up_options(2), expected=1)
    assert "there is a fleet baton already" in refused

    async def disturb():
        pid = cluster.ask("report", "executor-0-0-r1")["pid"]
        os.kill(pid, signal.SIGKILL)  # its host starts it again
        await readers.progress()
        cluster.ask("kill_actor", "executor-1-0-r1")  # the manager starts another one
        await readers.progress()
        await asyncio.to_thread(cluster.wait_until_complete)
        assert "1 executors of revision 1" in await asyncio.to_thread(cluster.baton, "scale", 1)
        assert cluster.executors() == ["executor-0-0-r1"], "the others stay as they are"
        assert "let executor-1-0-r1 leave" in [words for _, words in cluster.ask("view")["events"]]
        await asyncio.to_thread(cluster.baton, "rollout", "--standby", "--runtime-env", '{"env_vars": {"NEW": "1"}}')

    readers = Readers(url, 8)
    asyncio.run(readers.while_(disturb))
    report = status(url)
    assert report["requests_failed"] == 0
    assert cluster.executors() == ["executor-0-1-r2"]
    pid = cluster.ask("report", "executor-0-1-r2")["pid"]
    with open(f"/proc/{pid}/environ") as file:
        assert "NEW=1" in file.read().split("\0")

    shown = cluster.baton("status")
    assert "1 ready, 1 wanted, 0 waiting for resources" in shown
    assert "let executor-0-0-r1 leave" in shown
    assert "is down" in cluster.baton("down")
    assert cluster.ask("actors") == []
    assert "there is no fleet baton" in cluster.baton("status", expected=3)


@pytest.mark.slow
def test_what_cannot_run_is_said_and_can_be_taken_down(cluster: RayCluster):
    said = cluster.baton("up", *cluster.up_options(1), "--model", "/no/such/model", expected=2)
    assert "scheduler-0-0-r1 exited with code 2" in said
    assert "/no/such/model" in said
    assert "is down" in cluster.baton("down")
    assert cluster.ask("actors") == []
