"""`python benchmarks/bench_open_requests.py`, from any folder: runs benchmarks/service/bench_open_requests.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.service.bench_open_requests import main

    main()
