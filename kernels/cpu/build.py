"""Compiles the C++ sources, once for each machine and version of them."""

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from kernels.cpu.isa import Isa
from kernels.cpu.trust import why_untrusted

SOURCES = Path(__file__).parent / "csrc"
FLAGS = (
    *("-std=c++17", "-O3", "-fopenmp", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512"),
    "-fno-gnu-unique",  # or the libraries of two instruction sets would share what inline functions hold
)
LIBRARY = "kernels.so"
TIMEOUT_S = 600


class BuildError(RuntimeError):
    """There is no compiler, or it failed; the message has the compiler's."""


def cache_folder() -> Path:
    """Where libraries are kept: `$XDG_CACHE_HOME/baton/cpu-kernels`. Raises BuildError for a user without a home."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise BuildError("the user has no home for the CPU kernels: name a folder by XDG_CACHE_HOME") from error
    return Path(base) / "baton" / "cpu-kernels"


def openmp_runtime() -> Path:
    """The OpenMP library that torch has loaded. Our kernels have to use the same one: two libraries would have two
    pools of threads, which wait for work on each other's cores.

    Raises:
        BuildError: torch has none.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith(("libgomp", "libiomp5")):
            return path
    raise BuildError("torch has no OpenMP runtime (libgomp or libiomp5) loaded")


def build(isa: Isa, say: Callable[[str], None]) -> Path:
    """The library for an instruction set: from the cache, or compiled into it.

    Processes that build the same library wait for the first one.

    Args:
        isa: to compile for.
        say: called with a line before a compiler is started.

    Raises:
        BuildError: there is no compiler, it fails, or the cache cannot be written, or not be trusted.
    """
    runtime = openmp_runtime()
    library = library_file(isa, runtime)
    if library.exists():
        return _trusted(library)
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(compiler[0]) is None:
        raise BuildError(f"there is no C++ compiler {compiler[0]} (CXX can name another)")
    try:
        _make_folders(library.parent)
        _trusted(library.parent)  # before anything is written there
        with _locked(library.parent / "lock"):
            if not library.exists():
                say(f"building the CPU kernels for {isa.name}, once; they are kept in {library.parent}")
                _compile(compiler, isa, runtime, library)
    except OSError as error:
        reason = f"{error}; name another folder by XDG_CACHE_HOME"
        raise BuildError(f"the CPU kernels cannot be kept in {library.parent}: {reason}") from error
    return _trusted(library)


def discard(library: Path) -> None:
    """Remove a library that cannot be loaded, so that `build` makes it anew."""
    with contextlib.suppress(OSError):
        library.unlink()


def _trusted(path: Path) -> Path:
    """Where the library, or its folder, really lies. Raises BuildError if another user could change it."""
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        raise BuildError(f"the CPU kernels cannot be used: {error}") from error
    if (reason := why_untrusted(real)) is not None:
        raise BuildError(f"the CPU kernels are not to be trusted: {reason}")
    return real


def _make_folders(folder: Path) -> None:
    """Make a folder and those above it that are missing. Others may read them, as in an image, and change nothing."""
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir(mode=0o755, exist_ok=True)


def library_file(isa: Isa, runtime: Path, sources: Path = SOURCES) -> Path:
    """Where the library for an instruction set is kept: by its sources, flags, torch and OpenMP runtime, wherever these
    lie, so that two environments with the same torch share one."""
    digest = hashlib.sha256(runtime.read_bytes())
    for path in sorted(sources.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    parts = (*FLAGS, *isa.compiler_flags, torch.__version__, runtime.name)
    digest.update("\0".join(parts).encode())
    return cache_folder() / f"{isa.name}-{digest.hexdigest()[:20]}" / LIBRARY


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _compile(compiler: list[str], isa: Isa, runtime: Path, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        objects = []
        running = []
        for source in sorted(SOURCES.glob("*.cpp")):
            target = Path(folder) / f"{source.stem}.o"
            objects.append(str(target))
            running.append([*compiler, *FLAGS, *isa.compiler_flags, "-c", str(source), "-o", str(target)])
        _run_all(running)
        # Without -fopenmp here: it would add the compiler's own runtime to torch's. With -l: the library has the
        # runtime's name and never its path, by which only one environment would have it.
        unfinished = Path(folder) / LIBRARY
        linked = [f"-L{runtime.parent}", f"-l:{runtime.name}"]
        _run_all([[*compiler, "-shared", *objects, *linked, "-o", str(unfinished)]])
        unfinished.chmod(0o755)
        unfinished.replace(library)  # atomic: a process that sees the library sees all of it


def _run_all(commands: list[list[str]]) -> None:
    """Run commands at the same time.

    Raises:
        BuildError: one failed, or took too long.
    """
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            for command in commands
        ]
        try:
            outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in running]
        except subprocess.TimeoutExpired as error:
            for process in running:
                process.kill()
            raise BuildError(f"the compiler took more than {TIMEOUT_S} s") from error
    for command, process, output in zip(commands, running, outputs, strict=True):
        if process.returncode != 0:
            raise BuildError(f"{' '.join(command)} failed: {output.strip()[-2000:]}")
