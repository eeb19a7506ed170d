"""A prompt and some decode steps under compute-sanitizer, which sees each access out of bounds on a real GPU.

    python -m tests.gpu_session.memcheck FOLDER

The tiny model of `generation.py`, with each set of attention kernels, kernel by kernel and without torch's cache of
device memory: an access beyond a tensor then leaves its allocation. Tokens are not compared, since `generation.py` does
that. Exits with 9 if the tool has found something, and with 127 if it is not installed.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.executor import harness
from tests.gpu_session.generation import OPTIONS, prompts
from tests.support.checkpoints import make_checkpoint

TOOLKIT = "/usr/local/cuda/bin"
FOUND, NOT_INSTALLED = 9, 127
UNDER_THE_TOOL = "BATON_MEMCHECK"


def steps(folder: Path) -> None:
    """Run the steps, in this process."""
    import torch

    checkpoint = make_checkpoint(folder / "memcheck", dtype=torch.bfloat16)
    for attention in ("triton", "flash_attn"):
        options = {**OPTIONS, "attention": attention, "dtype": "bfloat16", "block_size": 256, "num_blocks": 8}
        runner, limits = harness.start(checkpoint, enforce_eager=True, **options)
        tokens = harness.Driver(runner, limits, chunk=100).generate(prompts()[:3], 3, temperature=0.7, seed=1)
        print(json.dumps({"attention": attention, "tokens": sum(map(len, tokens))}), flush=True)


def main() -> int:
    """The command."""
    if UNDER_THE_TOOL in os.environ:
        steps(Path(sys.argv[1]))
        return 0
    tool = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], TOOLKIT]))
    if tool is None:
        print("compute-sanitizer is not installed", file=sys.stderr)
        return NOT_INSTALLED
    command = [tool, "--tool", "memcheck", "--error-exitcode", str(FOUND), sys.executable, "-m", __spec__.name]
    environment = os.environ | {UNDER_THE_TOOL: "1", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return subprocess.run([*command, sys.argv[1]], check=False, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
