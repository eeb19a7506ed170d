"""docs/protocol.md names every message with its fields in order, and the numbers it quotes are those of the code."""

import re

import pytest

from common import messages as m
from common.heartbeats import HEARTBEAT_INTERVAL_S, LOSS_TIMEOUT_S
from common.wire import HEADER, MAX_MESSAGE_BYTES
from tests import ROOT

DOC = (ROOT / "docs" / "protocol.md").read_text()
DIRECTIONS = (
    m.ExecutorToScheduler,
    m.SchedulerToExecutor,
    m.FrontendToCore,
    m.CoreToFrontend,
    m.ToKeeper,
    m.FromKeeper,
)
MESSAGES = [message for direction in DIRECTIONS for message in direction.__args__]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_message_has_its_row(message):
    row = re.search(rf"^\| `{message.__name__}` \|(.*?)\|", DOC, re.MULTILINE)
    assert row, f"{message.__name__} is not documented"
    assert tuple(re.findall(r"`(\w+)`", row[1])) == message.__struct_fields__


@pytest.mark.parametrize(
    "part",
    [
        *(m.SamplingParams, m.Constraints, m.LaneStart, m.Pool, m.TokenDelta, m.TaskState, m.BlockChanges),
        *(m.Charge, m.Rate),
        *(m.PoolKind, m.WeightsKind, m.KeptPool, m.KeptWeights),
    ],
    ids=lambda part: part.__name__,
)
def test_nested_structs_are_listed(part):
    listed = re.search(rf"`{part.__name__}` \(in `\w+`\): (.*?)\.", DOC, re.DOTALL)
    assert tuple(re.findall(r"`(\w+)`", listed[1])) == part.__struct_fields__


def test_numbers():
    assert f"`{HEADER.decode()}`" in DOC
    assert f"Version {m.PROTOCOL_VERSION}; between executors and a keeper, version {m.KEEPER_VERSION}." in DOC
    assert f"every {HEARTBEAT_INTERVAL_S} s" in DOC
    assert f"{LOSS_TIMEOUT_S} s of silence" in DOC
    assert f"{MAX_MESSAGE_BYTES // 2**20} MiB" in DOC
