"""How vectors are written: for people, for programs, and as one array."""

import contextlib
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import click
import msgspec
import numpy as np

from common.paths import is_there
from scheduler_svc.client.embed.vectors import Vector
from scheduler_svc.client.errors import OutputFailed, WrongFile

SHOWN_NUMBERS = 4
SHOWN_CHARACTERS = 40

Write = Callable[[str, Vector], None]


@contextlib.contextmanager
def writer(form: str, output: Path | None, num_texts: int) -> Iterator[Write]:
    """What takes each text with its vector.

    Args:
        form: `text`, `jsonl` or `npy`.
        output: a file; None for stdout.
        num_texts: that will come.

    Raises:
        WrongFile: the file cannot be written. If not all vectors come, a file is what it was before.
    """
    if form == "npy" and output is None and sys.stdout.isatty():
        raise click.UsageError("npy is no text for a terminal; name a file by --output")
    with _opened(output) as file:
        if form == "npy":
            array = _Array(file, num_texts)
            yield array.write
        else:
            line_of = line if form == "text" else json_line

            def write(text: str, vector: Vector) -> None:
                file.write(line_of(text, vector))
                file.flush()

            yield write


def line(text: str, vector: Vector) -> bytes:
    """A text and its first numbers."""
    shown = " ".join(f"{number:+.4f}" for number in vector[:SHOWN_NUMBERS])
    more = f" ... ({len(vector)} numbers)" if len(vector) > SHOWN_NUMBERS else ""
    flat = " ".join(text.split())
    short = flat if len(flat) <= SHOWN_CHARACTERS else flat[: SHOWN_CHARACTERS - 3] + "..."
    return f"{short:<{SHOWN_CHARACTERS}}  {shown}{more}\n".encode(errors="replace")


def json_line(text: str, vector: Vector) -> bytes:
    """A text and all its numbers; each is the shortest one that is the same float32."""
    numbers = [float(str(number)) for number in vector]
    return msgspec.json.encode({"text": text, "embedding": numbers}) + b"\n"


class _Array:
    """numpy's file of all vectors, whose head says how many will come."""

    def __init__(self, file: BinaryIO, num_texts: int) -> None:
        self._file = file
        self._num_texts = num_texts
        self._has_head = False

    def write(self, _: str, vector: Vector) -> None:
        if not self._has_head:
            head = {"descr": "<f4", "fortran_order": False, "shape": (self._num_texts, len(vector))}
            np.lib.format.write_array_header_1_0(self._file, head)
            self._has_head = True
        self._file.write(np.asarray(vector, "<f4").tobytes())


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    """What is no regular file, such as a pipe, is written as it is."""
    if path is None:
        yield sys.stdout.buffer
        return
    try:
        is_file = not is_there(path) or stat.S_ISREG(path.stat().st_mode)
        path = Path(os.path.realpath(path)) if is_file else path  # a link to a file stays one
        beside = path.with_name(f".baton-embed-{secrets.token_hex(4)}")
        file = beside.open("xb") if is_file else path.open("wb")
    except OSError as error:
        raise WrongFile(f"{path} cannot be written: {error.strerror}") from error
    try:
        with _replacing(path, beside) if is_file else contextlib.nullcontext(), file:
            yield file
    except OSError as error:
        raise OutputFailed(f"{path} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _replacing(path: Path, beside: Path) -> Iterator[None]:
    """Put the file `beside` in a file's place when all is written: part of the vectors would be taken for all."""
    try:
        yield
        if path.exists():
            shutil.copymode(path, beside)
        beside.replace(path)
    finally:  # also after Ctrl-C
        beside.unlink(missing_ok=True)
