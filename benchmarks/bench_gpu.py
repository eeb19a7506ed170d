"""`python benchmarks/bench_gpu.py`, from any folder: runs benchmarks/gpu/bench_gpu.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.gpu.bench_gpu import main

    main()
