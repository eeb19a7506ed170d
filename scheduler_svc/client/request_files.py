"""What becomes a part of a request: texts, which are UTF-8 whatever the locale says, tools, and JSON schemas."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import click

from scheduler_svc.client.errors import WrongFile

Json = dict[str, Any]


def stdin_text() -> str:
    """All that stdin gives. Raises WrongFile if it is no text."""
    return _decoded(sys.stdin.buffer.read(), "stdin")


def stdin_message() -> str:
    """The same as a message, without the newlines at its end: `echo` puts one there, nobody who types a question does,
    and small models answer another question then."""
    return stdin_text().rstrip("\n")


def file_text(path: Path) -> str:
    """A file's text. Raises WrongFile if it cannot be read, or is none."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WrongFile(f"{path} cannot be read: {error.strerror}") from error
    return _decoded(content, str(path))


def read_tools(path: Path) -> list[Json]:
    """The tools of a file: a list as in OpenAI's `tools`, in which functions may stand without their wrapping.

    Raises:
        click.UsageError: the file is no such list.
    """
    found = _read_json(path, "--tools")
    tools = found if isinstance(found, list) else [found]
    if not tools:
        raise click.UsageError(f"--tools {path}: the list is empty")
    return [_tool(tool, f"--tools {path}: number {number}") for number, tool in enumerate(tools, 1)]


def read_schema(path: Path) -> Json:
    """The JSON schema of a file.

    Raises:
        click.UsageError: the file has no JSON object.
    """
    schema = _read_json(path, "--json-schema")
    if not isinstance(schema, dict):
        raise click.UsageError(f"--json-schema {path}: a schema is a JSON object, this is {json.dumps(schema)[:50]}")
    return schema


def _read_json(path: Path, option: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{option} {path}: {error}") from error


def _tool(tool: Any, where: str) -> Json:
    if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
        function, wrapped = tool["function"], {"type": "function", **tool}
    else:
        function, wrapped = tool, {"type": "function", "function": tool}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise click.UsageError(f"{where} is no function with a name: {json.dumps(tool)[:80]}")
    return wrapped


def _decoded(content: bytes, name: str) -> str:
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()  # it turns each kind of line end into \n
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise WrongFile(f"{name} is not UTF-8: {error.reason} in line {number}") from error
