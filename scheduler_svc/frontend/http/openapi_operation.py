"""One method of one endpoint, as the OpenAPI document describes it."""

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"


@dataclass(frozen=True)
class Operation:
    """One method of one endpoint.

    Attributes:
        body: name of the request's schema; `is_optional` if it may be absent.
        body_type: media type of the request.
        answers: schemas of what status 200 comes with, by media type; none for status 204. Events have the schema of
            their data.
        is_open: whether it needs no API key.
        headers: that the request may have.
        error: schema of what it is answered with if it is refused or fails.
        last_event: what says that a stream is complete.
        query: schemas of the parameters that its address may have, by name.
    """

    method: str
    path: str
    summary: str
    body: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    is_optional: bool = False
    is_open: bool = False
    headers: tuple[str, ...] = ()
    error: str = "ErrorAnswer"
    last_event: str = "The data of the last one is [DONE]."
    query: dict[str, Json] = field(default_factory=dict)
    body_type: str = JSON
