"""KV memory and weights outlive their executor: processes are killed, frozen and told to leave, and texts are the same,
with nothing computed again.
"""

import asyncio
import os
import random
import signal

import openai
import pytest

from scheduler_svc.client.processes.local_fleet import KEEPER, executor_name
from tests.e2e.streams import keep_streaming, texts
from tests.support.eventually import eventually
from tests.support.fleets import active, report, running_fleet, standby_waits, wait_for_standby
from tests.support.processes import open_files

SECONDS = 60


def pool_bytes(fleet):
    """What is in the pool that the keeper holds: it is read through the keeper's own descriptor."""
    opened = open_files(fleet.pids[KEEPER])
    (path,) = [path for path, file in opened.items() if file.startswith("/memfd:baton-pool (")]
    return path.read_bytes()


@pytest.fixture(scope="module")
def kept_fleet(tmp_path_factory, ending_slowly):
    with running_fleet(tmp_path_factory.mktemp("kept"), standbys=1) as running:
        yield running


@pytest.fixture(scope="module")
def calm(kept_fleet):
    return asyncio.run(texts(kept_fleet))


@pytest.fixture
def fleet(kept_fleet, calm):
    """The fleet with an executor that serves and one that waits, whichever of them the test before has ended."""
    for index in range(2):
        if executor_name(index) not in kept_fleet.pids:
            kept_fleet.start_executor(index)
    wait_for_standby(kept_fleet)
    return kept_fleet


def test_a_standby_goes_on_where_a_killed_executor_stopped(fleet, calm):
    before, gone = report(fleet), active(fleet)
    assert asyncio.run(texts(fleet, lambda: fleet.kill_executor(gone))) == calm
    after = report(fleet)
    assert after["recomputed_tokens"] == before["recomputed_tokens"]
    assert after["pools_adopted"] == before["pools_adopted"] + 1
    assert active(fleet) != gone


def test_a_standby_leaves_the_memory_of_another_service_alone(fleet, calm, tmp_path):
    before = report(fleet)
    with running_fleet(tmp_path, keeper=fleet.spec.keeper) as other:
        assert [executor["has_standby"] for executor in report(other)["executors"]] == [False]

        def replace():
            other.kill_executor(0)
            other.start_executor(0)

        assert asyncio.run(texts(other, replace)) == calm
        after = report(other)
        assert (after["pools_adopted"], after["recomputed_tokens"]) == (1, 0)
    wait_for_standby(fleet)
    assert (report(fleet)["executors"][0]["epoch"], len(report(fleet)["executors"])) == (
        before["executors"][0]["epoch"],
        1,
    )


@pytest.mark.slow
def test_a_frozen_executor_is_ended_before_its_pool_is_handed_on(fleet, calm):
    """SIGSTOP in the middle of a step. When the standby has the pool, the frozen process is gone: SIGCONT reaches no
    one, and no byte of the pool changes any more."""
    before, frozen = report(fleet), active(fleet)
    pid = fleet.pids[executor_name(frozen)]
    ended = []

    def freeze():
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: report(fleet)["pools_adopted"] > before["pools_adopted"], timeout_s=30)
        ended.extend(fleet.poll())

    assert asyncio.run(texts(fleet, freeze)) == calm
    assert [(end.name, end.returncode) for end in ended] == [(executor_name(frozen), -signal.SIGKILL)]
    content = pool_bytes(fleet)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    assert pool_bytes(fleet) == content
    assert report(fleet)["recomputed_tokens"] == before["recomputed_tokens"]


def test_a_standby_serves_before_the_process_that_leaves_has_ended(fleet, calm, ending_slowly):
    before, leaving = report(fleet), active(fleet)
    with ending_slowly():
        assert asyncio.run(texts(fleet, lambda: fleet.terminate_executor(leaving))) == calm
        assert fleet.poll() == [], "it still ends"
        after = report(fleet)
        assert after["recomputed_tokens"] == before["recomputed_tokens"]
        assert after["pools_adopted"] == before["pools_adopted"] + 1
        assert active(fleet) != leaving
    assert fleet.wait_executor(leaving) == 0
    assert asyncio.run(texts(fleet)) == calm, "its end changes nothing"


@pytest.mark.slow
def test_what_is_held_outlives_the_keeper_too(fleet, calm):
    """The keeper is killed, and started again as a supervisor would; the executor brings it what it holds."""
    os.kill(fleet.pids[KEEPER], signal.SIGKILL)
    eventually(lambda: [end.name for end in fleet.poll()] == [KEEPER])
    eventually(lambda: not standby_waits(fleet))
    fleet.start_child(KEEPER)
    wait_for_standby(fleet)
    before, gone = report(fleet), active(fleet)
    assert asyncio.run(texts(fleet, lambda: fleet.kill_executor(gone))) == calm
    assert report(fleet)["recomputed_tokens"] == before["recomputed_tokens"]


@pytest.mark.slow
def test_without_a_standby_the_next_process_finds_everything(tmp_path):
    with running_fleet(tmp_path, keeps=True) as fleet:
        calm = asyncio.run(texts(fleet))

        def replace():
            fleet.kill_executor(0)
            fleet.start_executor(0)

        assert asyncio.run(texts(fleet, replace)) == calm
        assert (report(fleet)["recomputed_tokens"], report(fleet)["pools_adopted"]) == (0, 1)
        assert "weights=kept" in fleet.log_tail(executor_name(0))


@pytest.mark.slow
def test_of_executors_with_one_command_line_one_is_in_reserve(tmp_path):
    """As a supervisor runs them that starts each process again as it was: nobody says whose turn it is."""
    with running_fleet(tmp_path, keeps=True, executor_options=("--standby", "auto")) as fleet:
        fleet.start_executor(1)
        wait_for_standby(fleet)
        calm = asyncio.run(texts(fleet))
        for _ in range(2):
            gone = active(fleet)
            assert asyncio.run(texts(fleet, lambda gone=gone: fleet.kill_executor(gone))) == calm
            assert active(fleet) == 1 - gone
            fleet.start_executor(gone)
            wait_for_standby(fleet)
        assert (report(fleet)["recomputed_tokens"], report(fleet)["pools_adopted"]) == (0, 2)


@pytest.mark.chaos
def test_64_streams_while_three_executors_and_a_standby_are_killed_and_frozen(tmp_path):
    """At random, for a minute: with standbys most of it is nothing but a pause."""
    rng = random.Random(1)
    with running_fleet(tmp_path, executors=3, standbys=1) as fleet:
        wait_for_standby(fleet)

        async def disturb():
            deadline = asyncio.get_running_loop().time() + SECONDS
            while asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(rng.uniform(1.0, 6.0))
                for end in fleet.poll():  # frozen ones that the keeper has killed
                    fleet.start_child(end.name)
                name = rng.choice([name for name in fleet.pids if name.startswith("executor-")])
                os.kill(fleet.pids[name], rng.choice([signal.SIGKILL, signal.SIGSTOP]))
            await asyncio.sleep(5.0)
            for name in [name for name in fleet.pids if name.startswith("executor-")]:
                os.kill(fleet.pids[name], signal.SIGCONT)

        async def run():
            url = f"{fleet.spec.url}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0, timeout=300) as client:

                async def text_of(request):
                    stream = await client.completions.create(**request, stream=True)
                    return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

                return await keep_streaming(text_of, disturb)

        print(f"{asyncio.run(run())} streams ended as if nothing had happened; {report(fleet)}")
