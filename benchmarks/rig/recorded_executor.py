"""The executor service with a recorder around its runner. `Services` starts it instead of `-m executor_svc`.

    python -m benchmarks.rig.recorded_executor FOLDER PROFILED_ROWS PROFILED_STEPS [options of baton-executor]

When it ends it writes `steps.msgpack` to the folder. With PROFILED_STEPS it writes traces there, too. With 0 steps
torch's profiler is never started, because starting it already makes the launch of a kernel slower. Of several ranks,
only the first one records.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import executor_svc.startup
from benchmarks.rig.step_profiler import StepProfiler
from benchmarks.rig.step_records import RecordedRunner, recording
from executor_svc.__main__ import main as executor
from executor_svc.options import ExecutorOptions
from executor_svc.startup import Started

STEPS_FILE = "steps.msgpack"


def main() -> None:
    """Run the executor's own command line with a recorded runner."""
    folder, num_rows, num_steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    arguments = sys.argv[4:]
    if os.environ.get("RANK", "0") != "0":
        executor(arguments)
    start_executor = executor_svc.startup.start_executor
    with recording() as recorder:

        def start(options: ExecutorOptions, *keepers: Any) -> Started:
            profiler = StepProfiler(folder, num_rows, num_steps) if num_steps else None
            started = start_executor(options, *keepers)
            recorded: Any = RecordedRunner(started.runner, recorder, profiler)
            return replace(started, runner=recorded)

        executor_svc.startup.start_executor = start  # type: ignore[assignment]  # the command line calls it there
        try:
            executor(arguments)
        finally:
            recorder.save(folder / STEPS_FILE)


if __name__ == "__main__":
    main()
