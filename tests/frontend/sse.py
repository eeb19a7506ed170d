"""Streams as a client sees them that may break off."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx

from tests.support.frontend_process import Frontend
from tests.support.plain_http import http


class Event(NamedTuple):
    """One server-sent event; `data` is parsed unless it is [DONE]."""

    id: str
    data: Any


def events_of(body: bytes) -> list[Event]:
    """The events in a complete answer."""
    return [_event(part) for part in body.decode().split("\n\n") if part]


def events_in(answer: httpx.Response) -> Iterator[Event]:
    """Events as they come; closing it breaks the connection."""
    buffer = ""
    for text in answer.iter_text():
        *parts, buffer = (buffer + text).split("\n\n")
        yield from map(_event, parts)


def events_after(frontend: Frontend, request_id: str, event_id: str = "", **headers: str) -> httpx.Response:
    """The complete answer of the events endpoint."""
    headers |= {"last-event-id": event_id} if event_id else {}
    return http.get(f"{frontend.url}/v1/requests/{request_id}/events", headers=headers)


def text_of(events: list[Event], choice: int = 0) -> str:
    """The text of one choice."""
    text = ""
    for event in events:
        for part in event.data.get("choices", []) if isinstance(event.data, dict) else []:
            if part["index"] == choice:
                text += part["text"] if "text" in part else part["delta"].get("content", "")
    return text


def _event(part: str) -> Event:
    fields = dict(line.split(": ", 1) for line in part.split("\n"))
    data = fields["data"]
    return Event(fields.get("id", ""), data if data == "[DONE]" else json.loads(data))
