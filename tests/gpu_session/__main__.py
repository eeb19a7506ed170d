"""The commands of tools/gpu_session.sh that need Python: one for a GPU machine, two for a machine without a GPU.

    python -m tests.gpu_session run values --out FOLDER     # on the GPU machine: a pack's steps that are due
    python -m tests.gpu_session next                        # what is due, the command to give, and what to carry
    python -m tests.gpu_session keep FOLDER                 # what came back goes into the ledger and into docs/gpu.md

`run` exits with the number of items that have not passed, 99 at most.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.gpu_session import carried, tables
from tests.gpu_session.ledger import LEDGER, Ledger, Result, chip_of, read_results
from tests.gpu_session.machine import expected_versions, gpu_name, installed_versions
from tests.gpu_session.packs import CALL_LIMIT_S, SECONDS, Step, packs
from tests.gpu_session.session import RESULTS, Session

MOST_S_AGO = 60.0
"""How long before this process a call can have begun: if more, the clock was set meanwhile."""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m tests.gpu_session", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a pack's steps that are due")
    run.add_argument("pack", choices=packs())
    run.add_argument("--began", type=float, default=time.time(), help="when the call began, in seconds since 1970")
    run.add_argument("--seconds", type=float, default=SECONDS, help="from then to the last line")
    run.add_argument("--out", type=Path, required=True, help="folder that comes back")
    run.add_argument("--carried", type=Path, default=Path(".gpu"), help="folder of what came along")
    run.add_argument("--scratch", type=Path, default=Path("/tmp/baton-gpu"))
    run.add_argument("--rehearsal", action="store_true", help="there is no GPU: small sizes, all steps, no measurement")
    ahead = commands.add_parser("next", help="say what is due")
    ahead.add_argument("--carried", type=Path, default=Path(".gpu"))
    keep = commands.add_parser("keep", help="enter what came back")
    keep.add_argument("folder", type=Path)
    keep.add_argument("--ledger", type=Path, default=LEDGER)
    keep.add_argument("--page", type=Path, default=tables.PAGE)
    options = parser.parse_args()
    return {"run": run_pack, "next": tell_next, "keep": keep_results}[options.command](options)


def run_pack(options: argparse.Namespace) -> int:
    """Run a pack's steps that are due, on a GPU machine or in a rehearsal."""
    os.environ |= {"TRITON_INTERPRET": "0", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    # A shell lets what it starts in the background ignore SIGINT, and the steps that do so would not stop in order.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    versions = installed_versions()
    session = Session(
        pack=options.pack,
        deadline_s=time.monotonic() + options.seconds - min(MOST_S_AGO, max(0.0, time.time() - options.began)),
        scratch=options.scratch,
        carried=options.carried,
        out=options.out,
        gpu=gpu_name(),
        versions=versions,
        rehearsal=options.rehearsal,
    )
    steps = packs(options.rehearsal)[options.pack]
    ledger = Ledger(read_results(LEDGER))
    done = {} if options.rehearsal else passed(steps, ledger, versions, chip_of(session.gpu))
    results = session.run(steps, done)
    seconds = time.time() - options.began
    outcomes = {result.step: result.outcome for result in results}
    print(json.dumps({"pack": options.pack, "seconds": round(seconds, 1), "gpu": session.gpu, **outcomes}), flush=True)
    return min(99, sum(result.outcome != "passed" for result in results))


def passed(steps: Iterable[Step], ledger: Ledger, versions: Mapping[str, str], chip: str = "") -> dict[str, str]:
    """Keys of the items that have passed as they are now, by their names.

    Args:
        chip: kind of GPU, for which a step that a table reads has to have passed there; on any kind if empty.
    """
    keys = {item.name: step.key(item, versions) for step in steps for item in step.parts}
    measured = tables.steps_read()
    return {
        name: key for name, key in keys.items() if key in ledger.passed_keys(name, chip if name in measured else "")
    }


def tell_next(options: argparse.Namespace) -> int:
    """Say which packs are due, with what to carry and which command to give for the first of them."""
    ledger, versions = Ledger(read_results(LEDGER)), expected_versions()
    first = ""
    for name, steps in packs().items():
        done = passed(steps, ledger, versions)
        due = {step.name: step for step in steps if any(item.name not in done for item in step.parts)}
        to_do = [step for step in due.values() if not step.is_always_due]
        items = [item.name for step in to_do for item in step.parts if item.name not in done]
        seconds = sum(step.predicted_s for step in due.values()) + carried.INSTALL_S
        if not to_do:
            print(f"{name}: nothing is due")
            continue
        first = first or name
        print(f"{name}: {len(items)} due, about {seconds:.0f} of {SECONDS:.0f} s: {', '.join(items)}")
    print()
    for line in carried.report(options.carried):
        print(line)
    if first:
        print(
            f"\nNext, on a borrowed GPU machine without a network, in the root of a copy of this tree that has "
            f"{options.carried}, with a limit of {CALL_LIMIT_S} s and $OUT the folder that comes back:\n"
            f"    bash tools/gpu_session.sh {first}\n"
            "Then here, with the folder that came back:\n    tools/gpu_session.sh keep FOLDER"
        )
    return 0


def keep_results(options: argparse.Namespace) -> int:
    """Enter what came back into the ledger, and make the page's tables anew. What a rehearsal gave is shown alone."""
    results = read_results(options.folder / RESULTS)
    if not results:
        print(f"{options.folder / RESULTS} has no result", file=sys.stderr)
        return 2
    rehearsed = [result for result in results if result.rehearsal]
    for result in rehearsed:
        print(f"rehearsal, not entered: {_line(result)}")
    for line in tables.filled_cells(rehearsed):
        print(f"rehearsal, not entered: {line}")
    ledger = Ledger(read_results(options.ledger))
    entered = [result for result in results if not result.rehearsal and ledger.enter(result)]
    for result in entered:
        print(f"entered: {_line(result)}")
    if entered:
        ledger.save(options.ledger)
        options.page.write_text(tables.render(options.page.read_text(), ledger))
        print(f"{options.ledger} and {options.page} are up to date: look at them, and commit them")
    elif not rehearsed:
        print("nothing new")
    return 0


def _line(result: Result) -> str:
    new = f", {result.new_kernels} kernels compiled" if result.new_kernels else ""
    return f"{result.step}: {result.outcome} on {result.gpu} after {result.seconds:.0f} s{new} {result.why}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
