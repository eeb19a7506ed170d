"""What went wrong with an HTTP request, as the errors that commands fail with."""

import contextlib
import http
import math
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec

from scheduler_svc.client.errors import (
    ConnectionBroke,
    RequestFailed,
    ServiceNotReady,
    ServiceSilent,
    ServiceUnreachable,
)

Json = dict[str, Any]

_MAX_ERROR_BYTES = 300
_MAX_SHOWN_BYTES = 100


@contextlib.contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Turn httpx's errors into ours.

    Raises:
        ServiceUnreachable: no connection.
        ServiceSilent: the service sent nothing for too long.
        ConnectionBroke: the connection broke in the middle of a request or an answer.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise ServiceUnreachable(url, str(error) or "no answer") from error
    except httpx.TimeoutException as error:
        raise ServiceSilent from error
    except httpx.HTTPError as error:
        raise ConnectionBroke(url, str(error) or type(error).__name__) from error


def raise_for_error(response: httpx.Response) -> None:
    """Raise the error a complete response stands for, if it is one.

    Raises:
        ServiceNotReady: status 503.
        RequestFailed: any other status from 400 on.
    """
    if response.is_error:
        retry_after_s = seconds_of(response.headers.get("retry-after"))
        raise failure(response.status_code, response.content, retry_after_s)


def seconds_of(retry_after: str | None) -> float:
    """The seconds in a `retry-after` header; 0 without one, and for a date."""
    try:
        seconds = float(retry_after or 0)
    except ValueError:
        return 0.0
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def failure(status: int, body: bytes, retry_after_s: float = 0.0) -> RequestFailed:
    """The error that an HTTP answer with an error status stands for."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = body[:_MAX_ERROR_BYTES].decode(errors="replace").strip() or httpx.codes.get_reason_phrase(status)
    if isinstance(answer, str) and answer.startswith("<"):  # a page, of a proxy or of another server
        answer = httpx.codes.get_reason_phrase(status)
        if status in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.METHOD_NOT_ALLOWED, http.HTTPStatus.NOT_IMPLEMENTED):
            answer = "what answers has no API of OpenAI's; does --url name the service?"
    kind = ServiceNotReady if status == http.HTTPStatus.SERVICE_UNAVAILABLE else RequestFailed
    hint = (
        "; give an API key in BATON_API_KEY (or --api-key, which other users can see)"
        if status == http.HTTPStatus.UNAUTHORIZED
        else ""
    )
    message = f"{error_message(answer)} (HTTP {status}){hint}"
    return kind(message, status=status, code=error_code(answer), retry_after_s=retry_after_s)


def json_object(content: bytes, url: str) -> Json:
    """The JSON object that a good answer is.

    Raises:
        RequestFailed: it is something else, such as the HTML of another server.
    """
    try:
        answer = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = None
    if isinstance(answer, dict):
        return answer
    shown = content[:_MAX_SHOWN_BYTES].decode(errors="replace").strip()
    raise RequestFailed(f"{url} answers with something else than a JSON object; does --url name the service? {shown!r}")


def error_message(answer: Any) -> str:
    """The message in an error answer: OpenAI's `{"error": {"message": ...}}`, or the whole answer as text."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    return str(error["message"]) if isinstance(error, dict) and "message" in error else str(error)


def error_code(answer: Any) -> str:
    """The code in an error answer; empty if there is none."""
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error.get("code") or "") if isinstance(error, dict) else ""
