"""Runs seeds and examples that no run has had before, for a while. `.ci/run` does, after the fixed ones.

    python -m tests.fresh --seconds 120 --warnings build/warnings.txt

A failure here is a fault that the change under test need not have made, so it does not fail the run: it is written to
the file of warnings, with the command that replays it, and CI repeats it at its end. The next change mends the fault
and adds the case.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from tests import ROOT

SHARE_OF_SIMULATOR = 0.6
HANGS_AFTER_S = 300.0  # longer than planned: a seed that never ends is a fault, too
ADVICE = "Mend it with the next change, and add the case (CASES in tests/sim/test_sim.py, or an @example)."
DRAWN = (  # what the tests of these files can find is far from used up
    "tests/core/scheduling/test_scheduler_fuzz.py",
    "tests/core/requests/test_group_commit_fuzz.py",
    "tests/core/requests/test_outbox_fuzz.py",
    "tests/store/test_store_fuzz.py",
    "tests/core/requests/test_journal_records.py",
    "tests/executor_svc/service/test_registration.py",
    "tests/common/test_wire.py",
    "tests/common/test_plan.py",
    "tests/frontend/http/test_streaming.py",
    "tests/kernels/gpu/attention/test_work.py",
)


assert all((ROOT / path).is_file() for path in DRAWN), "a file of DRAWN has moved"


def simulate(seconds: float) -> str:
    """Run seeds of the simulator. Returns what it said of those that failed."""
    jobs = str(os.cpu_count() or 1)
    done = _run(seconds + HANGS_AFTER_S, "-m", "tests.sim", "--fresh", str(seconds), "--jobs", jobs)
    lines = done.stdout.split("\n") if done.stdout.strip() else done.stderr.split("\n")
    print([line for line in lines if line.strip()][-1][:400])
    return "" if done.returncode == 0 else _told(done)


def draw(until: float) -> str:
    """Let hypothesis draw new examples until the time is up or one fails. Returns what it said of that one."""
    seed = time.time_ns() % 10**9
    runs = 0
    while time.monotonic() < until:
        seed += 1  # another file each time, and no file first each day
        options = ["-p", "no:xdist", "--hypothesis-profile=fresh", f"--hypothesis-seed={seed}"]
        command = ["-m", "pytest", *options, "-m", "hypothesis and not chaos", DRAWN[seed % len(DRAWN)]]
        done = _run(HANGS_AFTER_S, *command)
        runs += 1
        if done.returncode != 0:
            return f"{_told(done)}\nreplay it with: python {shlex.join(command)}"
    print(f"{runs} runs of hypothesis' examples, none failed")
    return ""


def main() -> int:
    """The command. Returns 0 whatever it finds."""
    parser = argparse.ArgumentParser("python -m tests.fresh", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--warnings", type=Path, required=True, metavar="FILE", help="is only there if one failed")
    options = parser.parse_args()
    options.warnings.unlink(missing_ok=True)
    until = time.monotonic() + options.seconds
    found = [told for told in (simulate(options.seconds * SHARE_OF_SIMULATOR), draw(until)) if told]
    if found:
        warning = "\n\n".join(["FRESH SEEDS HAVE FOUND A FAULT. " + ADVICE, *found])
        options.warnings.parent.mkdir(parents=True, exist_ok=True)
        options.warnings.write_text(warning + "\n")
        print(f"\n{'!' * 80}\n{warning}\n{'!' * 80}\n", flush=True)
    return 0


def _run(timeout_s: float, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The process when it has ended, with exit code 124 if it had to be ended."""
    command = [sys.executable, *arguments]
    try:
        return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace")
        return subprocess.CompletedProcess(command, 124, said, f"it did not end within {timeout_s:.0f} s")


def _told(done: subprocess.CompletedProcess[str]) -> str:
    """The end of what a process said."""
    return (done.stdout + done.stderr)[-4000:].strip()


if __name__ == "__main__":
    sys.exit(main())
