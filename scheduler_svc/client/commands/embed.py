"""`baton embed`: vectors of texts."""

import sys
from pathlib import Path

import click

from common.paths import ExistingPath
from scheduler_svc.client.errors import EXIT_CODES_HELP
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.options import resuming_service_options
from scheduler_svc.client.request_files import file_text, stdin_text
from scheduler_svc.client.service_address import ServiceAddress

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("texts", nargs=-1)
@click.option("--file", "texts_file", type=ExistingPath(dir_okay=False, allow_dash=True),
              help="File whose lines are the texts; - is stdin.")  # fmt: skip
@click.option("--dimensions", type=click.IntRange(min=1), help="Keep so many of each vector's numbers.")
@click.option("--normalize/--no-normalize", default=True, show_default=True, help="Make each vector's length 1.")
@click.option("--truncate", type=click.IntRange(min=-1), metavar="TOKENS", help="Cut texts that are longer; -1 cuts at "
              "what the model takes.  [default: they are refused]")  # fmt: skip
@click.option("--prefix", default="", help="Put before each text, such as an instruction of the model's.")
@click.option("--batch", default=256, show_default=True, type=click.IntRange(1, 2048), help="Texts in one request.")
@click.option("--format", "form", type=click.Choice(["text", "jsonl", "npy"]), help="text: shortened, for people; "
              "jsonl: an object a line; npy: one array, float32 [texts, dimensions].  [default: text on a terminal, "
              "jsonl elsewhere]")  # fmt: skip
@click.option("--output", type=_FILE, help="File to write instead of stdout.")
@click.option("--model", help="Name as in /v1/models. Default: the first one there that embeds.")
@resuming_service_options
def command(
    *,
    texts: tuple[str, ...],
    texts_file: Path | None,
    dimensions: int | None,
    normalize: bool,
    truncate: int | None,
    prefix: str,
    batch: int,
    form: str | None,
    output: Path | None,
    model: str | None,
    service: ServiceAddress,
) -> None:
    """Show the vectors of texts. They are nearer to each other the more alike the texts are.

    TEXTS are arguments, or the lines of --file or stdin; lines without text are passed over.

    \b
    Example:
      baton embed "a cat" "a kitten" --dimensions 256
      baton embed --file passages.txt --format npy --output passages.npy
    """
    from scheduler_svc.client.embed.vectors import Asked, embedded  # noqa: PLC0415  (none of these is needed for --help)
    from scheduler_svc.client.embed.write import writer  # noqa: PLC0415

    if texts and texts_file is not None:
        raise click.UsageError("TEXTS and --file are two sources; give one")
    if not texts and texts_file is None and sys.stdin.isatty():
        raise click.UsageError("no TEXTS; give some, name a --file, or pipe lines in")
    given = texts or _lines(texts_file)
    if not given:
        raise click.UsageError("there is no text")
    if form is None:
        form = "text" if output is None and sys.stdout.isatty() else "jsonl"
    asked = Asked([prefix + text for text in given], dimensions, normalize, truncate)
    with connect(service) as api, writer(form, output, len(given)) as write:
        for number, vector in embedded(api, model, asked, batch):
            write(given[number], vector)


def _lines(path: Path | None) -> tuple[str, ...]:
    text = stdin_text() if path is None or str(path) == "-" else file_text(path)
    # Not splitlines: texts may have U+2028, a form feed or another character that it takes for the end of a line.
    return tuple(line for line in (each.rstrip("\r") for each in text.split("\n")) if line.strip())
