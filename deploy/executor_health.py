"""Health check of an executor's container: exit code 0 if it is well.

    python -S executor_health.py FILE MAX_AGE_S            ready: it is in the fleet and hears the scheduler
    python -S executor_health.py FILE MAX_AGE_S --alive    alive: its heart has not stopped

FILE is what `baton-executor --health-file` names: touched at every heartbeat of the scheduler and removed when the
executor is not, or not any more, in the fleet. So an executor is ready while the file is there and fresh.

To be alive it need not be ready. While it loads its weights, or has no scheduler to talk to, there is no file, and to
start it again would only cost the weights that it has. But a file that is there and old was left by an executor that
has stopped to turn: it would have removed the file after two seconds of silence.

Only the file is looked at: no dependencies, no network, a few milliseconds.
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
    """What is wrong with the executor; None if nothing is."""
    age = age_s(path)
    if age is None:
        return None if alive_is_enough else f"not in the fleet: there is no {path}"
    return None if age <= max_age_s else f"nothing heard from the scheduler for {age:.1f} s, the limit is {max_age_s} s"


if __name__ == "__main__":
    file, max_age, *options = sys.argv[1:]
    sys.exit(complaint(file, float(max_age), alive_is_enough=options == ["--alive"]))
