"""`python benchmarks/bench_ray.py`, from any folder: runs benchmarks/service/bench_ray.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.service.bench_ray import main

    main()
