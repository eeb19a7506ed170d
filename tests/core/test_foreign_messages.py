"""Whatever well-formed messages others send, the core goes on and its own requests get the tokens they should."""

import random
from array import array

import msgspec
import pytest

from common import messages as m
from scheduler_svc.core.actions import SendToExecutor, SendToFrontend, WriteLog
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.core import Core
from tests.support.any_message import AnyMessage
from tests.support.chores import done, tick
from tests.support.hello import LIMITS, hello
from tests.support.oracle import OracleExecutor, expected_output

HERE, FRONT = b"legit executor", b"legit frontend"
FOREIGN_EXECUTORS = [b"e1", b"e2", b"e3"]
FOREIGN_FRONTENDS = [b"f1", b"f2"]
PARAMS = m.SamplingParams(max_tokens=60)
PROMPTS = {f"legit-{i}": [i, 2, 3, 4] for i in range(6)}


class World:
    """A core, one executor that works, one frontend that listens; time passes only here."""

    def __init__(self, rng):
        self.rng = rng
        self.now = 1000.0
        self.core = Core(CoreConfig("model", first_epoch=5), self.now)
        self.oracle = OracleExecutor(LIMITS)
        self.epoch = 0
        self.answers = []
        self.tokens = {request_id: [] for request_id in PROMPTS}
        self.ended = {}

    def do(self, actions):
        for action in actions:
            match action:
                case SendToExecutor(peer, message) if peer == HERE:
                    self.executor_gets(message)
                case SendToFrontend(peer, m.Outputs(deltas=deltas)) if peer == FRONT:
                    self.frontend_gets(deltas)
                case SendToExecutor() | SendToFrontend() | WriteLog():
                    pass

    def executor_gets(self, message):
        match message:
            case m.Welcome(epoch):
                self.epoch, self.oracle, self.answers = epoch, OracleExecutor(LIMITS), []
            case m.Plan():
                self.answers.append(self.oracle.run(message))
            case m.EpochOver() | m.Leave():
                self.do(self.core.from_executor(HERE, hello("legit"), self.now))

    def frontend_gets(self, deltas):
        for delta in deltas:
            assert delta.request_id not in self.ended
            self.tokens[delta.request_id] += array("i", delta.token_ids)
            if delta.finish_reason is not None:
                self.ended[delta.request_id] = delta.finish_reason

    def step(self):
        """A moment of those that belong here."""
        self.now += 0.02
        if self.answers:
            self.do(self.core.from_executor(HERE, self.answers.pop(0), self.now))
        self.do(self.core.from_executor(HERE, m.ExecutorHeartbeat(epoch=self.epoch), self.now))
        self.do(self.core.from_frontend(FRONT, m.FrontendHello(pid=1), self.now))
        self.do(tick(self.core, self.now))
        self.do(done(self.core.plans(self.now)))
        for peer in self.core.frontends_with_outputs():
            message = self.core.next_output(peer)
            self.core.output_sent(peer)
            if peer == FRONT and isinstance(message, m.Outputs):
                self.frontend_gets(message.deltas)


def small(message):
    """The message; a Hello with books that do not take seconds to make, which is what a member of the fleet may do."""
    if not isinstance(message, m.Hello):
        return message
    sizes = {"num_blocks": message.num_blocks % 1000 + 1}
    return msgspec.structs.replace(message, **sizes)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_foreign_messages(seed):
    rng = random.Random(seed)
    world = World(rng)
    world.do(world.core.from_executor(HERE, hello("legit"), world.now))
    live = {
        "epoch": [world.epoch, world.epoch + 1, world.epoch + 2, 5],
        "step": [0, 1, 2],
        "token_ids": [b"\1\0\0\0", b"\1\0\0\0" * 6],
        "executor": ["foreign", str(world.epoch + 1)],
        "request_id": ["foreign-1", "foreign-2", "foreign-3"],
        "fingerprint": [hello().fingerprint],
        "dtype": [hello().dtype],
        "vocab_size": [LIMITS.vocab_size],
        "prompt": [array("i", [1, 2, 3]).tobytes()],
    }
    from_executors = AnyMessage(m.ExecutorToScheduler, rng, live)
    from_frontends = AnyMessage(m.FrontendToCore, rng, live)
    for request_id, prompt in PROMPTS.items():
        submit = m.Submit(request_id=request_id, prompt=array("i", prompt).tobytes(), params=PARAMS)
        world.do(world.core.from_frontend(FRONT, submit, world.now))
    for _ in range(400):
        for _ in range(4):
            world.do(world.core.from_executor(rng.choice(FOREIGN_EXECUTORS), small(from_executors()), world.now))
            world.do(world.core.from_frontend(rng.choice(FOREIGN_FRONTENDS), from_frontends(), world.now))
        world.step()
        world.core.scheduler.check()
    for peer in FOREIGN_EXECUTORS:
        world.do(world.core.executor_gone(peer, world.now))
    for peer in FOREIGN_FRONTENDS:
        world.do(world.core.frontend_gone(peer, world.now))
    for _ in range(8000):
        if len(world.ended) == len(PROMPTS):
            break
        world.step()
    assert set(world.ended.values()) == {"length"}
    for request_id, prompt in PROMPTS.items():
        assert world.tokens[request_id] == expected_output(prompt, PARAMS, LIMITS.vocab_size)
