"""The small files of a model's folder, read as what somebody else has written: nothing in them is as large as it says.

A file is regular, or the folder cannot be used: to open a pipe would wait for its writer. It has a size that those of
models do not come near, and is checked before it is decoded; so is how many values JSON would make of it.
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from common.errors import CheckpointError

MAX_CONFIG_BYTES = 4 * 2**20  # config.json and its like; with a list of layers for quantization 100 kB
MAX_TEMPLATE_BYTES = 2**20  # chat_template.jinja; known ones have up to 20 kB
MAX_INDEX_BYTES = 64 * 2**20  # model.safetensors.index.json; of a model with 60 layers of 384 experts 20 MB
MAX_TOKENIZER_BYTES = 128 * 2**20  # tokenizer.json; of 262,144 tokens 33 MB
MAX_CONTAINERS = 2**21  # lists and objects in a file, of 64 bytes or more each; 514,906 merges are known
MAX_VALUES = 2**23  # values in a file
MAX_EXACT = 2**53  # of a float that is surely meant

Kind = TypeVar("Kind")


@contextmanager
def open_model_file(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file, and tell its size in bytes.

    Raises:
        FileNotFoundError, NotADirectoryError: there is none.
        CheckpointError: it is no regular file, or cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise CheckpointError(f"{path} is no regular file, but a {_kind(found.st_mode)}")
            with os.fdopen(fd, "rb", closefd=False) as file:
                yield file, found.st_size
        finally:
            os.close(fd)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def read_model_file(path: Path, max_bytes: int) -> bytes | None:
    """The content of a file; None if it is not there. A GGUF file in place of the folder has it too (`gguf_files`).

    Raises:
        CheckpointError: it is no regular file, is larger than `max_bytes`, or cannot be read.
    """
    try:
        with open_model_file(path) as (file, size):
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        from common import gguf_files  # noqa: PLC0415  (it is made of files that are read here)

        found = gguf_files.read(path.parent, path.name)
        if found is None:
            return None
        data, size = found, len(found)
    if len(data) > max_bytes:
        raise CheckpointError(f"{path} has {max(size, len(data))} bytes, the limit is {max_bytes}")
    return data


def read_template(path: Path) -> str | None:
    """Read a chat template; None if the file is not there. Raises as `read_model_file`, and if it is not UTF-8."""
    data = read_model_file(path, MAX_TEMPLATE_BYTES)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8: {error.reason}") from error


def read_model_json(
    path: Path, kind: type[Kind], max_bytes: int = MAX_CONFIG_BYTES, *, as_written: bool = False
) -> Kind | None:
    """The decoded content of a JSON file; None if the file is not there.

    Args:
        kind: that it has to be, as msgspec has types. `dict` takes what Python's json does, such as NaN.
        as_written: leave numbers as they are, in a large file; otherwise they are `_whole_numbers`.

    Raises:
        CheckpointError: as `read_model_file` does; or the file is no JSON, or something else than `kind`.
    """
    data = read_model_file(path, max_bytes)
    if data is None:
        return None
    for what, found, limit in (
        ("lists and objects", data.count(b"[") + data.count(b"{"), MAX_CONTAINERS),
        ("values", data.count(b","), MAX_VALUES),
    ):
        if found > limit:
            raise CheckpointError(f"{path} has {found} {what}, the limit is {limit}")
    try:
        if as_written:
            content = msgspec.json.decode(data, type=kind)
        elif kind is dict:
            content = _whole_numbers(json.loads(data))
        else:
            content = msgspec.convert(_whole_numbers(msgspec.json.decode(data)), kind)
    except RecursionError as error:
        raise CheckpointError(f"{path} is nested too deeply") from error
    except (ValueError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if kind is dict and not isinstance(content, dict):
        raise CheckpointError(f"{path} is no JSON object")
    return content


def _whole_numbers(content: Any) -> Any:
    """Return a JSON file's content with ints for whole numbers that are written as floats (`2048.0`): Python takes one
    for the other, and so do programs that write models' files."""
    match content:
        case dict():
            return {name: _whole_numbers(value) for name, value in content.items()}
        case list():
            return [_whole_numbers(value) for value in content]
        case float() if content.is_integer() and abs(content) < MAX_EXACT:
            return int(content)
        case _:
            return content


def check_regular(path: Path) -> bool:
    """Tell whether a file that a library is going to open is there. Raises CheckpointError if it is no regular one."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path} is no regular file, but a {_kind(mode)}")
    return True


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "pipe", stat.S_IFDIR: "folder", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")
