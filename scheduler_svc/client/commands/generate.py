"""`baton generate`: continue one prompt."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scheduler_svc.client.errors import EXIT_CODES_HELP
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.options import (
    json_schema_option,
    model_option,
    resuming_service_options,
    sampling_options,
    tools_option,
)
from scheduler_svc.client.output import AnswerTimer
from scheduler_svc.client.request_files import read_schema, read_tools, stdin_message, stdin_text
from scheduler_svc.client.service_address import ServiceAddress

if TYPE_CHECKING:
    from scheduler_svc.client.http.api import Api, Json


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("prompt", required=False)
@sampling_options(default_max_tokens=256)
@json_schema_option
@tools_option
@click.option("--logprobs", type=click.IntRange(0, 20), metavar="N", help="Write a line for each token: its "
              "log-probability, its probability, and the N likeliest tokens in its place.")  # fmt: skip
@click.option("--prompt-logprobs", type=click.IntRange(0, 20), metavar="N", help="First write a line for each token of "
              "the prompt after its first: its log-probability, its probability, its rank in the whole vocabulary, and "
              "the N likeliest tokens in its place. The answer comes as a whole.")  # fmt: skip
@click.option("--n", default=1, show_default=True, type=click.IntRange(min=1), help="How many answers.")
@click.option("--stream/--no-stream", default=True, show_default=True, help="Write the text as it comes.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object: text, choices, usage.")
@model_option
@resuming_service_options
def command(
    *,
    prompt: str | None,
    sampling: dict[str, Any],
    schema_file: Path | None,
    tools_file: Path | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    n: int,
    stream: bool,
    as_json: bool,
    model: str | None,
    service: ServiceAddress,
) -> None:
    """Continue a prompt.

    PROMPT is read from stdin if it is missing or `-`. With --tools it is not continued, but sent as the message of a
    user: only chats know tools. Calls of tools are written as a line each, and with --json as `tool_calls`.

    \b
    Example:
      baton generate "ROMEO:" --max-tokens 100 --temperature 0.8 --seed 7
    """
    from scheduler_svc.client.generate.question import Question  # noqa: PLC0415  (none of these is needed for --help)
    from scheduler_svc.client.generate.show import as_json as written_as_json  # noqa: PLC0415
    from scheduler_svc.client.generate.show import show_choices, show_prompt  # noqa: PLC0415

    tools = None if tools_file is None else read_tools(tools_file)
    schema = None if schema_file is None else read_schema(schema_file)
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError("no PROMPT; give one, or pipe one in")
    if prompt in (None, "-"):
        prompt = stdin_text() if tools is None else stdin_message()
    question = Question(prompt, tools, schema, logprobs, prompt_logprobs)
    with connect(service) as api:
        body = {"model": api.model_name(model), "n": n, **question.body(), **sampling}
        if stream and n == 1 and not as_json and not question.needs_whole_answer:
            _stream(api, question.path, body, as_rows=logprobs is not None)
            return
        answer = (api.post if question.needs_whole_answer else api.complete)(question.path, body)
    if as_json:
        click.echo(written_as_json(answer))
    else:
        show_prompt(answer, prompt_logprobs)
        show_choices(answer["choices"], as_rows=logprobs is not None)


def _stream(api: "Api", path: str, body: "Json", *, as_rows: bool) -> None:
    """Show the only choice of an answer while it comes."""
    from scheduler_svc.client.generate.show import show_choice  # noqa: PLC0415  (not for --help)

    timer = AnswerTimer()

    def chunks(events: Iterable["Json"]) -> Iterator["Json"]:
        for event in events:
            timer.see(event)
            yield from event["choices"]

    with contextlib.closing(api.stream(path, body)) as events:
        show_choice(chunks(events), as_rows=as_rows)
    timer.report()
