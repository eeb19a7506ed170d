"""Whatever well-formed messages others send, the core goes on and its own requests get the tokens they should."""

import random
from array import array

import msgspec
import pytest

from common import messages as m
from tests.support.any_message import AnyMessage
from tests.support.chores import tick
from tests.support.hello import LIMITS, hello
from tests.support.oracle import OracleExecutor, expected_output
from tests.support.service import Service

HERE = b"legit"
FOREIGN_EXECUTORS = [b"e1", b"e2", b"e3"]
FOREIGN_FRONTENDS = [b"f1", b"f2"]
PARAMS = m.SamplingParams(max_tokens=60)
PROMPTS = {f"legit-{i}": [i, 2, 3, 4] for i in range(6)}


class AmongStrangers(Service):
    """Strange frontends use ids again and again: what they are told is not looked at."""

    def told(self, peer, message):
        if peer == b"web":
            super().told(peer, message)


def step(service):
    """A moment of the executor and the frontend that belong here; others may have it told to leave."""
    service.now += 0.02
    told, service.to_executors = service.to_executors, []
    for message in (message for peer, message in told if peer == HERE):
        if isinstance(message, m.Welcome):
            service.executors["legit"] = OracleExecutor(LIMITS)
        elif isinstance(message, m.EpochOver | m.Leave):
            service.do(service.core.from_executor(HERE, hello("legit"), service.now))
    epoch = next((member.epoch for member in service.core.fleet if member.peer == HERE), 1)
    service.do(service.core.from_executor(HERE, m.ExecutorHeartbeat(epoch=epoch), service.now))
    service.say(m.FrontendHello(pid=1))
    service.do(tick(service.core, service.now))
    service.turn(num_answers=1)


def small(message):
    """The message; a Hello with books that do not take seconds to make, which is what a member of the fleet may do."""
    if not isinstance(message, m.Hello):
        return message
    sizes = {"num_blocks": message.num_blocks % 1000 + 1}
    return msgspec.structs.replace(message, **sizes)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_foreign_messages(seed):
    rng = random.Random(seed)
    service = AmongStrangers(first_epoch=5)
    service.now = 1000.0
    service.join("legit")
    live = {
        "epoch": [5, 6, 7],
        "step": [0, 1, 2],
        "token_ids": [b"\1\0\0\0", b"\1\0\0\0" * 6],
        "executor": ["foreign", "6"],
        "request_id": ["foreign-1", "foreign-2", "foreign-3"],
        "fingerprint": [hello().fingerprint],
        "dtype": [hello().dtype],
        "vocab_size": [LIMITS.vocab_size],
        "prompt": [array("i", [1, 2, 3]).tobytes()],
    }
    from_executors = AnyMessage(m.ExecutorToScheduler, rng, live)
    from_frontends = AnyMessage(m.FrontendToCore, rng, live)
    for request_id, prompt in PROMPTS.items():
        service.submit(request_id, prompt=prompt, max_tokens=PARAMS.max_tokens)
    core = service.core
    for _ in range(400):
        for _ in range(4):
            service.do(core.from_executor(rng.choice(FOREIGN_EXECUTORS), small(from_executors()), service.now))
            service.do(core.from_frontend(rng.choice(FOREIGN_FRONTENDS), from_frontends(), service.now))
        step(service)
        core.scheduler.check()
    for peer in FOREIGN_EXECUTORS:
        service.do(core.executor_gone(peer, service.now))
    for peer in FOREIGN_FRONTENDS:
        service.do(core.frontend_gone(peer, service.now))
    for _ in range(8000):
        if len(service.endings) == len(PROMPTS):
            break
        step(service)
    assert set(service.endings.values()) == {"length"}
    for request_id, prompt in PROMPTS.items():
        assert service.tokens[b"web", request_id, 0] == expected_output(prompt, PARAMS, LIMITS.vocab_size)
