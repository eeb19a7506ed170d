"""`baton responses`: responses that the service keeps, also those that go on without a client."""

import sys
from pathlib import Path
from typing import Any

import click

from common.installation import this_command
from scheduler_svc.client.errors import EXIT_CODES_HELP
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.options import (
    json_schema_option,
    model_option,
    resuming_service_options,
    sampling_options,
    service_options,
    thinking_options,
    tools_option,
)
from scheduler_svc.client.request_files import read_schema, read_tools, stdin_message
from scheduler_svc.client.service_address import ServiceAddress

_show_thinking = click.option("--show-thinking", "shows_thought", is_flag=True, help="Write thoughts too, to stderr.")
_json = click.option("--json", "as_json", is_flag=True, help="Write the response as one JSON object.")


@click.group(epilog=EXIT_CODES_HELP)
def command() -> None:
    """Make responses that the service keeps, and follow them.

    A service with a store keeps a response until it is deleted or too old. One in the background goes on without its
    client, and whatever is restarted; its text can be read again from any place.

    \b
    Example:
      baton responses create "Who was Romeo?"
      baton responses create --previous resp_... "And Juliet?"
      id=$(baton responses create --background "Tell me a long story.")
      baton responses follow $id                Ctrl-C leaves it running; cancel ends it
      baton responses get $id
    """


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("prompt", required=False)
@click.option("--previous", default="", metavar="ID", help="Go on from this response.")
@click.option("--instructions", default="", help="Tells the model how to behave, in this answer alone.")
@click.option("--background", is_flag=True, help="Write the response's id at once; it goes on without this command.")
@click.option("--follow", "follows", is_flag=True, help="With --background: show it, as `baton responses follow` does.")
@sampling_options(default_max_tokens=None, limit="max_output_tokens")
@thinking_options
@_show_thinking
@json_schema_option
@tools_option
@click.option("--tool-output", "tool_outputs", multiple=True, metavar="CALL_ID=TEXT", help="What a call of the "
              "response before gave; may be given several times.")  # fmt: skip
@click.option("--no-store", is_flag=True, help="The service does not keep it.")
@_json
@model_option
@resuming_service_options
def create(
    *,
    prompt: str | None,
    previous: str,
    instructions: str,
    background: bool,
    follows: bool,
    sampling: dict[str, Any],
    thinking: bool | None,
    reasoning_effort: str | None,
    shows_thought: bool,
    schema_file: Path | None,
    tools_file: Path | None,
    tool_outputs: tuple[str, ...],
    no_store: bool,
    as_json: bool,
    model: str | None,
    service: ServiceAddress,
) -> None:
    """Answer PROMPT.

    PROMPT is read from stdin if it is missing or `-`; with --tool-output it may be missing. Calls of tools are written
    as a line each. Ctrl-C ends the response, but for one in the background: that goes on.

    \b
    Example:
      baton responses create "Who was Romeo?" --instructions "Answer in one sentence."
    """
    from scheduler_svc.client.responses.follow import Form, queue  # noqa: PLC0415
    from scheduler_svc.client.responses.follow import create as create_and_show  # noqa: PLC0415
    from scheduler_svc.client.responses.question import ResponseQuestion  # noqa: PLC0415
    from scheduler_svc.client.responses.show import as_json as written_as_json  # noqa: PLC0415

    if follows and not background:
        raise click.UsageError("--follow goes with --background; without that the text is shown anyway")
    if background and no_store:
        raise click.UsageError("--background and --no-store exclude each other")
    question = ResponseQuestion(
        prompt="" if prompt is None and tool_outputs else _read(prompt),
        tool_outputs=tuple(map(_tool_output, tool_outputs)),
        previous=previous,
        instructions=instructions,
        tools=None if tools_file is None else read_tools(tools_file),
        schema=None if schema_file is None else read_schema(schema_file),
        thinks=thinking,
        reasoning_effort=reasoning_effort,
        stores=not no_store,
        in_background=background,
        fields=sampling,
    )
    with connect(service) as api:
        body = {"model": api.model_name(model), **question.body()}
        if background and not follows:
            response = queue(api, body)
            click.echo(written_as_json(response) if as_json else response["id"])
            return
        form = Form("json" if as_json else "text", shows_thought, is_timed=True)
        create_and_show(api, body, service.reconnect_timeout_s, form)


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("response_id", metavar="ID")
@_show_thinking
@_json
@service_options
def get(*, response_id: str, shows_thought: bool, as_json: bool, service: ServiceAddress) -> None:
    """Show the response ID: its text and its calls.

    One that has not ended has no text here, and is a failure; --json shows how far it is.
    """
    from scheduler_svc.client.errors import RequestFailed  # noqa: PLC0415  (not for --help)
    from scheduler_svc.client.http.response_reading import is_open  # noqa: PLC0415
    from scheduler_svc.client.responses.follow import get_response  # noqa: PLC0415
    from scheduler_svc.client.responses.show import as_json as written_as_json  # noqa: PLC0415
    from scheduler_svc.client.responses.show import settle, show_response  # noqa: PLC0415

    with connect(service) as api:
        response = get_response(api, response_id)
    if as_json:
        click.echo(written_as_json(response))
        return
    if is_open(response):
        raise RequestFailed(
            f"it is {response['status']}; `{this_command()} responses follow {response_id}` shows it as it comes"
        )
    show_response(response, shows_thought=shows_thought)
    settle(response)


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("response_id", metavar="ID")
@click.option("--after", default=-1, type=click.IntRange(min=-1), metavar="N", help="Only what came after the event "
              "with the sequence number N.")  # fmt: skip
@_show_thinking
@click.option("--events", "as_events", is_flag=True, help="Write each event as a line of JSON.")
@_json
@resuming_service_options
def follow(
    *, response_id: str, after: int, shows_thought: bool, as_events: bool, as_json: bool, service: ServiceAddress
) -> None:
    """Show the response ID while it is written.

    It is one in the background, and is shown from its beginning. A broken connection is made again, and each piece of
    text is shown once. Ctrl-C leaves the response running, and says how to read the rest.
    """
    from scheduler_svc.client.responses.follow import Form  # noqa: PLC0415  (not for --help)
    from scheduler_svc.client.responses.follow import follow as show_rest  # noqa: PLC0415

    if as_events and as_json:
        raise click.UsageError("--events and --json exclude each other")
    form = Form("events" if as_events else "json" if as_json else "text", shows_thought)
    with connect(service) as api:
        show_rest(api, response_id, after, service.reconnect_timeout_s, form)


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("response_ids", metavar="ID...", nargs=-1, required=True)
@service_options
def cancel(*, response_ids: tuple[str, ...], service: ServiceAddress) -> None:
    """End responses in the background. One that has ended stays as it is."""
    from scheduler_svc.client.http.response_reading import response_path  # noqa: PLC0415  (not for --help)

    with connect(service) as api:
        for response_id in response_ids:
            response = api.post(f"{response_path(response_id)}/cancel", {})
            click.echo(f"{response_id}: {response['status']}")


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("response_ids", metavar="ID...", nargs=-1, required=True)
@service_options
def delete(*, response_ids: tuple[str, ...], service: ServiceAddress) -> None:
    """Have the service forget responses. One that is in the background ends."""
    from scheduler_svc.client.http.response_reading import response_path  # noqa: PLC0415  (not for --help)

    with connect(service) as api:
        for response_id in response_ids:
            api.delete(response_path(response_id))
            click.echo(f"{response_id}: deleted")


@command.command(epilog=EXIT_CODES_HELP)
@click.argument("response_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list of objects.")
@service_options
def items(*, response_id: str, as_json: bool, service: ServiceAddress) -> None:
    """Show what the response ID answers.

    These are its own items; those of the responses before it are theirs.
    """
    from scheduler_svc.client.responses.follow import input_items  # noqa: PLC0415  (not for --help)
    from scheduler_svc.client.responses.show import as_json as written_as_json  # noqa: PLC0415
    from scheduler_svc.client.responses.show import item_line  # noqa: PLC0415

    with connect(service) as api:
        found = input_items(api, response_id)
    if as_json:
        click.echo(written_as_json(found))
        return
    for item in found:
        click.echo(item_line(item))


def _read(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError("no PROMPT; give one, or pipe one in")
    return stdin_message() if prompt in (None, "-") else str(prompt)


def _tool_output(given: str) -> tuple[str, str]:
    call_id, is_given, text = given.partition("=")
    if not (call_id and is_given):
        raise click.UsageError(f"--tool-output {given}: it should be CALL_ID=TEXT")
    return call_id, text
