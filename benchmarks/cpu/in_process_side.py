"""`InProcess` on bench_cpu.py's requests. bench_cpu.py starts it as a process, because its main thread is pinned.

python -m benchmarks.cpu.in_process_side [options of baton-executor] SOCKET_FD
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from benchmarks.cpu.parent_lines import ParentLines
from benchmarks.rig.in_process import in_process
from benchmarks.rig.service_load import submits, with_outputs
from benchmarks.rig.workloads import WorkloadRequest
from common.logging import setup_logging
from scheduler_svc.core.scheduling.config import SchedulerConfig


def main(arguments: Sequence[str], fd: int) -> None:
    """Run what the parent asks for."""
    setup_logging("bench", "warning")
    parent = ParentLines(fd)
    messages = parent.messages()
    wanted = next(messages)
    requests = [WorkloadRequest(0.0, np.array(prompt, np.int32), outputs) for prompt, outputs in wanted["requests"]]
    with in_process(arguments, SchedulerConfig(max_waiting=len(requests))) as process:
        parent.answer({})
        for message in messages:
            name, limit = message["name"], message["limit"]
            asked = requests if limit is None else with_outputs(requests, limit)
            parent.answer(asdict(process.run(submits(asked, name))))


if __name__ == "__main__":
    main(sys.argv[1:-1], int(sys.argv[-1]))
