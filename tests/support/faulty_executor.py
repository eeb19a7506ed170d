"""`python -m tests.support.faulty_executor FAULT_FILE OPTIONS...`: baton-executor, and its steps fail when told to.

The word in FAULT_FILE is taken (the file is removed) by the next step:

    oom     torch is asked for more memory than there is, and says so
    hang    the step takes a minute, while the heartbeats go on
    die     the process ends, as it would by a fault in a kernel

With the environment variable BATON_TEST_PROTOCOL it speaks that version of the protocol, and makes no pause before it
ends for that reason.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from common import messages, wire
from common.plan import PlanColumns
from executor_svc import __main__ as executor
from executor_svc.runner.asked_steps import PendingStep
from executor_svc.runner.runner import Runner
from executor_svc.service import registration

HANG_S = 60.0


def break_runner(fault_file: Path) -> None:
    """Make every Runner look for a fault before each step."""
    launch = Runner.launch

    def faulty(self: "Runner[Any]", columns: PlanColumns) -> PendingStep:
        match take(fault_file):
            case "oom":
                torch.empty(2**58, dtype=torch.uint8)
            case "hang":
                time.sleep(HANG_S)
            case "die":
                os._exit(139)
        return launch(self, columns)

    Runner.launch = faulty  # type: ignore[method-assign]


def take(fault_file: Path) -> str:
    """The word in the file, which is gone then."""
    try:
        word = fault_file.read_text()
        fault_file.unlink()
    except FileNotFoundError:
        return ""
    return word


if __name__ == "__main__":
    if version := os.environ.get("BATON_TEST_PROTOCOL"):
        messages.PROTOCOL_VERSION = int(version)
        registration.PAUSE_S = 0.0
        wire.HEADER = wire.HEADER_MAGIC + version.encode()
    break_runner(Path(sys.argv.pop(1)))
    executor.main()
