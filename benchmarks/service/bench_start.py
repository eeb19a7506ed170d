"""How long an executor takes from the start of its process until it could take a plan: the first one on a machine, and
the next one, which finds the weights of the first at a keeper.

A round has three starts, and each executor is killed when it is ready. `from_disk` reads a checkpoint that is not in
the page cache, as after the machine's start. `from_cache` is the same once more, with another keeper. `kept` starts
beside the keeper of the one before, and finds its weights and its pool. torch's own files are in the page cache in all
three. Files in memory (tmpfs) are never on a disk: see to it that the checkpoint's folder is on one.
`--model` is a folder of a checkpoint with a tokenizer, or a shape such as 0.6B with random weights. One JSON line, with
medians in seconds; `weights` is the part in which weights are read or found, as the executor's log says.

Example: python benchmarks/bench_start.py --model 0.6B --dtype bfloat16
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import click

from benchmarks.rig.machine import processor
from benchmarks.rig.named_model import model_folder
from scheduler_svc.client.processes.keeper import keeper_listens

NOBODY = "tcp://127.0.0.1:9"  # a scheduler that never answers: an executor is ready before it looks for one
_LOADED = re.compile(r'event="model loaded".* seconds=(\S+) weights=(\w+)')


def started(socket: Path, options: tuple[str, ...], *, weights: str) -> tuple[float, float]:
    """Start an executor, and kill it when it is ready. Returns the seconds that took, and those for the weights.

    Args:
        weights: where they have to come from, `read` or `kept`.
    """
    command = [sys.executable, "-m", "executor_svc", "--scheduler", NOBODY, "--keeper", str(socket), *options]
    begin = time.monotonic()
    with subprocess.Popen([*command, "--log-format", "logfmt"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        seconds, said = 0.0, []
        try:
            for line in process.stderr:
                said.append(line)
                if "event=ready" in line:
                    seconds = time.monotonic() - begin
                    break
        finally:
            process.send_signal(signal.SIGKILL)
    loaded = _LOADED.search("".join(said))
    if not seconds or loaded is None or loaded.group(2) != weights:
        raise click.ClickException(f"the executor did not start as it was to (weights={weights}):\n{''.join(said)}")
    return seconds, float(loaded.group(1))


@contextlib.contextmanager
def keeper() -> Iterator[Path]:
    """A keeper of its own, by its socket."""
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        socket = Path(folder) / "keeper.sock"
        with subprocess.Popen(
            [sys.executable, "-m", "keeper_svc", "--socket", str(socket)], stderr=subprocess.DEVNULL
        ) as process:
            try:
                while not keeper_listens(socket):
                    if process.poll() is not None:
                        raise click.ClickException(f"the keeper has ended with exit code {process.returncode}")
                    time.sleep(0.01)
                yield socket
            finally:
                process.terminate()


def evict(folder: Path) -> None:
    """Take a folder's files out of the page cache."""
    for path in folder.glob("*.safetensors"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # what is not on the disk yet stays
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@click.command(context_settings={"show_default": True})
@click.option("--rounds", default=5, type=click.IntRange(1), help="Of three starts each.")
@click.option("--model", required=True, help="Folder of a checkpoint, or a shape.")
@click.option("--dtype", default="auto", help="Of the executors.")
@click.option("--num-blocks", default=4096, type=click.IntRange(1), help="Of the pool.")
@click.option("--executor-option", "more", multiple=True, help="A further option of the executors.")
def main(rounds: int, model: str, dtype: str, num_blocks: int, more: tuple[str, ...]) -> None:
    """Measure starts, and print the figures."""
    found: dict[str, list[tuple[float, float]]] = {"from_disk": [], "from_cache": [], "kept": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = model_folder(model, Path(scratch))
        assert folder is not None
        options = ("--model", folder, "--dtype", dtype, "--num-blocks", str(num_blocks), *more)
        for _ in range(rounds):
            evict(Path(folder))
            with keeper() as socket:
                found["from_disk"].append(started(socket, options, weights="read"))
            with keeper() as socket:
                found["from_cache"].append(started(socket, options, weights="read"))
                found["kept"].append(started(socket, options, weights="kept"))
    about = {"model": model, "dtype": dtype, "rounds": rounds, "processor": processor()}
    starts = {f"{name}_s": round(median(start for start, _ in each), 2) for name, each in found.items()}
    weights = {f"{name}_weights_s": round(median(took for _, took in each), 3) for name, each in found.items()}
    ratios = {
        f"{name}_over_kept": round(
            median(first / kept for (first, _), (kept, _) in zip(each, found["kept"], strict=True)), 2
        )
        for name, each in found.items()
        if name != "kept"
    }
    click.echo(json.dumps(about | starts | weights | ratios))


if __name__ == "__main__":
    main()
