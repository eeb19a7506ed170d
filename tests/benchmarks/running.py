"""Runs a benchmark as a user does, in a process of its own, and reads what it prints."""

import json
import subprocess
import sys
from typing import Any

from tests import ROOT

BENCHMARKS = ROOT / "benchmarks"


def run(*words: object, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
    """Run `python benchmarks/WORDS`, or `python benchmarks ROOM.MODULE ...` for `.` as the first word."""
    first, *others = map(str, words)
    command = [sys.executable, str(BENCHMARKS / first), *others]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_s)


def lines(*words: object) -> list[dict[str, Any]]:
    """Return the figures that a benchmark prints, which ends well."""
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def figures(*words: object) -> dict[str, Any]:
    """Return the only line of figures that a benchmark prints, which ends well."""
    (line,) = lines(*words)
    return line
