"""Building the rig: an environment with torch's CUDA build, Triton and flash-attn, and stand-ins for CUDA's libraries.

It lies in `$BATON_RIG`, by default `~/.cache/baton/rig`: 2 GB, of which torch is most. What is up to date is left as it
is.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.gpu_session.machine import listed_packages

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
SOURCES = HERE / "csrc"
FLASH_ATTN = REPOSITORY.parent / "shared" / "gpu" / "wheels"
OF_THE_MACHINE = listed_packages()
"""Versions of the GPU machine's packages; empty where they are not known."""
CUDA_BUILDS = tuple(f"{name}=={OF_THE_MACHINE[name]}" for name in ("torch", "triton"))
HEADERS = ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88")
DEPENDENCIES = tuple(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"])
MACHINES = tuple(f"{name}=={OF_THE_MACHINE[name]}" for name in ("numpy", "safetensors", "tokenizers", "transformers"))
# pip finds what those and the CUDA builds need.
PACKAGES = (
    *DEPENDENCIES, *MACHINES, "sympy", "networkx", "fsspec", "filelock", "typing-extensions", "cuda-bindings",
    "hypothesis", "openai", "pytest", "pytest-timeout", "pytest-xdist", "pyyaml", "einops",
)  # fmt: skip
UNCONSTRAINED = ("numpy", "safetensors", "tokenizers", "transformers", "torch", "triton", "huggingface_hub", "hf-xet")
"""Packages whose versions are the GPU machine's, not those of constraints.txt."""

CORE = ("device", "contexts", "capture", "memory", "mapping", "control", "kernels")
LIBRARIES = {
    "libcudart.so.13": "cudart",
    "libcuda.so.1": "cuda",
    "libcublas.so.13": "cublas",
    "libcublasLt.so.13": "cublas",
    "libnccl.so.2": "nccl",
    "libcudnn.so.9": "others",
    "libcusolver.so.12": "others",
    "libcurand.so.10": None,
    "libcufile.so.0": None,
    "libnvshmem_host.so.3": None,
    "libcusparseLt.so.0": None,
    "libcufft.so.12": None,
    "libcusparse.so.12": None,
    "libcupti.so.13": None,
    "libnvrtc.so.13": None,
}
"""Libraries that torch links to, and the file of `csrc` that has what is known of each."""

DEVICE_FILES = ("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(8)))
"""What a process has open that uses a GPU; these stand for files in /dev."""

_PREFIXES = {
    "nccl": "libnccl.so.2",
    "cusparseLt": "libcusparseLt.so.0",
    "cuFile": "libcufile.so.0",
    "nvshmem": "libnvshmem_host.so.3",
}


def home() -> Path:
    """The rig's folder."""
    return Path(os.environ.get("BATON_RIG", Path.home() / ".cache" / "baton" / "rig"))


def python() -> Path:
    """The interpreter of the rig's environment."""
    return home() / "venv" / "bin" / "python"


def libraries() -> Path:
    """The folder of the stand-ins. Checkouts whose sources differ have one each, and may run side by side."""
    return home() / f"lib-{_digest_of_sources()[:12]}"


def environment() -> dict[str, str]:
    """What a program of the rig needs in its environment, besides its own, whose TRITON_CACHE_DIR stays."""
    lib = libraries()
    return {
        "PATH": os.pathsep.join([str(python().parent), os.environ["PATH"]]),
        "LD_LIBRARY_PATH": str(lib),
        "TRITON_LIBCUDA_PATH": str(lib),
        "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR", str(home() / "triton")),
        "TRITON_INTERPRET": "0",
        "CUDA_MODULE_LOADING": "LAZY",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def is_installed() -> bool:
    """Whether all is there that has to be downloaded."""
    return _is_made(home() / "venv", _digest(*CUDA_BUILDS, *PACKAGES)) and _is_made(
        home() / "headers", _digest(*HEADERS)
    )


def bring_up_to_date() -> None:
    """Build what is missing or out of date."""
    home().mkdir(parents=True, exist_ok=True)
    with (home() / "lock").open("w") as lock:  # of several that start at once, one builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        _once(home() / "venv", _digest(*CUDA_BUILDS, *PACKAGES), _install)
        _once(home() / "headers", _digest(*HEADERS), _unpack_headers)
        _once(libraries(), _digest_of_sources(), _build_libraries)


def _digest_of_sources() -> str:
    return _digest(*(file.read_text() for file in sorted(SOURCES.iterdir())))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _once(folder: Path, digest: str, make: Callable[[Path], None]) -> None:
    """Make a folder anew unless it was made from the same."""
    if _is_made(folder, digest):
        return
    print(f"building {folder}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    make(folder)
    (folder / "ready").write_text(digest)


def _is_made(folder: Path, digest: str) -> bool:
    ready = folder / "ready"
    return ready.exists() and ready.read_text() == digest


def _python312() -> str:
    """A Python 3.12 that runs; the names that pyenv puts on the path may not."""
    candidates = ["python3.12", *map(str, Path.home().glob(".pyenv/versions/3.12*/bin/python3.12"))]
    for candidate in candidates:
        found = shutil.which(candidate)
        if found and subprocess.run([found, "--version"], check=False, capture_output=True).returncode == 0:
            return found
    raise SystemExit("the rig needs Python 3.12: flash-attn's wheel is built for it")


def _install(folder: Path) -> None:
    subprocess.run([_python312(), "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    wheels = list(FLASH_ATTN.glob("flash_attn-*.whl"))
    if not wheels:
        print(f"no wheel of flash-attn in {FLASH_ATTN}: the rig goes without", file=sys.stderr)
    subprocess.run([*pip, "--no-deps", *CUDA_BUILDS, *wheels], check=True)
    constraints = folder / "constraints.txt"
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    constraints.write_text("\n".join(line for line in lines if line.split("==")[0] not in UNCONSTRAINED))
    subprocess.run([*pip, "--constraint", constraints, *PACKAGES], check=True, stderr=subprocess.DEVNULL)


def _unpack_headers(folder: Path) -> None:
    subprocess.run(
        [python(), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *HEADERS],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


def _build_libraries(folder: Path) -> None:
    (include,) = (home() / "headers").glob("nvidia/*/include")
    compile_ = ["g++", "-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra", f"-I{include}", "-c"]
    objects = {}
    for source in SOURCES.glob("*.cpp"):
        objects[source.stem] = folder / f"{source.stem}.o"
        subprocess.run([*compile_, source, "-o", objects[source.stem]], check=True)
    core = folder / "librig.so"
    subprocess.run(["g++", "-shared", "-o", core, *(objects[name] for name in CORE), "-lpthread"], check=True)
    for library, (symbols, version) in _wanted_symbols().items():
        name = LIBRARIES[library]
        known = [objects[name]] if name else []
        _link(folder, library, known, symbols, version)
    for device_file in DEVICE_FILES:
        (folder / "dev").mkdir(exist_ok=True)
        (folder / "dev" / device_file).touch()


def _link(folder: Path, library: str, known: list[Path], symbols: set[str], version: str | None) -> None:
    defined = {symbol for each in known for symbol, _ in _symbols(each, "--defined-only")}
    stubs = folder / f"{library}.stubs.c"
    lines = [f'long {symbol}(void) {{ rig_unmodelled("{symbol}"); return 0; }}' for symbol in sorted(symbols - defined)]
    stubs.write_text("\n".join(["extern void rig_unmodelled(const char*);", *lines, ""]))
    script = folder / f"{library}.map"
    script.write_text(f"{version or 'RIG'} {{ global: *; }};\n")
    command = ["gcc", "-O1", "-fPIC", "-w", "-shared", "-o", folder / library, stubs, *known]
    command += [f"-Wl,-soname,{library}", f"-L{folder}", "-lrig", "-lstdc++", f"-Wl,-rpath,{folder}", "-ldl"]
    subprocess.run([*command, f"-Wl,--version-script={script}"] if version else command, check=True)


def _wanted_symbols() -> dict[str, tuple[set[str], str | None]]:
    """By library: what torch and flash-attn want of it, and the version that their symbols carry, if any."""
    (packages,) = (home() / "venv").glob("lib/python3*/site-packages")
    users = [*packages.glob("torch/lib/lib*.so"), *packages.glob("flash_attn_2*.so")]
    defined = {symbol for user in users for symbol, _ in _symbols(user, "--dynamic", "--defined-only")}
    wanted: dict[str, tuple[set[str], str | None]] = {library: (set(), None) for library in LIBRARIES}
    for user in users:
        for symbol, version in _symbols(user, "--dynamic", "--undefined-only"):
            library = _library(symbol, version)
            if library in wanted and (version or symbol not in defined):
                symbols, known_version = wanted[library]
                symbols.add(symbol)
                wanted[library] = symbols, known_version or version
    return wanted


def _library(symbol: str, version: str | None) -> str | None:
    if version == "NVSHMEM":
        return "libnvshmem_host.so.3"
    if version and version.startswith("lib"):
        return version
    for prefix, library in _PREFIXES.items():
        if symbol.startswith(prefix):
            return library
    return "libcuda.so.1" if re.match("cu[A-Z]", symbol) else None


def _symbols(file: Path, *options: str) -> Iterator[tuple[str, str | None]]:
    found = subprocess.run(["nm", *options, file], check=True, capture_output=True, text=True).stdout
    for line in found.splitlines():
        symbol, _, version = line.split()[-1].partition("@")
        yield symbol, version.strip("@") or None
