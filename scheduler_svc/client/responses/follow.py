"""Showing a response while it is written, and saying how to go on when that is cut short."""

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from common.installation import this_command
from scheduler_svc.client.errors import ConnectionBroke, RequestFailed, ServiceSilent
from scheduler_svc.client.http.response_reading import PATH, ResponseReading, response_path
from scheduler_svc.client.http.resume import is_outage
from scheduler_svc.client.interrupts import held_interrupts
from scheduler_svc.client.output import AnswerTimer, notice
from scheduler_svc.client.responses.show import ResponseView, as_json, settle, show_response

if TYPE_CHECKING:
    from scheduler_svc.client.http.api import Api

Json = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """How a response is written.

    Attributes:
        kind: text, or one JSON object at its end, or each event as a line of JSON.
        shows_thought: whether thoughts are written beside a text, or folded.
        is_timed: whether it is measured.
    """

    kind: Literal["text", "json", "events"] = "text"
    shows_thought: bool = False
    is_timed: bool = False


def get_response(api: "Api", response_id: str) -> Json:
    """A response as it is now. Raises RequestFailed (404) if there is none."""
    return api.get_json(response_path(response_id))


def input_items(api: "Api", response_id: str) -> list[Json]:
    """What a response answers, without the responses before it, in its order."""
    items: list[Json] = []
    has_more, after = True, ""
    while has_more:
        page = api.get_json(f"{response_path(response_id)}/input_items?order=asc&limit=100{after}")
        items += page["data"]
        has_more, after = page["has_more"] and page["data"], f"&after={page['last_id']}"
    return items


def create(api: "Api", body: Json, limit_s: float, form: Form) -> None:
    """Make a response and show it while it comes. One in the background survives a broken connection.

    Raises:
        RequestFailed: there is no response, or it failed.
    """
    is_background = bool(body.get("background"))
    reading = ResponseReading(limit_s, body=body)
    try:
        _show(api, reading, form, tells_id=is_background)
    except ConnectionBroke:
        if not is_background:
            notice("this response has ended with its connection; one with --background --follow goes on")
        raise


def queue(api: "Api", body: Json) -> Json:
    """Make a response in the background, and return it as it is then."""
    return api.post(PATH, body)


def follow(api: "Api", response_id: str, after: int, limit_s: float, form: Form) -> None:
    """Show what comes of a response in the background after the event with the number `after`.

    Raises:
        RequestFailed: it failed, or its events cannot be had.
    """
    reading = ResponseReading(limit_s, response_id=response_id, after=after)
    try:
        _show(api, reading, form)
    except RequestFailed as error:
        if error.code != "events_not_found" or form.kind == "events" or reading.after >= 0:
            raise
        response = get_response(api, response_id)  # without events, such as one that never ran
        if form.kind == "json":
            click.echo(as_json(response))
        else:
            show_response(response, shows_thought=form.shows_thought)
        settle(response)


def _show(api: "Api", reading: ResponseReading, form: Form, *, tells_id: bool = False) -> None:
    view = ResponseView(shows_thought=form.shows_thought, timer=AnswerTimer() if form.is_timed else None)
    shown = reading.after
    try:
        with contextlib.closing(api.events(reading)) as events:
            for event in events:
                if tells_id and reading.response_id:
                    notice(reading.response_id)
                    tells_id = False
                with held_interrupts():  # what is not shown is not counted either
                    if form.kind == "text":
                        view.add(event)
                    elif form.kind == "events":
                        click.echo(as_json(event))
                    shown = reading.after
    except (KeyboardInterrupt, click.ClickException) as error:
        view.stop()
        if reading.goes_on and _is_elsewhere(error):
            rest = f"{reading.response_id} --after {shown}" if form.kind != "json" else reading.response_id
            notice(f"{reading.response_id} goes on; `{this_command()} responses follow {rest}` shows the rest")
        raise
    response = reading.last or {}
    if form.kind == "text":
        view.end()
    elif form.kind == "json":
        click.echo(as_json(response))
    settle(response)


def _is_elsewhere(error: BaseException) -> bool:
    """Whether the reader has gone, and not the response."""
    if not isinstance(error, click.ClickException):
        return True
    return is_outage(error) or isinstance(error, ServiceSilent)
