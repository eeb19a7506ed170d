"""How this Baton is installed: packages that are missing, and distributions that own what has Baton's names.

Its packages have names that others use, too: Hugging Face has a package `kernels`, and many projects have a `common`.
"""

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from common import __version__
from common.errors import BatonError

if TYPE_CHECKING:  # the command's --help needs none of these
    from importlib import metadata

    from common.logging import Logger

DISTRIBUTION = "baton-llm"
EARLIER_DISTRIBUTION = "baton"  # by this name ours was installed once; on PyPI it is another project's
PACKAGES = ("common", "executor_svc", "keeper_svc", "kernels", "scheduler_svc")
OF_EXECUTORS = {"torch": "executor", "safetensors": "executor"}  # package: the extra that brings it
OF_GPUS = {"triton": "gpu"}
OWN_ENVIRONMENT = "install Baton into an environment of its own (python3 -m venv)"

_ROOT = Path(__file__).parents[1]
_SUDO_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # secure_path, as distributions have it


def this_command(*, by_sudo: bool = False) -> str:
    """Return what a shell takes for the `baton` that runs: this name, or its path where the name would not find it.

    Args:
        by_sudo: sudo is to run it, which looks into folders of the system only.
    """
    own = Path(sys.argv[0])
    if own.name != "baton" or not own.exists():  # a module that Python runs
        return "baton"
    found = shutil.which("baton", path=_SUDO_PATH if by_sudo else None)
    return "baton" if found is not None and os.path.samefile(found, own) else shlex.quote(str(own.absolute()))


def install_command(extra: str = "") -> str:
    """Return the command that installs this Baton again, with an extra."""
    source, options = _source()
    return f"{_pip('install')} {options}{shlex.quote(f'{source}[{extra}]' if extra else source)}"


def require(packages: dict[str, str], what: str) -> None:
    """Refuse to go on without these packages, which are looked for and not imported.

    Args:
        packages: of other projects, each with the extra that brings it.
        what: needs them: the subject of the message.

    Raises:
        BatonError: some are missing; names the command that installs them.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({packages[name] for name in missing}))
        are = "is" if len(missing) == 1 else "are"
        raise BatonError(
            f"{what} needs {' and '.join(missing)}, which {are} not installed; to install: {install_command(extras)}"
        )


def require_executor(what: str, *, device: str | None = None) -> None:
    """Refuse to start executors that could not compute.

    Args:
        what: starts them: the subject of the message.
        device: `cuda` needs more than others.

    Raises:
        BatonError: a package is missing, or another project's is imported in place of one of ours.
    """
    for name in PACKAGES:
        place = _place(importlib.util.find_spec(name))
        if place is None or not os.path.samefile(place, _ROOT / name):
            raise BatonError(f"the package {name} is another project's here: {place}; {OWN_ENVIRONMENT}")
    require(OF_EXECUTORS | OF_GPUS if device == "cuda" else OF_EXECUTORS, what)


def warn_of_shared_files(log: "Logger") -> None:
    """Log a line for each distribution that owns the same files as this one, with what to do about it."""
    with contextlib.suppress(OSError):  # of files that cannot be read
        for line in _shared_files():
            log.warning("another distribution owns files of Baton", reason=line)


def hide_working_folder() -> None:
    """Keep programs that this one starts from importing what lies in the folder where it was started: projects have
    folders with names of ours."""
    with contextlib.suppress(OSError):  # a folder that was removed has nothing to import
        if Path.cwd() != _ROOT:
            os.environ.setdefault("PYTHONSAFEPATH", "1")


def _pip(action: str) -> str:
    """Return a command of pip, or of uv in an environment without pip, as `uv tool` makes them."""
    python = shlex.quote(sys.executable)
    has_pip = importlib.util.find_spec("pip") is not None
    return f"{python} -m pip {action}" if has_pip else f"uv pip {action} --python {python}"


def _source() -> tuple[str, str]:
    """Return what Baton was installed from, or can be, and options of pip."""
    from importlib import metadata  # noqa: PLC0415  (slow to import, as is the next one)
    from urllib.request import url2pathname  # noqa: PLC0415

    if (_ROOT / "pyproject.toml").exists():
        return str(_ROOT), "--editable "
    try:
        origin = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    url = urlsplit(origin.get("url", ""))
    path = url2pathname(url.path) if url.scheme == "file" else ""
    if path and os.path.exists(path):
        return path, ""
    # It is on no index, so there has to be a path.
    return f"PATH/TO/{DISTRIBUTION.replace('-', '_')}-{__version__}-py3-none-any.whl", ""


def _shared_files() -> Iterator[str]:
    from importlib import metadata  # noqa: PLC0415

    earlier = [each for each in metadata.distributions(name=EARLIER_DISTRIBUTION) if _is_ours_in_files(each)]
    if earlier and any(metadata.distributions(name=DISTRIBUTION)):
        yield (
            f"Baton is installed twice, as {DISTRIBUTION} and by its earlier name, {EARLIER_DISTRIBUTION}: "
            f"{_pip('uninstall')} --yes {EARLIER_DISTRIBUTION} {DISTRIBUTION} && {install_command()}"
        )
    ours = {DISTRIBUTION.replace("-", "_"), EARLIER_DISTRIBUTION}
    for record in sorted(_ROOT.glob("*.dist-info/RECORD")):
        other = record.parent.name.partition("-")[0]
        files = b"\n" + record.read_bytes()
        names = [name for name in PACKAGES if f"\n{name}/__init__.py,".encode() in files]
        if names and other not in ours:
            yield f"the distribution {other} owns files of Baton's {' and '.join(names)}; {OWN_ENVIRONMENT}"


def _is_ours_in_files(found: "metadata.Distribution") -> bool:
    """Return whether a distribution is of Baton, not of the project that has the earlier name today, and owns files: a
    checkout's *.egg-info has no RECORD."""
    is_ours = any(point.value.startswith("scheduler_svc.") for point in found.entry_points)
    return is_ours and bool(found.read_text("RECORD"))


def _place(spec: importlib.machinery.ModuleSpec | None) -> str | None:
    """Return the folder of a package, or the file of a module."""
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    return next(iter(folders), spec.origin if spec is not None else None)
