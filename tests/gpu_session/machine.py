"""Prints what machine this is and which versions it has, as one JSON line.

python -m tests.gpu_session.machine
"""

import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch", "triton", "transformers", "flash_attn", "numpy", "safetensors", "tokenizers", "zmq", "msgspec", "xxhash",
    "blake3", "structlog", "nacl", "llguidance", "fastapi", "uvicorn", "httpx", "click", "pytest", "pytest_timeout",
    "hypothesis",
)  # fmt: skip
MODULES = ("scheduler_svc.__main__", "scheduler_svc.frontend.__main__", "executor_svc.__main__")
VARIABLES = (
    "TRITON_INTERPRET", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE", "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "TRITON_PTXAS_PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS",
)  # fmt: skip
"""Each of them, set by an image, changes values or times."""


PACKAGE_LIST = Path(__file__).with_name("machine_packages.txt")
DECIDING = ("flash-attn", "torch", "triton")
"""Packages whose versions decide what a step gives."""


def installed_versions() -> dict[str, str]:
    """Versions that results depend on, of this machine."""
    found = {"python": "{}.{}".format(*sys.version_info)}
    for name in DECIDING:
        try:
            found[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def listed_packages() -> dict[str, str]:
    """The GPU machine's packages, and their versions where they are known."""
    lines = (line.strip() for line in PACKAGE_LIST.read_text().splitlines())
    pairs = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {name: version for name, _, version in pairs}


def expected_versions() -> dict[str, str]:
    """Versions that results depend on, of a borrowed GPU machine."""
    listed = listed_packages()
    return {"python": "3.12", **{name: listed[name] for name in DECIDING}}


def gpu_name() -> str:
    """The first GPU, as the driver calls it."""
    told = said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0")
    return told if told.startswith("NVIDIA") else "no GPU"


def said(*command: str) -> str:
    """What a program prints, or why it does not."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    return (done.stdout + done.stderr).strip()


def package(name: str) -> dict[str, str]:
    """A package's version and where it lies, or why it cannot be imported."""
    try:
        with warnings.catch_warnings(action="ignore"):  # some packages warn where their version is read
            module = importlib.import_module(name)
            version = str(getattr(module, "__version__", "?"))
    except Exception as error:  # an extension that does not load may raise anything
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return {"version": version, "from": str(module.__file__)}


def gpu() -> dict[str, Any]:
    """The first GPU, as torch sees it."""
    import torch

    if not torch.cuda.is_available():
        return {"error": f"torch {torch.__version__} finds no GPU"}
    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "multiprocessors": found.multi_processor_count,
        "l2_bytes": found.L2_cache_size,
        "memory_bytes": found.total_memory,
        "free_bytes": torch.cuda.mem_get_info()[0],
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def main() -> int:
    """The command. Exits with 1 where something is missing."""
    packages = {name: package(name) for name in (*PACKAGES, *MODULES)}
    machine = {
        "gpu": gpu(),
        "packages": packages,
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "memory": next(iter(Path("/proc/meminfo").read_text().splitlines()), ""),
        "devices": sorted(str(path) for path in Path("/dev").glob("nvidia*")),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "locked_memory_kib": said("sh", "-c", "ulimit -l"),
        "shm_bytes": shutil.disk_usage("/dev/shm").total,
        "nvidia_smi": said("nvidia-smi"),  # its table has the persistence mode
        "ptxas": said("sh", "-c", "${TRITON_PTXAS_PATH:-/usr/local/cuda/bin/ptxas} --version").rpartition("\n")[2],
        "gcc": said("gcc", "--version").partition("\n")[0],
    }
    print(json.dumps(machine))
    return int("error" in machine["gpu"] or any("error" in found for found in packages.values()))


if __name__ == "__main__":
    sys.exit(main())
