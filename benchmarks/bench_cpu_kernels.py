"""`python benchmarks/bench_cpu_kernels.py`, from any folder: runs benchmarks/kernels/bench_cpu_kernels.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.kernels.bench_cpu_kernels import main

    main()
