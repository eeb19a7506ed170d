"""The input of `baton batch`: requests in the format of OpenAI's Batch API, or prompts, a line each."""

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from scheduler_svc.client.errors import WrongFile

_MAX_PROBLEMS_SHOWN = 10
_MAX_LINE_CHARACTERS = 40
_EXAMPLE = '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi", "max_tokens": 50}}'
_OTHER_ENDPOINTS = (
    "this command takes /v1/chat/completions and /v1/completions; the service's /v1/batches takes /v1/embeddings, too"
)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BatchLine(msgspec.Struct, frozen=True):
    """One request of the input file. `body` goes to `url` unchanged, with a model added if it names none."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1)]
    url: Literal["/v1/chat/completions", "/v1/completions"]
    body: dict[str, Any]
    method: Literal["POST"] = "POST"


ReadLine = Callable[[int, bytes], BatchLine]
"""Makes a request of a line, whose number it is told. Raises msgspec.MsgspecError or UnicodeDecodeError."""


def request_line() -> ReadLine:
    """Return what reads a line of OpenAI's Batch API."""
    decoder = msgspec.json.Decoder(BatchLine)
    return lambda _, line: decoder.decode(line)


def prompt_line(max_tokens: int, *, as_chat: bool) -> ReadLine:
    """Return what makes a request of a prompt; its custom_id is the number of the line.

    Args:
        max_tokens: of each answer.
        as_chat: whether the line is what a user says, and not the start of a text.
    """

    def read(number: int, line: bytes) -> BatchLine:
        text = line.removeprefix(_BYTE_ORDER_MARK if number == 1 else b"").decode().rstrip("\r\n")
        if as_chat:
            asked = {"messages": [{"role": "user", "content": text}]}
            return BatchLine(str(number), "/v1/chat/completions", {**asked, "max_completion_tokens": max_tokens})
        return BatchLine(str(number), "/v1/completions", {"prompt": text, "max_tokens": max_tokens})

    return read


@dataclass(frozen=True)
class BatchInput:
    """A file of requests, which is read more than once."""

    path: Path
    read_line: ReadLine

    def __iter__(self) -> Iterator[BatchLine]:
        """Read the requests of a file that `check` has accepted, one by one."""
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield self.read_line(number, line)

    def check(self) -> set[str]:
        """Read the whole input once.

        Returns:
            The custom_ids in it.

        Raises:
            WrongFile: it is no regular file; or some lines are no requests or have the same custom_id: the message
                names them by number.
        """
        path = self.path
        if not stat.S_ISREG(path.stat().st_mode):
            raise WrongFile(
                f"{path} is no regular file, and the input is read more than once; write it to a file first"
            )
        line_of_id: dict[str, int] = {}
        problems: list[str] = []
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    request = self.read_line(number, line)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    if not (line_of_id or problems or line.lstrip().startswith(b"{")):
                        raise WrongFile(_no_requests(path, line)) from error
                    problems.append(f"line {number}: {_why(error)}")
                    continue
                first = line_of_id.setdefault(request.custom_id, number)
                if first != number:
                    problems.append(f"line {number}: custom_id {request.custom_id!r} is in line {first} already")
                if request.body.get("stream"):
                    problems.append(f"line {number}: a batch cannot be streamed; leave `stream` out")
                if request.body.get("prompt_logprobs") is not None:  # each line is read as a stream, which has none
                    problems.append(f"line {number}: a batch has no `prompt_logprobs`; use `echo` with `logprobs`")
        if problems:
            shown = problems[:_MAX_PROBLEMS_SHOWN]
            more = [f"and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
            raise WrongFile("\n  ".join([f"{path} cannot be sent:", *shown, *more]))
        return set(line_of_id)


def _why(error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        others = f"; {_OTHER_ENDPOINTS}" if str(error).endswith("`$.url`") else ""
        return f"{error}{others}"
    return f"no valid JSON: {error}" if isinstance(error, msgspec.DecodeError) else str(error)


def _no_requests(path: Path, line: bytes) -> str:
    shown = line.decode(errors="replace").strip()[:_MAX_LINE_CHARACTERS]
    format_ = f"A line is a JSON object: {_EXAMPLE}; --prompts takes a file with a prompt a line"
    return f"{path} is no file of requests, it begins with {shown!r}. {format_}"
