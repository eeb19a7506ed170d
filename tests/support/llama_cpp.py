"""llama.cpp's own vocabularies, with texts and their ids, and chat templates as they were published.

They are in the source of llama-cpp-python on PyPI. What tests read of it is kept in build/llama.cpp.
"""

import fcntl
import functools
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

from common.gguf import read_gguf
from tests import ROOT

PACKAGE = "llama-cpp-python==0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
BUILD = ROOT / "build"
MODELS = BUILD / "llama.cpp"
DOWNLOAD_MAY_TAKE_S = 120
HINT = f"the source of {PACKAGE} cannot be had: `pip download` gets its 77 MB from PyPI, into {MODELS}"
SEPARATOR = "\n__ggml_vocab_test__\n"
_FOLDER = "vendor/llama.cpp/models/"


def template(name: str) -> str:
    """A chat template as it was published, such as `Qwen-Qwen3-0.6B`; the test skips where it cannot be had."""
    return (_models() / "templates" / f"{name}.jinja").read_text()


def encoded_texts(name: str) -> list[tuple[str, list[int]]]:
    """Texts, and their ids in a vocabulary such as `llama-spm`, without special tokens."""
    path = _models() / f"ggml-vocab-{name}.gguf"
    texts = path.with_name(f"{path.name}.inp").read_bytes().decode().split(SEPARATOR)
    lines = path.with_name(f"{path.name}.out").read_text().splitlines()
    if len(texts) == len(lines) + 1:
        assert texts.pop() == "", "the last separator ends the file"
    return [(text, [int(word) for word in line.split()]) for text, line in zip(texts, lines, strict=True)]


@functools.cache
def vocabulary(name: str) -> dict[str, Any]:
    """The metadata of a vocabulary."""
    return read_gguf(_models() / f"ggml-vocab-{name}.gguf").metadata


@functools.cache
def _why_not() -> str:
    """Fetch the files unless they are there. Returns why that fails, or nothing."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "llama.cpp.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=BUILD) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes of pytest may come here at once
        if MODELS.is_dir():
            return ""
        made = Path(folder) / "models"
        try:
            _extract(_download(Path(folder)), made)
        except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
            return f"{HINT} ({error})"
        made.rename(MODELS)
    return ""


def _models() -> Path:
    if reason := _why_not():
        pytest.skip(reason)
    return MODELS


def _download(folder: Path) -> Path:
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
    options = ["--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "--require-hashes", "--retries", "1"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "-r", str(wanted)]
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=DOWNLOAD_MAY_TAKE_S
    )
    [archive] = folder.glob("*.tar.gz")
    return archive


def _extract(archive: Path, made: Path) -> None:
    (made / "templates").mkdir(parents=True)
    with tarfile.open(archive, "r|gz") as files:
        for member in files:
            _, found, path = member.name.partition(f"/{_FOLDER}")
            name = path.removeprefix("templates/")
            if found and member.isfile() and "/" not in name and path.startswith(("ggml-vocab-", "templates/")):
                with files.extractfile(member) as content, (made / path).open("wb") as out:
                    shutil.copyfileobj(content, out)
