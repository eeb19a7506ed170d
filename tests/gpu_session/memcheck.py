"""A prompt and some decode steps under compute-sanitizer, which sees each access out of bounds on a real GPU.

    python -m tests.gpu_session.memcheck FOLDER

The tiny model of `generation.py`, with each set of attention kernels, kernel by kernel and without torch's cache of
device memory: an access beyond a tensor then leaves its allocation. Tokens are not compared, since `generation.py` does
that. The steps run without the tool first, so that it need not watch Triton compile. Exits with 9 if the tool has found
something, with 1 if not all steps have run, and with 127 if the tool is not installed.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.executor_svc import harness
from tests.gpu_session.generation import OPTIONS, prompts
from tests.support.checkpoints import make_checkpoint

TOOLKIT = "/usr/local/cuda/bin"
FOUND, NOT_INSTALLED = 9, 127
ATTENTION = ("triton", "flash_attn")
UNDER_THE_TOOL = "BATON_MEMCHECK"


def steps(folder: Path) -> None:
    """Run the steps, in this process."""
    import torch

    checkpoint = make_checkpoint(folder / "memcheck", dtype=torch.bfloat16)
    for attention in ATTENTION:
        options = {**OPTIONS, "attention": attention, "dtype": "bfloat16", "block_size": 256, "num_blocks": 8}
        runner, limits = harness.start(checkpoint, enforce_eager=True, **options)
        tokens = harness.Driver(runner, limits, chunk=100).generate(prompts()[:3], 3, temperature=0.7, seed=1)
        print(json.dumps({"attention": attention, "tokens": sum(map(len, tokens))}), flush=True)


def run(*under: str) -> int:
    """Run the steps in a process of its own, under a tool. Returns its exit code, 1 if it has not run all of them."""
    environment = os.environ | {UNDER_THE_TOOL: "1", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [*under, sys.executable, "-m", "tests.gpu_session.memcheck", sys.argv[1]]
    done = subprocess.run(command, check=False, env=environment, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    has_run_all = all(f'"attention": "{attention}"' in done.stdout for attention in ATTENTION)
    return done.returncode or int(not has_run_all)


def main() -> int:
    """The command."""
    if UNDER_THE_TOOL in os.environ:
        steps(Path(sys.argv[1]))
        return 0
    if code := run():
        return code
    tool = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], TOOLKIT]))
    if tool is None:
        print("compute-sanitizer is not installed", file=sys.stderr)
        return NOT_INSTALLED
    # Errors of calls are torch's to handle: it asks for what may not be there.
    return run(tool, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", str(FOUND))


if __name__ == "__main__":
    sys.exit(main())
