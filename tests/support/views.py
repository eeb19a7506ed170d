"""Views as a core might send them, for tests of what pages are told."""

from typing import Any

import numpy as np

from common import messages as m
from tests.support.status_reports import executor_status, status_report

EPOCH = 7
NUM_BLOCKS = 8
REPORT = status_report(executors=[executor_status(epoch=EPOCH, num_blocks=NUM_BLOCKS)])


def waiting(request: str, client: str = "", **fields: Any) -> m.WaitingSequence:
    """One that waits, since second 90 of the core's time."""
    usual = {"index": 0, "tokens": 12, "output": 0, "priority": 0, "since": 90.0, "reason": "memory"}
    return m.WaitingSequence(request=request, client=client, **(usual | fields))


def running(request: str, client: str = "", **fields: Any) -> m.RunningSequence:
    """One that runs, since second 95."""
    return m.RunningSequence(request=request, client=client, **({"index": 0, "epoch": EPOCH, "since": 95.0} | fields))


def event(number: int, **fields: Any) -> m.FleetEvent:
    """An event of second 80."""
    usual = {"at": 80.0, "kind": "joined", "executor": "one", "epoch": EPOCH}
    return m.FleetEvent(number=number, **(usual | fields))


def blocks(changed: dict[int, int] | None = None, found: dict[int, int] | None = None) -> m.BlockChanges:
    """Blocks with their states."""
    return m.BlockChanges(epoch=EPOCH, changed=encoded(changed or {}), found=encoded(found or {}))


def encoded(states: dict[int, int]) -> bytes:
    """As they travel."""
    return np.array([8 * block + state for block, state in states.items()], "<i4").tobytes()


def fresh(number: int = 0, **fields: Any) -> m.View:
    """A View that tells everything."""
    usual = {"at": 100.0, "report": REPORT, "waiting": (), "running": ()}
    return m.View(number=number, is_fresh=True, **(usual | fields))


def change(number: int, **fields: Any) -> m.View:
    """A View of what has changed."""
    return m.View(number=number, is_fresh=False, **({"at": 100.0} | fields))
