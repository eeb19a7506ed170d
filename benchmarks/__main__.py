"""`python PATH/TO/benchmarks ROOM.MODULE ...`, from any folder, is `python -m benchmarks.ROOM.MODULE ...` in the root.

Child processes are started so: the folder that they run in is not the benchmark's choice.
"""

import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python PATH/TO/benchmarks ROOM.MODULE [argument]...")
    sys.path[0] = str(FOLDER.parent)
    module = sys.argv.pop(1)
    runpy.run_module(f"benchmarks.{module}", run_name="__main__", alter_sys=True)
