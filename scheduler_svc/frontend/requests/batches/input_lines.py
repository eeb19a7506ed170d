"""The input of a batch, cut into lines, and each line taken apart. Pure."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.body import count_values

MAX_LINES = 50_000  # as OpenAI has it
MAX_LINE_BYTES = 8 * 2**20  # as long as a body may be
MAX_CUSTOM_ID = 512
BOM = b"\xef\xbb\xbf"
_SOLID = re.compile(rb"\S")  # what no blank line has


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
    """Cuts bytes into lines, wherever the bytes themselves were cut. What is too long for a line is not kept; a blank
    line may be of any length.

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
        self._is_blank = True

    def feed(self, data: bytes) -> Iterator[InputLine]:
        """The lines that end in these bytes, cut off one at a time as they are asked for; all of them are to be taken
        before the next bytes come. Blank ones, of which there may be one in each byte, cost no step."""
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            self._add(data[at:end])
            if (line := self._take(num_breaks=1)) is not None:
                yield line
            at = self._skip_blank(data, end + 1)
        self._add(data[at:])

    def end(self) -> Iterator[InputLine]:
        """The last line, if it has no line break."""
        if self._num_bytes and (line := self._take(num_breaks=0)) is not None:
            yield line

    def _skip_blank(self, data: bytes, start: int) -> int:
        """Pass blank lines from the beginning of a line on. Returns where the first other line begins, or the last one
        if its end is not in `data`."""
        solid = _SOLID.search(data, start)
        end = data.rfind(b"\n", start, solid.start() if solid else len(data)) + 1
        if not end:
            return start
        self._start += end - start
        self._place += data.count(b"\n", start, end)
        return end

    def _add(self, piece: bytes) -> None:
        self._num_bytes += len(piece)
        self._is_blank = self._is_blank and _SOLID.search(piece) is None
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
        is_blank = self._is_blank
        self._pieces, self._num_bytes, self._is_blank = [], 0, True
        if data is not None:
            data = data.removesuffix(b"\r")
            if start == 0 and data.startswith(BOM):
                data = data[len(BOM) :]
                is_blank = not data.strip()
            if len(data) > self._max_bytes:
                data = None
        if is_blank:
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
