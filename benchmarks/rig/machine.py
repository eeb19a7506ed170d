"""The machine that a benchmark runs on."""

import os
from pathlib import Path


def all_threads() -> int:
    """The number of threads that an executor with this process's CPUs takes by default."""
    return len(os.sched_getaffinity(0))


def processor() -> str:
    """The processor's name; empty where Linux does not tell."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
