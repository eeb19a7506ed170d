"""`baton bench`: throughput and latency of a running service."""

from typing import TYPE_CHECKING, Any

import click

from common.paths import ExistingPath
from scheduler_svc.client.errors import EXIT_CODES_HELP, EXIT_FAILED
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.options import model_option, resuming_service_options
from scheduler_svc.client.service_address import ServiceAddress

if TYPE_CHECKING:
    from scheduler_svc.client.bench.target import Endpoint, Server

_GOALS = ("ttft", "tpot", "e2e")
_FILE = ExistingPath(dir_okay=False)
_COUNT = click.IntRange(min=1)
_POSITIVE = click.FloatRange(0, min_open=True)


@click.command(epilog=EXIT_CODES_HELP)
@click.option("--num-requests", "--num-seqs", type=_COUNT, help="Requests.  [default: 256, or the whole trace]")
@click.option("--max-prompt", type=_COUNT, help="Tokens, at most.  [default: 1024; in a trace no limit]")
@click.option("--max-output", type=_COUNT, help="Tokens, at most.  [default: 1024; in a trace no limit]")
@click.option("--concurrency", type=_COUNT, help="Requests at a time. Default: all at once.")
@click.option("--rate", type=_POSITIVE, metavar="PER_S",
              help="Send so many requests a second, at random times; a trace at this mean rate.")  # fmt: skip
@click.option("--trace", type=_FILE, help="Send what this file recorded, when it was due.")
@click.option("--trace-format", type=click.Choice(["azure", "mooncake"]),
              help="CSV with TIMESTAMP, ContextTokens and GeneratedTokens; or JSON lines with timestamp (ms), "
              "input_length, output_length and hash_ids.")  # fmt: skip
@click.option("--speedup", type=_POSITIVE, help="How much faster than recorded a trace is sent.")
@click.option("--endpoint", type=click.Choice(["completions", "chat"]), default="completions", show_default=True,
              help="Where requests are sent.")  # fmt: skip
@click.option("--server", type=click.Choice(["baton", "vllm", "openai"]),
              help="What the service knows beside OpenAI's parameters: ignore_eos (vllm, also for SGLang), and "
              "requests that resume (baton).  [default: as its /v1/models says]")  # fmt: skip
@click.option("--prompts", type=click.Choice(["ids", "words"]),
              help="What prompts are made of.  [default: token ids; words for chats and for openai]")  # fmt: skip
@click.option("--prompt-file", type=_FILE, help="Take its lines for prompts.")
@click.option("--vocab-size", type=_COUNT, help="Token ids are below this. Default: the model's.")
@click.option("--goodput", "goals", multiple=True, metavar="NAME:MS", callback=lambda *given: _goals(given[2]),
              help="Count answers whose ttft, tpot or e2e is MS at most; may be given several times.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Write the report as one JSON object.")
@model_option
@resuming_service_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    endpoint: "Endpoint",
    server: "Server | None",
    goals: dict[str, float],
    as_json: bool,
    model: str | None,
    service: ServiceAddress,
    **workload: Any,
) -> None:
    """Measure throughput and latency of a running service.

    That is Baton, or any other with OpenAI's API. The workload is that of nano-vllm's bench.py: prompts of 100 to 1024
    random tokens, 100 to 1024 tokens to generate at temperature 0.6 whatever the model says, all from seed 0; or a
    --trace, whose prompts are random, too, and share what Mooncake's shared. With --rate or --trace requests are sent
    when they are due, whether or not others have ended. One short request first warms the service up. What is measured,
    all of it here at the client:

    \b
      output tokens/s   all generated tokens / time from the first request sent to the last answer's end
      time to first     request sent until its first chunk with a token
      time per token    of each answer: (last chunk - first chunk) / (tokens - 1)
      between chunks    of an answer: the latency between tokens, where a chunk holds one
      whole answer      request sent until its answer's end
      sent late by      request due until sent: the client's own delay, which is in no other number

    An answer with another number of tokens than asked for is a failure; openai cannot be told, and may give fewer.
    Failures are counted, and are in no other number. A Baton that restarts is waited for, and shows in the times.

    \b
    Example:
      baton bench --num-requests 32 --max-prompt 256 --max-output 128
      baton bench --url http://other:8000/v1 --endpoint chat --rate 4 --goodput ttft:500 --goodput tpot:50
      baton bench --trace conversation_trace.jsonl --trace-format mooncake --speedup 2 --num-requests 1000
    """
    import asyncio  # noqa: PLC0415  (none of these is needed for --help)

    import msgspec  # noqa: PLC0415

    from scheduler_svc.client.bench.choices import BenchChoices  # noqa: PLC0415
    from scheduler_svc.client.bench.load import raise_file_limit, run_load  # noqa: PLC0415
    from scheduler_svc.client.bench.report import for_people, make_report  # noqa: PLC0415
    from scheduler_svc.client.bench.target import find_target  # noqa: PLC0415
    from scheduler_svc.client.progress import ProgressReport, Tally  # noqa: PLC0415

    choices = BenchChoices(**workload)
    choices.check(endpoint)
    with connect(service) as api:
        target = find_target(api, server, endpoint, model)
    num_requests, requests = choices.requests(target)
    service = target.address(service)
    with connect(service) as api:
        target.warm_up(api)
    raise_file_limit()
    tally = Tally(num_requests, "requests", is_live=True)
    with connect(service) as api, ProgressReport(tally, service.clock), api.watching(tally.seen):
        outcome = asyncio.run(run_load(requests, service, target, choices.concurrency, tally))
    report = make_report(outcome, target, goals)
    click.echo(msgspec.json.encode(report) if as_json else for_people(report))
    if report.num_failed:
        ctx.exit(EXIT_FAILED)


def _goals(given: tuple[str, ...]) -> dict[str, float]:
    """`ttft:500` and others as names and milliseconds."""
    goals: dict[str, float] = {}
    for text in given:
        name, _, limit = text.partition(":")
        if name not in _GOALS or not limit.replace(".", "", 1).isdecimal():
            raise click.BadParameter(f"{text!r} is no goal such as ttft:500; names are {', '.join(_GOALS)}")
        goals[name] = float(limit)
    return goals
