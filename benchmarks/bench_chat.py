"""`python benchmarks/bench_chat.py`, from any folder: runs benchmarks/service/bench_chat.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.service.bench_chat import main

    main()
