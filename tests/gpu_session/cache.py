"""Fills Triton's cache with what executors and bench_kernels.py will ask for on a GPU; compiling needs none.

    TRITON_CACHE_DIR=/tmp/baton-triton python -m tests.gpu_session.cache STAMP

Runs on the rig: an executor of 0.6B with each set of attention kernels, and one as the pack `failover` starts it; a
quick bench_kernels.py; and steps of 8B and 30B-A3B whose weights are not drawn. Tests compile their own kernels on the
GPU machine, which has more processors. The cache is made anew, so that no kernel of an older tree travels; the file
STAMP says of which kernels it is.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests import ROOT
from tests.gpu_session.carried import kernel_sources
from tests.gpu_session.packs import BENCHED

EXECUTOR = """
import sys
from pathlib import Path
from benchmarks.rig.checkpoints import SHAPES, write_checkpoint
from benchmarks.rig.text_checkpoint import write_text_checkpoint
from executor_svc.options import ExecutorOptions
from executor_svc.startup import start_executor
folder, attention, rows = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if folder.name.endswith("text"):
    write_text_checkpoint(folder, "0.6B")
elif not folder.exists():
    write_checkpoint(folder, SHAPES["0.6B"])
sizes = {"max_num_seqs": rows, "kv_cache_memory_gib": 4.0}
start_executor(ExecutorOptions(model=str(folder), device="cuda", attention=attention, **sizes))
"""
LIMIT_S = 600.0
STEPS = ("-m", "benchmarks.gpu.shape_steps")
FEW = ("--undrawn", "--steps", "1", "--rows", "1,16")


def main() -> int:
    """The command. Exits with the number of commands that failed."""
    if not torch.cuda.is_available():
        print("torch finds no GPU, not even a pretended one", file=sys.stderr)
        return 1
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    shutil.rmtree(cache, ignore_errors=True)
    os.environ |= {"TRITON_INTERPRET": "0", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="baton-cache-") as folder:
        failed = _fill(cache, folder)
    if not failed:
        Path(sys.argv[1]).write_text(kernel_sources() + "\n")
    return failed


def _fill(cache: Path, folder: str) -> int:
    """Run what compiles, and tell of each command. Returns how many failed."""
    executor = ("-c", EXECUTOR, f"{folder}/0.6B")
    commands = {f"executor, {kind}": (*executor, kind, "256") for kind in ("triton", "flash_attn")}
    commands["executor of the swaps"] = ("-c", EXECUTOR, f"{folder}/0.6B-text", "triton", "32")
    for model in BENCHED:
        commands[f"bench_kernels, {model}"] = ("benchmarks/bench_kernels.py", "--quick", "--model", f"Qwen3-{model}")
    commands["0.6B, blocks of 256"] = (*STEPS, "0.6B", *FEW, "--block-size", "256")
    for shape, rows in (("8B", "256"), ("30B-A3B", "128")):
        for kind in ("triton", "flash_attn"):
            commands[f"{shape}, {kind}"] = (*STEPS, shape, *FEW, "--attention", kind, "--max-rows", rows)
    failed = 0
    for name, arguments in commands.items():
        began_s = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, *arguments], check=False, cwd=ROOT, capture_output=True, timeout=LIMIT_S
            )
            code, said = done.returncode, done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            code, said = 124, []
        failed += code != 0
        entries = len(list(cache.iterdir())) if cache.exists() else 0
        seconds = time.monotonic() - began_s
        print(f"{name}: exit code {code} after {seconds:.0f} s, {entries} kernels {said if code else ''}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
