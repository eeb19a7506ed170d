"""A form with a file in it, read while it comes: no part of it is ever in memory as a whole.

`python_multipart` finds the parts. Starlette's own reader of forms would write a file to a disk, or to a memory that
looks like one, before the store has its first byte.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from scheduler_svc.frontend.errors import ApiError

MAX_PARTS = 32
MAX_NAME_CHARACTERS = 255
MULTIPART = b"multipart/form-data"


@dataclass(frozen=True)
class PartBegins:
    """A part's head.

    Attributes:
        filename: None for a part that is no file.
    """

    name: str
    filename: str | None


@dataclass(frozen=True)
class PartData:
    """Some bytes of the part that has begun."""

    data: bytes


@dataclass(frozen=True)
class PartEnds:
    """The part is whole."""


FormEvent = PartBegins | PartData | PartEnds


class FormReader:
    """Gives the events of the bytes that it is fed. Raises ApiError (400) for what is no form.

    Args:
        content_type: the request's header.
    """

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        if kind != MULTIPART or not options.get(b"boundary"):
            message = "The body must be a form with a file, sent as multipart/form-data."
            raise ApiError(400, message, code="invalid_type")
        self._events: list[FormEvent] = []
        self._head = _Head()
        self._num_parts = 0
        self._has_ended = False
        callbacks = {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._end_form,
        }
        try:
            self._parser = MultipartParser(options[b"boundary"], callbacks)  # type: ignore[arg-type]
        except FormParserError as error:
            raise _no_form(str(error)) from error

    def feed(self, data: bytes) -> list[FormEvent]:
        """The events in these bytes, in their order."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _no_form(str(error)) from error
        events, self._events = self._events, []
        return events

    def end(self) -> None:
        """No more bytes come. Raises ApiError if the form has no end."""
        if not self._has_ended:
            raise _no_form("its end is missing")

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise _no_form(f"it has more than {MAX_PARTS} parts")
        self._head = _Head()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._head.field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._head.value += data[start:end]

    def _header_end(self) -> None:
        self._head.keep()

    def _headers_finished(self) -> None:
        self._events.append(self._head.begins())

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(PartData(data[start:end]))

    def _end(self) -> None:
        self._events.append(PartEnds())

    def _end_form(self) -> None:
        self._has_ended = True


class _Head:
    """Headers of a part, as they come."""

    def __init__(self) -> None:
        self.field, self.value = b"", b""  # of the header that comes
        self._names: dict[bytes, bytes] = {}

    def keep(self) -> None:
        """A header is whole."""
        if self.field.lower() == b"content-disposition":
            _, self._names = parse_options_header(self.value.decode("latin-1"))
        elif self.field.lower() == b"content-transfer-encoding" and self.value.lower() not in (b"binary", b"8bit"):
            raise _no_form("a part is encoded")
        self.field, self.value = b"", b""

    def begins(self) -> PartBegins:
        """What is known of the part before its bytes."""
        name, filename = self._names.get(b"name"), self._names.get(b"filename")
        if name is None:
            raise _no_form("a part has no name")
        return PartBegins(_text(name), None if filename is None else _text(filename))


async def form_events(request: Request) -> AsyncIterator[FormEvent]:
    """What a request's form consists of, while it comes.

    Raises:
        ApiError: (400) it is no form.
        ClientDisconnect: its end does not come.
    """
    reader = FormReader(request.headers.get("content-type", ""))
    async for chunk in request.stream():
        for event in reader.feed(chunk):
            yield event
    reader.end()


def _text(name: bytes) -> str:
    try:
        return name.decode()[:MAX_NAME_CHARACTERS]
    except UnicodeDecodeError:
        raise _no_form("a name is not UTF-8") from None


def _no_form(reason: str) -> ApiError:
    return ApiError(400, f"The body is no form of multipart/form-data: {reason[:200]}.", code="invalid_value")
