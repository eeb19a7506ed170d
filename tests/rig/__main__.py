"""Run the rig's Python, which finds the pretended GPU; what is missing of the rig is built first.

python -m tests.rig -m pytest tests/rig
python -m tests.rig --interpret -m pytest tests/kernels/gpu     # no GPU: Triton's interpreter
python -m tests.rig --only-if-there ...                         # exit code 77 where it would have to be downloaded
"""

import os
import sys

from tests.rig import build

NOT_THERE = 77  # as automake has it for a test that did not run; pytest has codes up to 5


def main() -> None:
    """Become the rig's Python."""
    arguments = sys.argv[1:]
    interpret = only_if_there = False
    while arguments and arguments[0] in ("--interpret", "--only-if-there"):
        option = arguments.pop(0)
        interpret |= option == "--interpret"
        only_if_there |= option == "--only-if-there"
    if only_if_there and not build.is_installed():
        print(f"NOT RUN: there is no rig in {build.home()}; make test-dry-gpu installs it (2 GB)")
        sys.exit(NOT_THERE)
    build.bring_up_to_date()
    environment = {**os.environ, **build.environment(), "PYTHONPATH": str(build.REPOSITORY)}
    environment.setdefault("RIG_MEMORY", f"rig_{os.getpid()}")  # processes that this one starts share its GPU
    if interpret:
        environment |= {"RIG_DEVICES": "0", "TRITON_INTERPRET": "1"}
    os.execve(build.python(), [str(build.python()), *arguments], environment)


if __name__ == "__main__":
    main()
