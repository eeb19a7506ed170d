"""`python benchmarks/bench_autoscale.py`, from any folder: runs benchmarks/scheduler/bench_autoscale.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.scheduler.bench_autoscale import main

    main()
