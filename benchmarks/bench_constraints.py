"""`python benchmarks/bench_constraints.py`, from any folder: runs benchmarks/constraints/bench_constraints.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.constraints.bench_constraints import main

    main()
