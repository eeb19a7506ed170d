"""`python benchmarks/bench_forced_tokens.py`, from any folder: runs benchmarks/constraints/bench_forced_tokens.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.constraints.bench_forced_tokens import main

    main()
