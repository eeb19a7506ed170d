"""`python benchmarks/bench_page.py`, from any folder: runs benchmarks/service/bench_page.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.service.bench_page import main

    main()
