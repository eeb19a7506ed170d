"""A router beside the whole service with the demo model: it knows what is cached through everything that happens."""

import os
import signal

import httpx
import pytest

from scheduler_svc.client.processes.local_fleet import SCHEDULER, free_ports
from tests.support.eventually import eventually
from tests.support.fleets import running_fleet
from tests.support.kv_listener import KvListener, replay
from tests.support.kv_readers import Subscriber

BLOCK_SIZE = 16
PREFIX = [5 + i * 7 % 400 for i in range(4 * BLOCK_SIZE)]


def prompt(number: int) -> list[int]:
    """The common beginning and two blocks of its own, and one token more."""
    return [*PREFIX, *(3 + (number * 131 + i * 17) % 450 for i in range(2 * BLOCK_SIZE + 1))]


def complete(fleet, tokens, max_tokens=1, **fields):
    body = {"model": "baton-demo", "prompt": tokens, "max_tokens": max_tokens, "temperature": 0, **fields}
    answer = httpx.post(f"{fleet.spec.url}/v1/completions", json=body, timeout=120)
    answer.raise_for_status()
    return answer.json()


def report(fleet):
    return httpx.get(f"{fleet.spec.url}/status").json()


def num_cached(fleet):
    return sum(executor["cached_blocks"] for executor in report(fleet)["executors"])


@pytest.fixture(scope="module")
def ports():
    return [f"tcp://127.0.0.1:{port}" for port in free_ports(2)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, ports):
    events, again = ports
    options = ("--kv-events", events, "--kv-events-replay", again, "--kv-events-topic", "kv@pod@baton-demo")
    few = ("--num-blocks", "64", "--block-size", str(BLOCK_SIZE))
    with running_fleet(
        tmp_path_factory.mktemp("events"), keeps=True, scheduler_options=options, executor_options=few
    ) as running:
        yield running


@pytest.fixture
def router(ports):
    with KvListener(ports[0], b"kv@") as listener:
        yield listener


def knows_all(fleet, router):
    return lambda: len(router.known.blocks) == num_cached(fleet) > 0


def test_a_router_knows_what_a_prompt_will_find(fleet, router, ports):
    complete(fleet, prompt(1))
    complete(fleet, prompt(2))
    router.listen_until(knows_all(fleet, router))
    assert len(router.known.blocks) == 4 + 2 + 2, "the prefix is there once"
    for number, expected in [(1, 6), (2, 6), (3, 4)]:
        assert router.known.match(prompt(number), BLOCK_SIZE) == expected * BLOCK_SIZE
        usage = complete(fleet, prompt(number))["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == expected * BLOCK_SIZE
    router.listen_until(knows_all(fleet, router))
    late = Subscriber()
    for topic, _, batch in replay(ports[1], 0):
        assert topic == b"kv@pod@baton-demo"
        late.take(batch)
    assert late.blocks == router.known.blocks, "who asks for all of it knows the same"


@pytest.mark.slow
def test_tenants_stay_unseen(fleet, router):
    complete(fleet, prompt(1))
    router.listen_until(lambda: router.known.match(prompt(1), BLOCK_SIZE) == 6 * BLOCK_SIZE)
    known, cached = dict(router.known.blocks), num_cached(fleet)
    secret = [7] * (3 * BLOCK_SIZE)
    complete(fleet, secret, cache_salt="alice")
    assert num_cached(fleet) == cached + 3
    complete(fleet, prompt(1), max_tokens=2 * BLOCK_SIZE)  # something that is told, so that all before has come
    router.listen_until(lambda: len(router.known.blocks) > len(known))
    assert router.known.match(secret, BLOCK_SIZE) == 0
    assert not any(set(block.tokens) == {7} for block in router.known.blocks.values())


@pytest.mark.slow
def test_what_is_handed_out_anew_is_gone_for_the_router(fleet, router):
    """Long answers, eight at once: blocks change hands."""
    complete(fleet, prompt(9))
    bodies = [{"prompt": [11 + i, *range(20, 60)], "max_tokens": 220} for i in range(16)]
    with httpx.Client(timeout=120) as client:
        for half in (bodies[:8], bodies[8:]):
            body = {"model": "baton-demo", "prompt": [each["prompt"] for each in half], "max_tokens": 220}
            client.post(f"{fleet.spec.url}/v1/completions", json=body | {"temperature": 0}).raise_for_status()
    router.listen_until(lambda: len(router.known.blocks) > 20)
    router.listen_until(lambda: router.known.match(prompt(9), BLOCK_SIZE) == 0)
    found = complete(fleet, prompt(9))["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert found == 0
    router.listen_until(lambda: router.known.match(prompt(9), BLOCK_SIZE) == 6 * BLOCK_SIZE)


@pytest.mark.slow
def test_an_adopted_pool_is_told_of_as_if_nothing_had_happened(fleet, router):
    complete(fleet, prompt(1))
    router.listen_until(lambda: router.known.match(prompt(1), BLOCK_SIZE) == 6 * BLOCK_SIZE)
    num_clears, adopted = router.known.num_clears, report(fleet)["pools_adopted"]
    fleet.kill_executor(0)
    fleet.start_executor(0)
    eventually(lambda: report(fleet)["pools_adopted"] == adopted + 1)
    assert complete(fleet, prompt(1))["usage"]["prompt_tokens_details"]["cached_tokens"] == 6 * BLOCK_SIZE
    complete(fleet, prompt(77))
    router.listen_until(lambda: router.known.match(prompt(77), BLOCK_SIZE) == 6 * BLOCK_SIZE)
    assert router.known.match(prompt(1), BLOCK_SIZE) == 6 * BLOCK_SIZE
    assert router.known.num_clears == num_clears


@pytest.mark.slow
def test_a_scheduler_that_is_killed_leaves_nothing_stale(fleet, router):
    """Its journal does not say what was cached, so all that was is forgotten, here and at the router."""
    complete(fleet, prompt(1))
    router.listen_until(lambda: router.known.match(prompt(1), BLOCK_SIZE) == 6 * BLOCK_SIZE)
    os.kill(fleet.pids[SCHEDULER], signal.SIGKILL)
    eventually(lambda: SCHEDULER in [end.name for end in fleet.poll()])
    fleet.start_child(SCHEDULER)
    router.listen_until(lambda: not router.known.blocks)
    fleet.wait_ready()
    complete(fleet, prompt(2))
    router.listen_until(knows_all(fleet, router))
    assert router.known.match(prompt(1), BLOCK_SIZE) == 4 * BLOCK_SIZE
