"""The command that tools/gpu_session.sh calls on the GPU machine: one of the three calls.

    python -m tests.gpu_session first --began 1795437600 --out FOLDER --carried .gpu

Exits with the number of this call's own steps that are not done.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.gpu_session.calls import CALLS, SECONDS, steps
from tests.gpu_session.session import STATE_ARCHIVE, Session


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m tests.gpu_session", description=__doc__.split("\n")[0])
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("--began", type=float, default=time.time(), help="when the call began, in seconds since 1970")
    parser.add_argument("--seconds", type=float, help="of the call, if not as usual")
    parser.add_argument("--out", type=Path, required=True, help="folder that comes back")
    parser.add_argument("--carried", type=Path, default=Path(".gpu"), help="folder of what came along")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/baton-gpu"))
    parser.add_argument("--rehearsal", action="store_true", help="there is no GPU: small sizes, and no measurement")
    options = parser.parse_args()
    os.environ |= {"TRITON_INTERPRET": "0", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    # A shell lets what it starts in the background ignore SIGINT, and the steps that do so would not stop in order.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seconds = options.seconds or SECONDS[options.call]
    deadline_s = time.monotonic() + options.began + seconds - time.time()
    state = options.scratch / "state"
    session = Session(options.call, deadline_s, state, options.out, options.rehearsal)
    session.unpack(options.carried / STATE_ARCHIVE)
    options.scratch.mkdir(parents=True, exist_ok=True)

    def of(call: str) -> list:
        return steps(call, options.carried, state, options.scratch, options.rehearsal)

    cache = Path(os.environ.get("TRITON_CACHE_DIR", "/nonexistent"))
    known = _entries(cache)
    earlier = [step for call in CALLS[: CALLS.index(options.call)] for step in of(call)]
    results = session.run(of(options.call), earlier)
    made = {"call": options.call, "triton_cache": {"known": known, "new": _entries(cache) - known}}
    print(json.dumps({**made, **{result.step: result.status for result in results}}), flush=True)
    return sum(result.status != "done" for result in results)


def _entries(folder: Path) -> int:
    return len(list(folder.iterdir())) if folder.is_dir() else 0


if __name__ == "__main__":
    sys.exit(main())
