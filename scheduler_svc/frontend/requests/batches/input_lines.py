"""The input of a batch, cut into lines, and each line taken apart. Pure."""

from typing import Any, NamedTuple

import msgspec

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.body import count_values

MAX_LINES = 50_000  # as OpenAI has it
MAX_LINE_BYTES = 8 * 2**20  # as long as a body may be
MAX_CUSTOM_ID = 512
BOM = b"\xef\xbb\xbf"


class InputLine(NamedTuple):
    """A line of a batch's input that is not blank.

    Attributes:
        number: of requests before it: blank lines do not count.
        place: number of the line in the file, from 1.
        start, end: byte offsets of the line; `end` is where the next one begins.
        data: without its line break; None if it is longer than `MAX_LINE_BYTES`.
    """

    number: int
    place: int
    start: int
    end: int
    data: bytes | None


class LineSplitter:
    """Cuts bytes into lines, wherever the bytes themselves were cut. What is too long for a line is not kept.

    Args:
        start: offset of the first byte that will come, which begins a line.
        number: of that line among the requests.
    """

    def __init__(self, start: int = 0, number: int = 0, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._start = start
        self._number = number
        self._place = 0
        self._max_bytes = max_line_bytes
        self._pieces: list[bytes] = []
        self._num_bytes = 0  # of the line that has begun

    def feed(self, data: bytes) -> list[InputLine]:
        """The lines that end in these bytes."""
        *ends, rest = data.split(b"\n")
        lines = []
        for end in ends:
            self._add(end)
            if (line := self._take(num_breaks=1)) is not None:
                lines.append(line)
        self._add(rest)
        return lines

    def end(self) -> list[InputLine]:
        """The last line, if it has no line break."""
        line = self._take(num_breaks=0) if self._num_bytes else None
        return [] if line is None else [line]

    def _add(self, piece: bytes) -> None:
        self._num_bytes += len(piece)
        if self._num_bytes <= self._max_bytes + 1:  # the line break may have two characters
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    def _take(self, *, num_breaks: int) -> InputLine | None:
        """The line that is complete, None if it is blank."""
        start, self._start = self._start, self._start + self._num_bytes + num_breaks
        self._place += 1
        data: bytes | None = b"".join(self._pieces)
        if self._num_bytes > self._max_bytes + 1:
            data = None
        self._pieces, self._num_bytes = [], 0
        if data is not None:
            data = data.removesuffix(b"\r")
            data = data.removeprefix(BOM) if start == 0 else data
            if len(data) > self._max_bytes:
                data = None
        if data is not None and not data.strip():
            return None
        self._number += 1
        return InputLine(self._number - 1, self._place, start, self._start, data)


class LineRequest(msgspec.Struct, frozen=True):
    """What a line asks for. `body` is JSON, and not looked into yet."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Head(msgspec.Struct):
    """A line before its values are looked at."""

    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Body(msgspec.Struct):
    """The one field of a body that no line may have."""

    stream: Any = None


class LineProblem(Exception):
    """Why a line is no request of its batch.

    Args:
        code, message, param: as in the `errors` of OpenAI's batches.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


def read_line(data: bytes | None, endpoint: str) -> LineRequest:
    """The request in a line of a batch's input. Raises LineProblem."""
    if data is None:
        raise LineProblem("line_too_long", f"This line is longer than {MAX_LINE_BYTES} bytes.")
    try:
        count_values(data)
        head = _decoder.decode(data)
        custom_id = _custom_id(head.custom_id)
        _check_target(head, endpoint)
        body = _body_decoder.decode(head.body)
    except ApiError as error:  # of `count_values`
        raise LineProblem("invalid_json_line", error.message) from error
    except msgspec.ValidationError as error:
        raise LineProblem("invalid_type", "The line and its 'body' must be JSON objects.", "body") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LineProblem("invalid_json_line", f"This line is no valid JSON: {str(error)[:200]}.") from error
    if body.stream:
        raise LineProblem("invalid_value", "A batch has no streams: leave 'stream' out.", "body.stream")
    return LineRequest(custom_id, head.method, head.url, head.body)


def _custom_id(value: Any) -> str:
    if value is None:
        raise LineProblem("missing_required_parameter", "Missing required parameter: 'custom_id'.", "custom_id")
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_CUSTOM_ID:
        message = f"'custom_id' must be a string of 1 to {MAX_CUSTOM_ID} characters."
        raise LineProblem("invalid_value", message, "custom_id")
    return value


def _check_target(head: _Head, endpoint: str) -> None:
    if head.method != "POST":
        raise LineProblem("invalid_method", "'method' must be 'POST'.", "method")
    if head.url != endpoint:
        message = f"'url' must be the endpoint of the batch, '{endpoint}'."
        raise LineProblem("mismatched_endpoint", message, "url")


_decoder = msgspec.json.Decoder(_Head)
_body_decoder = msgspec.json.Decoder(_Body)
