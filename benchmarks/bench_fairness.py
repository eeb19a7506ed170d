"""`python benchmarks/bench_fairness.py`, from any folder: runs benchmarks/scheduler/bench_fairness.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.scheduler.bench_fairness import main

    main()
