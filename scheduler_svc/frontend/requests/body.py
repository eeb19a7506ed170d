"""From a body's bytes to a checked request. What is in it is counted before it is decoded, and looked at before it is
validated: each of these steps costs far more for a byte than the one before.
"""

import json
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.ignored import IgnoredNames
from scheduler_svc.frontend.requests.validation import describe_validation
from scheduler_svc.frontend_options import FrontendOptions

MAX_VALUES = 2**18  # numbers above all: token ids
MAX_STRINGS = 2**15  # with the names of fields
MAX_CONTAINERS = 2**15  # objects and arrays
MAX_FIELDS = 1024  # of one object
MAX_DEPTH = 64
MAX_MESSAGES = 4096
MAX_NUMBER_CHARACTERS = 256  # of one: reading a long integer takes the square of its length
GZIP = b"\x1f\x8b"

Schema = TypeVar("Schema", bound=BaseModel)


class BodyLimits(NamedTuple):
    """How much a body may have, as it is counted before it is decoded."""

    strings: int = MAX_STRINGS
    values: int = MAX_VALUES
    containers: int = MAX_CONTAINERS


LIMITS = BodyLimits()


class Parsed(NamedTuple, Generic[Schema]):
    """A request.

    Attributes:
        ignored: names of fields that it has and that have no meaning here, and of parts that were left out.
        left_out: those parts alone.
    """

    body: Schema
    ignored: tuple[str, ...]
    left_out: tuple[str, ...]


def parse(raw: bytes, schema: type[Schema], options: FrontendOptions | None = None) -> Schema:
    """A request as its schema has it. Raises ApiError (400) for what it is not."""
    return parse_noting(raw, schema, options).body


def parse_noting(raw: bytes, schema: type[Schema], options: FrontendOptions | None = None) -> Parsed[Schema]:
    """The same, and what of it is ignored.

    Args:
        options: say what is ignored instead of refused; None for the defaults.
    """
    count_values(raw)
    content = decoded(raw)
    if not isinstance(content, dict):
        raise ApiError(400, "The body must be a JSON object, sent as application/json.", code="invalid_type")
    check_shape(content)
    ignored = IgnoredNames(options or FrontendOptions())
    try:
        return Parsed(schema.model_validate(content, context=ignored), ignored.names(), ignored.left_out())
    except ValidationError as error:
        raise describe_validation(error, schema, content) from error


def decoded(raw: bytes) -> Any:
    """JSON in UTF-8 as Python's values. Raises ApiError (400), which says what kind of thing it is that is none."""
    if raw.startswith(GZIP):
        raise _no_json("it is compressed (gzip), and has to be sent as it is")
    try:
        # Not the bytes themselves: they could be UTF-16, and were not counted as that.
        return loads(raw.decode("utf-8-sig") or "{}", parse_constant=_no_constant)
    except RecursionError:
        raise too_much("is nested", MAX_DEPTH, "levels deep") from None
    except UnicodeDecodeError as error:
        raise _no_json(f"it is not UTF-8: {error.reason}, 0x{raw[error.start]:02x} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise _no_json(f"{error.msg} at character {error.pos}") from error
    except ValueError as error:
        raise _no_json(f"it has {error}") from error


def loads(text: str, **options: Any) -> Any:
    """As `json.loads`, but numbers are read in Python and not in C, so that other threads have a turn between them.
    Raises ValueError also for a number of more than `MAX_NUMBER_CHARACTERS`."""
    return json.loads(text, parse_int=_integer, parse_float=_real, **options)


def count_values(raw: bytes, limits: BodyLimits = LIMITS) -> None:
    """Refuse JSON in UTF-8 with too many values. Exact for valid JSON; what is not valid is never counted lower than a
    decoder gets in it. Every step is one pass in C."""
    quotes, commas, containers = raw.count(b'"'), raw.count(b","), raw.count(b"[") + raw.count(b"{")
    if quotes // 2 > limits.strings or commas > limits.values or containers > limits.containers:
        # Texts may have as many of these signs as they like: count those outside of strings. A string has no quote in
        # it when escaped signs are gone, and its two ends are every second quote.
        raw = raw.replace(rb"\\", b"").replace(rb"\"", b"")
        quotes = raw.count(b'"')
        if quotes // 2 > limits.strings:
            raise too_much("has", limits.strings, "strings")
        outside = b"".join(raw.split(b'"')[::2])
        commas, containers = outside.count(b","), outside.count(b"[") + outside.count(b"{")
    if commas > limits.values:
        raise too_much("has", limits.values, "values")
    if containers > limits.containers:
        raise too_much("has", limits.containers, "objects and arrays")


def check_shape(content: dict[str, Any]) -> None:
    """Refuse objects with too many fields, what is nested too deeply, and too many messages."""
    messages = content.get("messages")
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise ApiError(
            400,
            f"'messages' has {len(messages)} messages, the limit is {MAX_MESSAGES}.",
            code="invalid_value",
            param="messages",
        )
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH):
        for value in level:
            if isinstance(value, dict) and len(value) > MAX_FIELDS:
                raise too_much("has an object with", MAX_FIELDS, "fields")
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        if not level:
            return
    raise too_much("is nested", MAX_DEPTH, "levels deep")


def too_much(verb: str, limit: int, what: str) -> ApiError:
    """The error for a body beyond a limit."""
    return ApiError(400, f"The body {verb} more than {limit} {what}.", code="invalid_value")


def _no_json(reason: str) -> ApiError:
    return ApiError(400, f"The body is not valid JSON: {reason}.", code="invalid_json")


def _integer(text: str) -> int:
    return int(_short(text))


def _real(text: str) -> float:
    return float(_short(text))


def _short(text: str) -> str:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise ValueError(f"a number of more than {MAX_NUMBER_CHARACTERS} characters")
    return text


def _no_constant(name: str) -> Any:
    raise _no_json(f"{name} is no number of JSON")
