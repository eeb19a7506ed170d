"""Before an executor's container is stopped: wait until another executor can go on with its sequences.

    python -S executor_drain.py FILE MAX_AGE_S READY_URL MAX_WAIT_S

SIGTERM makes an executor hand its sequences over and end, in moments. Where it is the only one (its node is emptied,
and its successor elsewhere still loads its weights), every stream would pause for as long as that takes. So this
keeps the old one at work until the scheduler counts a second one as ready, for MAX_WAIT_S at most. It does not wait if
the executor is not in the fleet (FILE and MAX_AGE_S are executor_health.py's) or no scheduler answers at READY_URL.

It always exits with 0: whatever it finds, SIGTERM comes next.
"""

import json
import sys
import time
from urllib.request import ProxyHandler, build_opener

from executor_health import complaint

POLL_INTERVAL_S = 0.5
ANSWER_TIMEOUT_S = 3.0


def num_ready(url: str) -> int:
    """Executors that take work, this one among them; 0 if there are none or no scheduler answers."""
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=ANSWER_TIMEOUT_S) as answer:
            return int(json.load(answer)["executors"])
    except (OSError, ValueError, KeyError):  # URLError and HTTPError are OSErrors
        return 0


def why_to_go(path: str, max_age_s: float, url: str) -> str | None:
    """Why the executor may be stopped now; None while it had better stay."""
    if (trouble := complaint(path, max_age_s)) is not None:
        return trouble
    match num_ready(url):
        case 0:
            return "no scheduler answers"
        case 1:
            return None
        case others:
            return f"{others - 1} others are ready"


def wait_for_another(path: str, max_age_s: float, url: str, max_wait_s: float) -> str:
    """Wait for a reason to go, and return it."""
    deadline = time.monotonic() + max_wait_s
    while time.monotonic() < deadline:
        if (reason := why_to_go(path, max_age_s, url)) is not None:
            return reason
        time.sleep(POLL_INTERVAL_S)
    return f"no other executor within {max_wait_s:.0f} s"


if __name__ == "__main__":
    file, max_age, ready_url, max_wait = sys.argv[1:]
    print(f"stopping: {wait_for_another(file, float(max_age), ready_url, float(max_wait))}")
