"""`baton batch`: answer a file of requests."""

from pathlib import Path

import click

from common.paths import ExistingPath, is_there
from scheduler_svc.client.errors import EXIT_CODES_HELP, EXIT_FAILED
from scheduler_svc.client.options import model_option, resuming_service_options
from scheduler_svc.client.output import say
from scheduler_svc.client.service_address import ServiceAddress

_FILE = click.Path(dir_okay=False, path_type=Path)
_INPUT = ExistingPath(dir_okay=False)
_MAX_TOKENS = 256  # as `baton generate` has it


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("paths", metavar="[IN.jsonl] OUT.jsonl", nargs=-1, type=_FILE)
@click.option("--prompts", type=_INPUT, metavar="FILE", help="Instead of IN.jsonl: a text with a prompt a line.")
@click.option("--chat", "as_chat", is_flag=True, help="Send each of these prompts as a user's message.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Of each answer to these prompts.  "
              f"[default: {_MAX_TOKENS}]")  # fmt: skip
@click.option("--direct", is_flag=True, help="Send requests one by one, also to a service that runs batches itself.")
@click.option("--concurrency", default=32, show_default=True, type=click.IntRange(min=1),
              help="Requests at a time that are sent one by one.")  # fmt: skip
@click.option("--retries", default=10, show_default=True, type=click.IntRange(min=0), help="How often one of these is "
              "sent again that met an overload, a restart or a broken connection.")  # fmt: skip
@click.option("--ordered", is_flag=True, help="Write results in the order of the input.")
@model_option
@resuming_service_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    paths: tuple[Path, ...],
    prompts: Path | None,
    as_chat: bool,
    max_tokens: int | None,
    direct: bool,
    concurrency: int,
    retries: int,
    ordered: bool,
    model: str | None,
    service: ServiceAddress,
) -> None:
    """Answer a file of requests; goes on where it stopped.

    Both files are as in OpenAI's Batch API; --prompts takes a plain text instead, and the custom_id of a result is the
    number of its line. A service with /v1/batches runs the batch itself: it is uploaded, goes on
    while this command is away, and yields to requests that somebody waits for; the results are appended at its end.
    Otherwise, and with --direct, requests are sent one by one, and each result is appended as it comes. If the run is
    stopped, by whatever means, the same command goes on with the service's batch, or sends only what has no result yet.
    OUT.jsonl.batch says meanwhile which batch that is; with another input or model the command does not go on with it.
    A request that fails for good has its error in OUT.jsonl; if the service goes away and stays away, the run ends and
    can be resumed. --model is for requests that name none.

    \b
    Example:
      echo '{"custom_id": "1", "method": "POST", "url": "/v1/completions",
             "body": {"prompt": "ROMEO:", "max_tokens": 50}}' | tr -d '\\n' > in.jsonl
      baton batch in.jsonl out.jsonl
      baton batch --prompts prompts.txt --max-tokens 50 out.jsonl
    """
    from scheduler_svc.client.batch.answer import HowToSend, answer_batch  # noqa: PLC0415  (not needed for --help)
    from scheduler_svc.client.batch.files import ResultFile  # noqa: PLC0415
    from scheduler_svc.client.batch.input import BatchInput, prompt_line, request_line  # noqa: PLC0415
    from scheduler_svc.client.batch.note import NoteFile  # noqa: PLC0415
    from scheduler_svc.client.progress import Tally  # noqa: PLC0415

    in_path, out_path = _files(ctx, paths, prompts)
    if prompts is None and (as_chat or max_tokens is not None):
        raise click.UsageError("--chat and --max-tokens are for --prompts; a request of IN.jsonl has its own")
    read_line = request_line() if prompts is None else prompt_line(max_tokens or _MAX_TOKENS, as_chat=as_chat)
    source = BatchInput(in_path, read_line)
    ids = source.check()
    with ResultFile(out_path, ids) as output:
        note = NoteFile(out_path)
        num_failed = sum(output.finished.values())
        tally = Tally(len(ids) - len(output.finished), "lines")
        if not ids:
            say(f"{in_path} has no requests")
        if output.finished:
            say(f"{len(output.finished)} of {len(ids)} lines have a result already, {num_failed} of them a failure")
        if tally.total:
            how = HowToSend(model, direct, concurrency, retries, ordered)
            num_failed += answer_batch(source, note, output, service, how, tally)
        elif left := note.read():
            what = left.batch_id or left.input_file_id
            say(f"{note.path} is left of {what}; the service at {left.url} may have its files still")
    if num_failed:
        say(f"{num_failed} of {len(ids)} lines failed; their `error` in {out_path} says why")
        ctx.exit(EXIT_FAILED)


def _files(ctx: click.Context, paths: tuple[Path, ...], prompts: Path | None) -> tuple[Path, Path]:
    """Return the input and the output. Raises click.UsageError."""
    wanted = "an IN.jsonl and an OUT.jsonl" if prompts is None else "an OUT.jsonl, and no IN.jsonl beside --prompts"
    if len(paths) != (2 if prompts is None else 1):
        raise click.UsageError(f"baton batch takes {wanted}; it was given {len(paths)} files")
    in_path = prompts or _INPUT.convert(paths[0], None, ctx)
    if is_there(paths[-1]) and paths[-1].samefile(in_path):
        raise click.UsageError(f"input and output are the same file: {in_path}")
    return in_path, paths[-1]
