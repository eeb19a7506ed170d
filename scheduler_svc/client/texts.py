"""Texts from stdin and from files, which are UTF-8 whatever the locale says."""

import io
import sys
from pathlib import Path

from scheduler_svc.client.errors import WrongFile


def stdin_text() -> str:
    """All that stdin gives. Raises WrongFile if it is no text."""
    return _decoded(sys.stdin.buffer.read(), "stdin")


def file_text(path: Path) -> str:
    """A file's text. Raises WrongFile if it cannot be read, or is none."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WrongFile(f"{path} cannot be read: {error.strerror}") from error
    return _decoded(content, str(path))


def _decoded(content: bytes, name: str) -> str:
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()  # it turns each kind of line end into \n
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise WrongFile(f"{name} is not UTF-8: {error.reason} in line {number}") from error
