"""Rehearses the three calls of a GPU session in the rig (tools/gpu_session.sh rehearse).

Each call runs in a fresh copy of the committed tree with nothing but `.gpu` beside it, in a network namespace that has
loopback alone. Before the second call all that the first one left on the machine is removed, and its archive is
carried: as when the machine was given back. The third call finds what the second one left: as when it was held.

What must hold: what travels is small enough; a call keeps to its time; every step started, wrote JSON that says that
it was a rehearsal, and succeeded unless it compares values; every package that the machine lacks came from the wheels.
Prints a line for each step, and exits with 1 if something does not hold.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gpu_session.by_file import ROOT
from tests.gpu_session.calls import CALLS, SECONDS, steps
from tests.gpu_session.session import MOST_FILES, STATE_ARCHIVE, SUMMARY

COMMAND_LIMIT_S = 600.0
CACHE_ARCHIVE = "triton-cache.tar.xz"
MOST_BYTES_BACK = 16 * 2**20  # of a file
# They compare values, or ask of transformers what it cannot do beside a pretended GPU; all others have to succeed.
MAY_FAIL = ("flash_attn_smoke", "generation", "gpu_tests", "gpu_tests_again", "peer_transformers")
LACKING = (
    "flash_attn",
    "zmq",
    "msgspec",
    "structlog",
    "nacl",
    "llguidance",
    "fastapi",
    "uvicorn",
)  # on the GPU machine
WITHOUT_NETWORK = ("unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m tests.gpu_session.rehearsal")
    parser.add_argument("--carried", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--most-bytes", type=int, required=True)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-rehearsal"), help="folder for what comes back")
    parser.add_argument("--keep-state", action="store_true", help="go on where an earlier rehearsal stopped")
    parser.add_argument("calls", nargs="*", default=CALLS, metavar="CALL")
    options = parser.parse_args()
    if not (options.carried / CACHE_ARCHIVE).exists():  # the cache itself is forgotten before the first call
        print(f"there is no {options.carried / CACHE_ARCHIVE}: tools/gpu_session.sh cache, then pack", file=sys.stderr)
        return 2
    problems: list[str] = []
    if not options.keep_state:
        _forget(options.scratch, options.site)
    for call in options.calls:
        with tempfile.TemporaryDirectory(prefix="baton-rehearsal-") as folder:
            tree = Path(folder, "tree")
            earlier = options.out.resolve() / CALLS[CALLS.index(call) - 1] / STATE_ARCHIVE
            _fresh_tree(tree, options.carried)
            if call == "second" and earlier.exists():
                _forget(options.scratch, options.site)
                shutil.copy(earlier, tree / options.carried)
            size = _bytes_in(tree)
            print(f"{call}: {size / 2**20:.1f} MiB travel", flush=True)
            if size > options.most_bytes:
                problems.append(f"{call}: {size} bytes travel, and {options.most_bytes} may")
            out = options.out.resolve() / call
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            seconds, text = _call(call, tree, out)
            problems += _problems(call, seconds, out, options)
            print(text, flush=True)
    print("\n".join(["", *problems, f"{len(problems)} problems"]))
    return int(bool(problems))


def _fresh_tree(tree: Path, carried: Path) -> None:
    tree.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x"], check=True, cwd=tree, input=archive)
    shutil.copytree(carried, tree / carried.name, ignore=shutil.ignore_patterns(STATE_ARCHIVE))


def _forget(*folders: Path) -> None:
    """What a machine that is given back has no more. Triton's cache comes from the carried archive again."""
    for folder in (*folders, Path(os.environ["TRITON_CACHE_DIR"])):
        shutil.rmtree(folder, ignore_errors=True)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _call(call: str, tree: Path, out: Path) -> tuple[float, str]:
    """Run a call. Returns its seconds, and the end of its output."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_CACHE_DIR")}
    environment |= {"OUT": str(out), "BATON_REHEARSAL": "1"}
    command = [*WITHOUT_NETWORK, "bash", "tools/gpu_session.sh", call]
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            command, check=False, cwd=tree, env=environment, capture_output=True, text=True, timeout=COMMAND_LIMIT_S
        )
        text = done.stdout[-6000:] + done.stderr[-2000:]
    except subprocess.TimeoutExpired as late:
        text = f"IT DID NOT END. {(late.stdout or b'').decode()[-3000:]}"
    return time.monotonic() - began_s, text


def _problems(call: str, seconds: float, out: Path, options: argparse.Namespace) -> Iterator[str]:
    limit_s = float(os.environ.get("BATON_GPU_SECONDS") or SECONDS[call])
    if seconds > limit_s + 5:
        yield f"{call}: took {seconds:.0f} s of {limit_s:.0f}"
    files = sorted(path.name for path in out.iterdir())
    if len(files) > MOST_FILES or not {SUMMARY, STATE_ARCHIVE} <= set(files):
        yield f"{call}: these files come back: {files}"
    for path in out.iterdir():
        if path.stat().st_size > MOST_BYTES_BACK:
            yield f"{call}: {path.name} has {path.stat().st_size} bytes, and {MOST_BYTES_BACK} may come back"
    if SUMMARY not in files:
        return
    summary = json.loads((out / SUMMARY).read_text())
    results: dict[str, dict[str, Any]] = {result["step"]: result for result in summary["steps"]}
    for step in steps(call, options.carried, options.scratch, options.scratch, rehearsal=True):
        result = results.get(step.name)
        if result is None or result["status"] == "skipped":
            yield f"{call}: {step.name} has not started: {result and result['why']}"
            continue
        line = f"{step.name}: {result['status']}, exit code {result['exit_code']}, {result['seconds']:.0f} s"
        print(f"{call}: {line} of {result['limit_s']:.0f}", flush=True)
        if not result["rehearsal"] or not summary["rehearsal"]:
            yield f"{call}: {step.name} does not say that it was a rehearsal"
        if result["seconds"] > result["limit_s"] + 1:
            yield f"{call}: {step.name} took {result['seconds']} s of {result['limit_s']}"
        if result["status"] != "done" and step.name not in MAY_FAIL:
            yield f"{call}: {step.name} {result['status']}: {result['said'][-500:]}"
        if "ModuleNotFoundError" in result["said"]:
            yield f"{call}: {step.name} lacks a package: {result['said'][-300:]}"
    if call == "first" and results.get("versions", {}).get("figures"):
        packages = results["versions"]["figures"][0]["packages"]
        for name in LACKING:
            if not packages[name].get("from", "").startswith(str(options.site)):
                yield f"first: {name} does not come from the wheels: {packages[name]}"


if __name__ == "__main__":
    sys.exit(main())
