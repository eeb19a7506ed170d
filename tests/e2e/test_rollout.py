"""Executors are drained and replaced while streams go on, which none of those who read them can tell."""

import asyncio
import os
import re
import shlex
import signal

import openai
import pytest

from scheduler_svc.client.processes.local_fleet import executor_name
from tests.e2e.service import Service, output_of, start_baton, status
from tests.support.eventually import eventually
from tests.support.fleets import running_fleet

SPEAKERS = ("ROMEO", "JULIET", "KING RICHARD III", "First Citizen", "MENENIUS", "GLOUCESTER")


@pytest.fixture(scope="module")
def two_executors(tmp_path_factory):
    with running_fleet(tmp_path_factory.mktemp("fleet"), executors=2) as running:
        yield running


@pytest.fixture
def fleet(two_executors):
    """One of executors 0 and 1, whatever the test before has ended."""
    for index in range(2):
        if executor_name(index) not in two_executors.pids:
            two_executors.start_executor(index)
    wait_for_executors(two_executors.spec.url)
    return two_executors


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with Service(tmp_path_factory.mktemp("service"), executors=2) as running:
        yield running


def wait_for_executors(url):
    eventually(lambda: sorted(names_and_epochs(url)) == [executor_name(0), executor_name(1)])


def names_and_epochs(url):
    return {executor["executor"]: executor["epoch"] for executor in status(url)["executors"]}


class Load:
    """Streams that are started anew when they end, and whose texts must be those of an idle service."""

    def __init__(self, url):
        self._url = f"{url}/v1"

    def during(self, act):
        """The result of `act`, a function that runs in a thread while the streams go on."""
        return asyncio.run(self._during(act))

    async def _during(self, act):
        async with openai.AsyncOpenAI(base_url=self._url, api_key="x", max_retries=0, timeout=120) as client:
            expected = await asyncio.gather(*(text_of(client, i) for i in range(len(SPEAKERS))))
            acting = asyncio.create_task(asyncio.to_thread(act))

            async def keep_streaming(i):
                while not acting.done():
                    assert await text_of(client, i) == expected[i], f"stream {i} was disturbed"

            await asyncio.gather(*map(keep_streaming, range(len(SPEAKERS))))
            return await acting


async def text_of(client, i):
    sampled = {"temperature": 0.8, "seed": i, "top_p": 0.95} if i % 2 else {"temperature": 0}
    prompt = f"{SPEAKERS[i]}:\nThe {i}th time I say, "
    stream = await client.completions.create(
        model="baton-demo", prompt=prompt, max_tokens=80, **sampled, stream=True, extra_body={"ignore_eos": True}
    )
    return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_rollout_under_a_supervisor(service):
    """`baton up` starts a successor for each executor that leaves."""
    wait_for_executors(service.url)
    before, said = names_and_epochs(service.url), len(service.log())
    stdout = Load(service.url).during(lambda: service.run("rollout", "--timeout", 90))
    after = names_and_epochs(service.url)
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    assert re.findall(r"^(executor-\d) +(\d+) +(\d+)", stdout, re.MULTILINE) == [
        (name, str(before[name]), str(after[name])) for name in before
    ]
    assert service.log()[said:].count("exited with code 0; starting it again now") == 2


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_rollout_goes_on_when_the_scheduler_is_killed(service):
    """All epochs change with that, which does not make the executors other ones."""
    wait_for_executors(service.url)
    pids = {executor["pid"] for executor in service.status()["executors"]}
    answer = ("generate", "ROMEO:", "--max-tokens", 400, "--ignore-eos", "--temperature", 0)
    undisturbed = service.run(*answer)
    stream = service.start(*answer)
    rollout = service.start("rollout", "--timeout", 90)
    while b"2/2 " not in (said := rollout.stderr.read(1000)):
        assert said, "it ended early"
    service.kill_scheduler()
    assert output_of(stream) == undisturbed
    stdout, stderr = rollout.communicate(timeout=120)
    assert rollout.returncode == 0, stderr
    assert stdout.count(b"executor-") == 2 * 2
    assert not pids & {executor["pid"] for executor in service.status()["executors"]}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_rollout_that_starts_the_successors_itself(fleet, tmp_path):
    """There is no supervisor here, and the fleet is never smaller than it was."""
    url, spec = fleet.spec.url, fleet.spec
    successor = [*spec.executor_command, "--scheduler", f"tcp://127.0.0.1:{spec.executor_port}", "--name", "successor"]
    command = shlex.join([*successor, *spec.executor_options])
    process = start_baton(url, "rollout", "--replace-with", command, "--log-dir", tmp_path, "--timeout", 90)
    stdout, stderr = Load(url).during(process.communicate)
    pids = [int(pid) for pid in re.findall(rb"started a successor \(pid (\d+)\)", stderr)]
    try:
        assert process.returncode == 0, stderr
        assert stdout.count(b"successor") == 1 + 2, "in the head of the table and in each line"
        assert [fleet.wait_executor(i) for i in (0, 1)] == [0, 0]
        assert [executor["pid"] for executor in status(url)["executors"]] == pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_rollout_without_successors_stops_and_leaves_the_rest_alone(fleet):
    process = start_baton(fleet.spec.url, "rollout", "--timeout", 4)
    _, stderr = Load(fleet.spec.url).during(process.communicate)
    assert process.returncode == 1
    (left,) = re.findall(rb"no successor of executor-(\d) came within 4 s \(1 of 2 executors are ready\)", stderr)
    assert list(names_and_epochs(fleet.spec.url)) == [f"executor-{1 - int(left)}"]
    assert fleet.wait_executor(int(left)) == 0
    assert fleet.poll() == []


@pytest.mark.timeout(120)
@pytest.mark.slow
@pytest.mark.parametrize("finish", [pytest.param([], id="hand over"), pytest.param(["--finish"], id="finish")])
def test_a_drained_executor_leaves_in_order(fleet, finish):
    command = ("drain", "executor-1", *finish)
    said = Load(fleet.spec.url).during(lambda: output_of(start_baton(fleet.spec.url, *command)))
    assert re.fullmatch(r"executor-1 \(epoch \d+\) has left after [\d.]+ s; it ran \d sequences\n", said)
    assert list(names_and_epochs(fleet.spec.url)) == ["executor-0"]
    assert fleet.wait_executor(1) == 0
