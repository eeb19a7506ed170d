"""Health check of an executor's container: exit code 0 if the executor is healthy.

    python -S executor_health.py FILE MAX_AGE_S            ready: it is in the fleet and hears the scheduler
    python -S executor_health.py FILE MAX_AGE_S --alive    alive: its loop has not stopped

FILE is what `baton-executor --health-file` names: the executor touches it at every heartbeat of the scheduler and
removes it when it is not, or no longer, in the fleet. So an executor is ready while the file is there and fresh. A
standby, which is in no fleet, touches it while a keeper knows that it waits, and is ready so.

An executor need not be ready to be alive. While it loads its weights, or has no scheduler to talk to, there is no file;
restarting it would only lose the weights that it has loaded. But a file that is there and old belongs to an executor
whose loop has stopped: a running loop would have removed the file after two seconds of silence.

The check looks only at the file: no dependencies, no network, a few milliseconds.
"""

import os
import sys
import time


def age_s(path: str) -> float | None:
    """Seconds since the file was touched; None if there is none."""
    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return None


def complaint(path: str, max_age_s: float, *, alive_is_enough: bool = False) -> str | None:
    """What is wrong with the executor; None if it is healthy."""
    age = age_s(path)
    if age is None:
        return None if alive_is_enough else f"not in the fleet: there is no {path}"
    return None if age <= max_age_s else f"nothing heard from the scheduler for {age:.1f} s, the limit is {max_age_s} s"


if __name__ == "__main__":
    file, max_age, *options = sys.argv[1:]
    sys.exit(complaint(file, float(max_age), alive_is_enough=options == ["--alive"]))
