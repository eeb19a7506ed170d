"""The service's HTTP interface as the commands use it: httpx underneath, errors that a person can act on."""

import contextlib
import http
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import msgspec

from scheduler_svc.client.errors import RequestFailed, ServiceNotReady, ServiceUnreachable
from scheduler_svc.client.options import Service
from scheduler_svc.client.sse import DONE, EventParser

Json = dict[str, Any]

CONNECT_TIMEOUT_S = 5.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Api:
    """A connection to one service; a context manager. Every method raises the errors of `client.errors`."""

    def __init__(self, service: Service) -> None:
        self._url = service.url
        self._http = httpx.Client(**client_settings(service))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def first_model(self) -> Json:
        """The first entry of /v1/models."""
        models: list[Json] = msgspec.json.decode(self.get("/v1/models"))["data"]
        if not models:
            raise ServiceNotReady(f"the service at {self._url} serves no model yet")
        return models[0]

    def model_name(self, asked_for: str | None) -> str:
        """`asked_for`, or else the name of the first model."""
        return asked_for or str(self.first_model()["id"])

    def get(self, path: str) -> bytes:
        """Body of the answer to a GET."""
        with translated_errors(self._url):
            response = self._http.get(path)
        raise_for_error(response)
        return response.content

    def post(self, path: str, body: Json) -> Json:
        """Answer to a request that does not stream."""
        with translated_errors(self._url):
            response = self._http.post(path, json=body)
        raise_for_error(response)
        answer: Json = msgspec.json.decode(response.content)
        return answer

    def stream(self, path: str, body: Json) -> Generator[Json, None, None]:
        """Events of a streamed answer, as they come. Closing the generator cancels the request.

        The request asks for the token counts too (`usage`), which come with the last event.
        """
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        parser = EventParser()
        with translated_errors(self._url), self._http.stream("POST", path, json=body) as response:
            if response.is_error:
                response.read()
            raise_for_error(response)
            for received in response.iter_bytes():
                for data in parser.feed(received):
                    if data == DONE:
                        return
                    event: Json = msgspec.json.decode(data)
                    if "error" in event:
                        raise RequestFailed(error_message(event))
                    yield event
        raise RequestFailed("the service ended the stream in the middle of the answer")


def client_settings(service: Service) -> dict[str, Any]:
    """Arguments for `httpx.Client` and `httpx.AsyncClient` alike."""
    return {
        "base_url": service.url,
        "headers": {"Authorization": f"Bearer {service.api_key}"} if service.api_key else {},
        "timeout": httpx.Timeout(service.timeout_s, connect=CONNECT_TIMEOUT_S),
        # HTTP_PROXY is meant for the world outside, not for a service on this machine.
        "trust_env": urlsplit(service.url).hostname not in _LOOPBACK,
    }


@contextlib.contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Turn httpx's errors into ours.

    Raises:
        ServiceUnreachable: no connection.
        RequestFailed: the connection broke, or nothing came for too long.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise ServiceUnreachable(url, str(error) or "no answer") from error
    except httpx.TimeoutException as error:
        raise RequestFailed("the service has sent nothing for too long; see --timeout") from error
    except httpx.HTTPError as error:
        raise RequestFailed(f"the connection to {url} broke: {error or type(error).__name__}") from error


def raise_for_error(response: httpx.Response) -> None:
    """Raise the error a complete response stands for, if it is one.

    Raises:
        ServiceNotReady: status 503.
        RequestFailed: any other status from 400 on.
    """
    if not response.is_error:
        return
    try:
        message = error_message(response.json())
    except ValueError:
        message = response.text.strip()[:300] or response.reason_phrase
    kind = ServiceNotReady if response.status_code == http.HTTPStatus.SERVICE_UNAVAILABLE else RequestFailed
    raise kind(f"{message} (HTTP {response.status_code})")


def error_message(answer: Any) -> str:
    """The message in an error answer: OpenAI's `{"error": {"message": ...}}`, or whatever else there is."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    return str(error["message"]) if isinstance(error, dict) and "message" in error else str(error)
