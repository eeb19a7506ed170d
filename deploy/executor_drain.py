"""Before an executor's container is stopped: wait until another executor can go on with its sequences.

    python -S executor_drain.py FILE MAX_AGE_S READY_URL PATIENCE_S MAX_WAIT_S

SIGTERM makes an executor hand its sequences over and end, in moments. If it is the only executor (its node is emptied,
and its successor elsewhere still loads weights), every stream would pause until the successor is ready. So this script
keeps the old executor at work until the scheduler counts a second one as ready, for MAX_WAIT_S at most.

An executor that is not in the fleet (FILE and MAX_AGE_S are executor_health.py's), or whose scheduler does not answer
at READY_URL, has nothing to hand over. But a restart of the scheduler looks the same, and after the restart the
executor is needed as before. So the executor goes only when this state has lasted for PATIENCE_S.

The script always exits with 0: SIGTERM follows in every case.
"""

import json
import sys
import time
from urllib.request import ProxyHandler, build_opener

from executor_health import complaint

POLL_INTERVAL_S = 0.5
ANSWER_TIMEOUT_S = 3.0


def num_ready(url: str) -> int:
    """Number of executors that take work, with this one if it is in the fleet; 0 if the scheduler does not answer."""
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=ANSWER_TIMEOUT_S) as answer:
            return int(json.load(answer)["executors"])
    except (OSError, ValueError, KeyError):  # URLError and HTTPError are OSErrors
        return 0


def idleness(path: str, max_age_s: float, num_ready: int) -> str | None:
    """Why the executor has nothing to do now; None if it has work, or may have some."""
    if num_ready == 0:
        return "no scheduler that has executors answers"
    return complaint(path, max_age_s)


def wait_for_another(path: str, max_age_s: float, url: str, patience_s: float, max_wait_s: float) -> str:
    """Wait for a reason to go, and return it."""
    last_needed = time.monotonic()
    deadline = last_needed + max_wait_s
    while (now := time.monotonic()) < deadline:
        ready = num_ready(url)
        if ready > 1:
            return f"{ready} executors are ready"
        if (idle := idleness(path, max_age_s, ready)) is None:
            last_needed = now
        elif now - last_needed >= patience_s:
            return f"{idle}, for {patience_s:.0f} s"
        time.sleep(POLL_INTERVAL_S)
    return f"no other executor within {max_wait_s:.0f} s"


if __name__ == "__main__":
    file, max_age, ready_url, patience, max_wait = sys.argv[1:]
    print(f"stopping: {wait_for_another(file, float(max_age), ready_url, float(patience), float(max_wait))}")
