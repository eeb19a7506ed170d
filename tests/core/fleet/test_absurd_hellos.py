"""Executors that promise more than any machine has: the core's books cost what is used, not what is claimed."""

import tracemalloc

import msgspec
import numpy as np
import pytest

from common import messages as m
from scheduler_svc.core.actions import SendToExecutor, WriteLog
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.executor.block_manager import BOOKS_AT_ONCE
from scheduler_svc.core.executor.lanes import INITIAL_LANES
from scheduler_svc.core.fleet.fleet import MAX_MEMBERS
from scheduler_svc.core.fleet.hello_check import MAX_BLOCKS, MAX_LANES
from scheduler_svc.core.observability.timeline import Timeline
from tests.support.chores import done
from tests.support.hello import hello
from tests.support.submits import submit

FRONT = b"frontend"
CLAIMS = {
    "num_blocks": MAX_BLOCKS,
    "block_size": 16,
    "max_num_seqs": MAX_LANES,
    "max_batch_tokens": 2**20,
    "max_model_len": 2**15,
}


@pytest.fixture
def core():
    return Core(CoreConfig("model", first_epoch=5), 1000.0)


def joins(core, name, **claims):
    """Whether the executor is welcomed."""
    said = msgspec.structs.replace(hello(name), **claims)
    actions = core.from_executor(name.encode(), said, 1000.0)
    [answer] = [a.message for a in actions if isinstance(a, SendToExecutor)]
    return isinstance(answer, m.Welcome), answer


def ask(core, number, prompt, max_tokens=4):
    core.from_frontend(FRONT, submit(f"r-{number}", prompt, max_tokens=max_tokens), 1000.0)


def test_what_is_claimed_costs_nothing(core):
    assert joins(core, "first", **CLAIMS)[0]
    tracemalloc.start()
    for i in range(20):
        assert joins(core, f"absurd {i}", **CLAIMS)[0]
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(held, peak) / 20 < 2**18
    for executor in core.scheduler.sequences.executors.values():
        assert len(executor.blocks.keys) == 0
        assert len(executor.running.lanes.sequences) == INITIAL_LANES


def test_books_grow_with_what_is_used(core):
    assert joins(core, "one", **CLAIMS)[0]
    [executor] = core.scheduler.sequences.executors.values()
    for number in range(3 * INITIAL_LANES):
        ask(core, number, [(number + i) % 900 for i in range(40)])
    assert done(core.plans(1000.1))
    running = executor.running
    assert len(running) == 3 * INITIAL_LANES
    assert len(running.lanes.sequences) == 4 * INITIAL_LANES
    assert sorted(running.lanes.free) == list(range(3 * INITIAL_LANES, 4 * INITIAL_LANES))
    used = MAX_BLOCKS - executor.blocks.num_free
    assert used == sum(len(running.lanes.tables[lane].ids) for lane in running.order)
    assert len(executor.blocks.keys) == BOOKS_AT_ONCE
    core.scheduler.check()


def test_lanes_that_were_not_written_to_are_not_copied(core):
    """As books grow, memory that is only claimed would be taken from the system."""
    assert joins(core, "one", **CLAIMS)[0]
    [executor] = core.scheduler.sequences.executors.values()
    ask(core, 0, range(40), max_tokens=2**15 - 40)
    assert done(core.plans(1000.1))
    lanes = executor.running.lanes
    lanes.tokens[:, 40:] = 7
    before = lanes.tokens
    lanes._make_lanes(1)
    assert np.array_equal(lanes.tokens[0, :40], before[0, :40])
    assert lanes.tokens.shape[1] == 2**15
    assert (lanes.tokens[:, 40:] != 7).any()


def test_a_fleet_has_so_many_members_and_one_more_harms_none_of_them(core):
    """It is not told to end, either: there may be room later."""
    for i in range(MAX_MEMBERS):
        assert joins(core, f"member {i}")[0]
    [line] = core.from_executor(b"one more", hello("one more"), 1000.0)
    assert line.facts["reason"] == f"{MAX_MEMBERS} executors are in this fleet, the limit is {MAX_MEMBERS}"
    assert line.is_seldom
    assert len(core.fleet) == len(core.scheduler.sequences.executors) == MAX_MEMBERS
    core.executor_gone(b"member 3", 1000.0)
    assert joins(core, "one more")[0]


@pytest.mark.parametrize(
    "farewell",
    [lambda epoch: m.StepFailed(epoch=epoch, step=1, error="x" * 4096), lambda epoch: m.Leaving(epoch=epoch)],
    ids=["failed", "leaving"],
)
def test_one_that_comes_and_goes_joins_no_oftener_than_it_may(core, farewell):
    epochs, logged = [], []
    for turn in range(100):
        actions = core.from_executor(b"restless", hello("restless"), 1000.0 + turn / 100)
        sent = [action.message for action in actions if isinstance(action, SendToExecutor)]
        epochs += [message.epoch for message in sent if isinstance(message, m.Welcome)]
        actions += core.from_executor(b"restless", farewell(epochs[-1]), 1000.0 + turn / 100)
        logged += [len(str(action.facts)) for action in actions if isinstance(action, WriteLog)]
    assert len(epochs) == 2
    assert len(logged) <= 6
    assert max(logged) < 1000


@pytest.mark.parametrize("field", ["num_blocks", "max_num_seqs", "block_size"])
def test_one_that_is_refused_leaves_nothing(core, field):
    assert joins(core, "member")[0]
    for i in range(50):
        welcome, answer = joins(core, f"absurd {i}", **{field: 2**31 - 1})
        assert not welcome
        assert "the limit is" in answer.reason
    assert len(core.fleet) == len(core.scheduler.executors) == 1


@pytest.mark.parametrize(
    "field", ["executor", "node", "device", "build", "fingerprint", "dtype", "tokenizer", "grammars"]
)
def test_a_name_that_would_forge_a_line_is_refused(core, field):
    forged = "a\nready  b\x1b[2J"
    said = msgspec.structs.replace(hello("forger"), **{field: forged})
    [line, answer] = core.from_executor(b"forger", said, 1000.0)
    assert answer.message == m.Reject(reason=f"{field} is {forged!r}, and only printable characters are allowed in it")
    assert (told(line).executor + told(line).reason).isprintable()


def test_what_an_executor_says_of_its_failure_forges_no_line():
    line = WriteLog("warning", "executor lost", {"executor": "a", "epoch": 1, "reason": "it said: no\nready  b"})
    assert told(line).reason == "it said: no\\nready  b"


def told(line):
    """The event that people are shown of a line of the log."""
    timeline = Timeline()
    timeline.logged(line, 1000.0)
    [event] = timeline.last(1)
    return event
