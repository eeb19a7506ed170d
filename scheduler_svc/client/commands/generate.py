"""`baton generate`: continue one prompt."""

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from scheduler_svc.client.errors import EXIT_CODES_HELP
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.options import model_option, resuming_service_options, sampling_options
from scheduler_svc.client.output import AnswerTimer, say, write_text
from scheduler_svc.client.service_address import ServiceAddress

if TYPE_CHECKING:
    from scheduler_svc.client.http.api import Api, Json

_PATH = "/v1/completions"


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("prompt", required=False)
@sampling_options(default_max_tokens=256)
@click.option("--n", default=1, show_default=True, type=click.IntRange(min=1), help="How many answers.")
@click.option("--stream/--no-stream", default=True, show_default=True, help="Write the text as it comes.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object: text, choices, usage.")
@model_option
@resuming_service_options
def command(
    *,
    prompt: str | None,
    sampling: dict[str, Any],
    n: int,
    stream: bool,
    as_json: bool,
    model: str | None,
    service: ServiceAddress,
) -> None:
    """Continue a prompt.

    PROMPT is read from stdin if it is missing or `-`.

    \b
    Example:
      baton generate "ROMEO:" --max-tokens 100 --temperature 0.8 --seed 7
    """
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError("no PROMPT; give one, or pipe one in")
    if prompt in (None, "-"):
        prompt = sys.stdin.read()
    with connect(service) as api:
        body = {"model": api.model_name(model), "prompt": prompt, "n": n, **sampling}
        if stream and n == 1 and not as_json:
            _stream(api, body)
            return
        answer = api.complete(_PATH, body)
    if as_json:
        click.echo(_as_json(answer))
    else:
        _show_all(answer["choices"])


def _stream(api: "Api", body: "Json") -> None:
    timer = AnswerTimer()
    with contextlib.closing(api.stream(_PATH, body)) as events:
        for event in events:
            timer.see(event)
            for choice in event["choices"]:
                write_text(choice["text"])
    write_text("\n")
    timer.report()


def _show_all(choices: "list[Json]") -> None:
    """Write all answers to stdout, and their numbers to stderr."""
    for choice in choices:
        if len(choices) > 1:
            say(f"── answer {choice['index'] + 1} of {len(choices)} ──", dim=True)
        write_text(choice["text"] + "\n")


def _as_json(answer: "Json") -> str:
    """The answer as one line of JSON: the first choice's `text`, then all fields that a script may need."""
    import msgspec  # noqa: PLC0415  (not needed for --help)

    choices = [{key: choice.get(key) for key in ("index", "text", "finish_reason")} for choice in answer["choices"]]
    kept = {key: answer.get(key) for key in ("id", "model", "system_fingerprint", "usage")}
    return msgspec.json.encode({"text": choices[0]["text"], "choices": choices, **kept}).decode()
