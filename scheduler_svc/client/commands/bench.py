"""`baton bench`: throughput and latency of a running service."""

from typing import TYPE_CHECKING

import click

from scheduler_svc.client.errors import EXIT_CODES_HELP, EXIT_FAILED
from scheduler_svc.client.http.connect import connect
from scheduler_svc.client.options import model_option, resuming_service_options
from scheduler_svc.client.service_address import ServiceAddress

if TYPE_CHECKING:
    from scheduler_svc.client.bench.load import BenchReport, Percentiles


@click.command(epilog=EXIT_CODES_HELP)
@click.option("--num-seqs", default=256, show_default=True, type=click.IntRange(min=1), help="Requests.")
@click.option("--max-prompt", default=1024, show_default=True, type=click.IntRange(min=100), help="Tokens, at most.")
@click.option("--max-output", default=1024, show_default=True, type=click.IntRange(min=100), help="Tokens, at most.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Requests at a time. Default: all at once.")
@click.option("--vocab-size", type=click.IntRange(min=1), help="Token ids are below this. Default: the model's.")
@click.option("--json", "as_json", is_flag=True, help="Write the report as one JSON object.")
@model_option
@resuming_service_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    num_seqs: int,
    max_prompt: int,
    max_output: int,
    concurrency: int | None,
    vocab_size: int | None,
    as_json: bool,
    model: str | None,
    service: ServiceAddress,
) -> None:
    """Measure throughput and latency of a running service.

    The workload is that of nano-vllm's bench.py: prompts of 100 to 1024 random tokens, 100 to 1024 tokens to generate
    at temperature 0.6 whatever the model says, all from seed 0. One short request first warms the service up. What is
    measured, all of it here at the client:

    \b
      output tokens/s   all generated tokens / time from the first request sent to the last answer's end
      time to first     request sent until its first chunk with text
      time per token    of each answer: (last chunk - first chunk) / (tokens - 1)
      gap               between consecutive chunks of an answer (a chunk may hold several tokens)

    An answer with another number of tokens than asked for is a failure. A service that restarts is waited for, and
    shows in the times.

    \b
    Example:
      baton bench --num-seqs 32 --max-prompt 256 --max-output 128
    """
    import asyncio  # noqa: PLC0415  (none of these is needed for --help)

    import msgspec  # noqa: PLC0415

    from scheduler_svc.client.bench.load import draw_requests, run_load  # noqa: PLC0415
    from scheduler_svc.client.progress import ProgressReport, Tally  # noqa: PLC0415

    with connect(service) as api:
        info = api.first_model()
        model = model or str(info["id"])
        api.complete("/v1/completions", {"model": model, "prompt": "Benchmark: ", "max_tokens": 16})
    requests = draw_requests(num_seqs, max_prompt, max_output, vocab_size or info.get("vocab_size"))
    tally = Tally(len(requests), "requests")
    with ProgressReport(tally):
        report = asyncio.run(run_load(requests, service, model, concurrency or len(requests), tally))
    click.echo(msgspec.json.encode(report) if as_json else _for_people(report))
    if report.num_failed:
        ctx.exit(EXIT_FAILED)


def _for_people(report: "BenchReport") -> str:
    num_answered = report.num_requests - report.num_failed
    lines = [
        f"{num_answered} of {report.num_requests} requests answered in {report.seconds:.2f} s",
        f"output tokens  {report.output_tokens:>9}   {report.output_tokens_per_s:.1f} tokens/s",
        f"prompt tokens  {report.prompt_tokens:>9}",
        f"{'ms':13}{'p50':>11}{'p90':>11}{'p99':>11}",
        _row("time to first", report.ttft_ms),
        _row("time per token", report.tpot_ms),
        _row("gap", report.chunk_gap_ms),
    ]
    return "\n".join([*lines, *(f"failed: {message} ({count} times)" for message, count in report.errors.items())])


def _row(name: str, times: "Percentiles | None") -> str:
    cells = (times.p50, times.p90, times.p99) if times else ()
    return f"{name:15}" + "".join(f"{cell:>11.1f}" for cell in cells)
