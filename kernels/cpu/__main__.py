"""`python -m kernels.cpu`: compiles the kernels ahead of time, when installing or for an image.

Without arguments it does what a process does that loads them; `--all` compiles them for every processor.
"""

import argparse
import sys

from kernels.cpu.build import BuildError, build, cache_folder
from kernels.cpu.isa import ISAS, IsaError
from kernels.cpu.loading import load


def main() -> int:
    """Return the exit code: 0 if all that was asked for is there."""
    parser = argparse.ArgumentParser(prog="python -m kernels.cpu", description="Compile the CPU kernels ahead of time.")
    parser.add_argument("--all", action="store_true", help="for every processor, not only for this one")
    if not parser.parse_args().all:
        try:
            loaded = load(1, print)
        except IsaError as error:
            print(error, file=sys.stderr)
            return 2
        print(f"{loaded.isa}: {loaded.reason}" + (f" ({loaded.problem})" if loaded.problem else ""))
        return 1 if loaded.problem else 0
    try:
        for isa in ISAS:
            if not isa.only_asked_for:
                build(isa, print)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"the CPU kernels are in {cache_folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
