"""`python benchmarks/bench_gguf.py`, from any folder: runs benchmarks/cpu/bench_gguf.py."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.cpu.bench_gguf import main

    main()
