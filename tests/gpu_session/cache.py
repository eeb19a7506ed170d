"""Fills Triton's cache with what a GPU session will ask for, on the rig: compiling needs no GPU.

    TRITON_CACHE_DIR=/tmp/baton-triton python -m tests.gpu_session.cache

Starts the executor at 0.6B with both attention backends, runs the tests of kernels (their values are wrong here, and do
not count) and a quick bench_kernels.py. The cache is made anew, so that no kernel of an older tree travels.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.gpu_session.by_file import ROOT
from tests.gpu_session.calls import RIG_TESTS

EXECUTOR = """
import sys
from pathlib import Path
from benchmarks.rig.checkpoints import SHAPES, write_checkpoint
from executor_svc.options import ExecutorOptions
from executor_svc.startup import start_executor
folder = Path(sys.argv[1])
if not (folder / "config.json").exists():
    write_checkpoint(folder, SHAPES["0.6B"])
start_executor(ExecutorOptions(model=str(folder), device="cuda", attention=sys.argv[2], kv_cache_memory_gib=4.0))
"""
LIMIT_S = 900.0
REPORT = ("--report", "/dev/null", "--seconds", "800")


def main() -> int:
    """The command. Exits with 1 if an executor does not start."""
    if not torch.cuda.is_available():
        print("torch finds no GPU, not even a pretended one", file=sys.stderr)
        return 1
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    shutil.rmtree(cache, ignore_errors=True)
    os.environ |= {"TRITON_INTERPRET": "0", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="baton-cache-") as folder:
        codes = _fill(cache, folder)
    return int(any(code for name, code in codes.items() if name.startswith("executor")))


def _fill(cache: Path, folder: str) -> dict[str, int]:
    """Run what compiles, and tell of each command. Returns their exit codes."""
    weights = f"{folder}/0.6B"
    commands = {
        "executor, triton": ("-c", EXECUTOR, weights, "triton"),
        "executor, flash_attn": ("-c", EXECUTOR, weights, "flash_attn"),
        "generation": ("-m", "tests.gpu_session.generation", folder),
        "bench_kernels": ("benchmarks/bench_kernels.py", "--quick"),
        "tests": ("-m", "tests.gpu_session.by_file", "--state", f"{folder}/tests", *REPORT, *RIG_TESTS),
    }
    codes = {}
    for name, arguments in commands.items():
        began_s = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, *arguments], check=False, cwd=ROOT, capture_output=True, timeout=LIMIT_S
            )
            codes[name] = done.returncode
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            codes[name], said = 124, []
        entries = len(list(cache.iterdir())) if cache.exists() else 0
        seconds = time.monotonic() - began_s
        print(f"{name}: exit code {codes[name]} after {seconds:.0f} s, {entries} entries {said}", flush=True)
    return codes


if __name__ == "__main__":
    sys.exit(main())
