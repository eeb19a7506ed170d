"""Rehearses packs in the rig (tools/gpu_session.sh rehearse): without a GPU, without a network, with few packages.

Each pack runs in a fresh copy of the committed tree with nothing but `.gpu` beside it, in a network namespace that has
loopback alone, by a Python that has only packages of the GPU machine (`machine_packages.txt`). All that an earlier pack
has left is removed before.

What must hold: what travels is small enough; a pack keeps to its time; every step started, and its result says that it
was a rehearsal; it succeeded, unless it compares values. Prints a line for each step, and exits with 1 if something
does not hold.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tests import ROOT
from tests.gpu_session import carried
from tests.gpu_session.ledger import Result, read_results
from tests.gpu_session.machine import listed_packages
from tests.gpu_session.packs import CALL_LIMIT_S, SECONDS, packs
from tests.gpu_session.session import HAS_NOT_RUN, MOST_FILES, RESULTS

MOST_BYTES_BACK = 16 * 2**20  # of a file
WITHOUT_NETWORK = ("unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m tests.gpu_session.rehearsal", description=__doc__.split("\n")[0])
    parser.add_argument("--carried", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-rehearsal"), help="folder for what comes back")
    parser.add_argument("packs", nargs="*", metavar="PACK", help=f"of {', '.join(packs())}; all by default")
    options = parser.parse_args()
    if not (options.carried / carried.CACHE_ARCHIVE).exists():  # the cache itself is forgotten before each pack
        print(f"{options.carried} has no kernels: tools/gpu_session.sh cache, then pack", file=sys.stderr)
        return 2
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="baton-machine-") as machine:
        _make_machine(Path(machine))
        for pack in options.packs or packs():
            problems += _rehearse(pack, Path(machine), options)
    print("\n".join(["", *problems, f"{len(problems)} problems"]))
    return int(bool(problems))


def _make_machine(folder: Path) -> None:
    """An environment that has those of the rig's packages that the GPU machine has, too."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    names = {_plain(name) for name in listed_packages()}
    for package in metadata.distributions():
        if _plain(package.metadata["Name"]) not in names:
            continue
        for top in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}:
            source = Path(str(package.locate_file(top)))
            if source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    # What came along stands before it, as on the GPU machine.
    for name in ("flash_attn", "flash_attn_2_cuda"):
        for found in site.glob(f"{name}*"):
            found.unlink()


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _rehearse(pack: str, machine: Path, options: argparse.Namespace) -> Iterator[str]:
    """Run a pack. Yields what does not hold."""
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    for folder in (options.scratch, options.site, cache):
        shutil.rmtree(folder, ignore_errors=True)  # what a machine that is given back has no more
    cache.with_suffix(".of").unlink(missing_ok=True)  # what comes into the cache now is not to be packed
    with tempfile.TemporaryDirectory(prefix="baton-rehearsal-") as folder:
        tree = Path(folder, "tree")
        tree.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x"], check=True, cwd=tree, input=archive)
        shutil.copytree(options.carried, tree / options.carried.name)
        size = carried.folder_bytes(tree)
        print(f"{pack}: {size / 2**20:.1f} MiB travel", flush=True)
        if size > carried.MOST_BYTES:
            yield f"{pack}: {size} bytes travel, and {carried.MOST_BYTES} may"
        out = options.out.resolve() / pack
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        began_s = time.monotonic()
        print(_run(pack, tree, out, machine), flush=True)
        seconds = time.monotonic() - began_s
    print(f"{pack}: {seconds:.0f} of {SECONDS:.0f} s", flush=True)
    if seconds > SECONDS + 5:
        yield f"{pack}: took {seconds:.0f} s of {SECONDS:.0f}"
    yield from _problems(pack, out)


def _run(pack: str, tree: Path, out: Path, machine: Path) -> str:
    """Run a pack as a GPU machine does. Returns the end of its output."""
    left_out = ("PYTHONPATH", "TRITON_CACHE_DIR", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"OUT": str(out), "BATON_REHEARSAL": "1", "PATH": f"{machine}/bin:{os.environ['PATH']}"}
    # A failure prints no tensor: torch would ask a kernel how many of its numbers are finite, and allocate that many.
    environment["PYTEST_ADDOPTS"] = "--assert=plain --tb=native"
    command = [*WITHOUT_NETWORK, "bash", "tools/gpu_session.sh", pack]
    try:
        done = subprocess.run(
            command, check=False, cwd=tree, env=environment, capture_output=True, text=True, timeout=CALL_LIMIT_S
        )
    except subprocess.TimeoutExpired as late:
        return f"IT DID NOT END. {(late.stdout or b'').decode()[-3000:]}"
    return done.stdout[-6000:] + done.stderr[-2000:]


def _problems(pack: str, out: Path) -> Iterator[str]:
    files = sorted(out.iterdir())
    if len(files) > MOST_FILES:
        yield f"{pack}: {len(files)} files come back, and {MOST_FILES} may"
    for path in files:
        if path.stat().st_size > MOST_BYTES_BACK:
            yield f"{pack}: {path.name} has {path.stat().st_size} bytes, and {MOST_BYTES_BACK} may come back"
    results = {result.step: result for result in read_results(out / RESULTS)}
    for step in packs(rehearsal=True)[pack]:
        for item in step.parts:
            result = results.get(item.name)
            if result is None or result.outcome == "skipped":
                yield f"{pack}: {item.name} has not started: {result and result.why}"
                continue
            if not result.rehearsal:
                yield f"{pack}: {item.name} does not say that it was a rehearsal"
            if result.seconds > step.limit_s + 1:
                yield f"{pack}: {item.name} took {result.seconds} s of {step.limit_s}"
            if not _is_fine(result, step.may_fail, is_file=bool(step.items)):
                yield f"{pack}: {item.name} {result.outcome}: {result.why} {result.said[-500:]}"
            if result.why == HAS_NOT_RUN:
                yield f"{pack}: there was no time for {item.name}"
            if "ModuleNotFoundError" in result.said:
                yield f"{pack}: {item.name} lacks a package: {result.said[-300:]}"


def _is_fine(result: Result, may_fail: tuple[int, ...], *, is_file: bool) -> bool:
    """Whether a result is as it must be where kernels compute nothing. A test file has no exit code of its own."""
    return result.outcome == "passed" or (bool(may_fail) if is_file else result.exit_code in may_fail)


if __name__ == "__main__":
    sys.exit(main())
