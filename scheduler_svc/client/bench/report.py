"""What a benchmark measured, for scripts and for people; pure."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from scheduler_svc.client.bench.answer_times import AnswerTimes
from scheduler_svc.client.bench.load import Outcome
from scheduler_svc.client.bench.target import Target

_PERCENTILES = (50, 90, 99)


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of times in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Percentiles | None":
        """The percentiles; None if there are no times."""
        times_ms = np.array(seconds) * 1000
        return (
            cls(*np.round([times_ms.mean(), *np.percentile(times_ms, _PERCENTILES)], 3).tolist()) if seconds else None
        )


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measured. All numbers but the failures are from complete answers.

    Attributes:
        server: whose API the server was taken to have.
        seconds: from the first request sent to the end of the last answer, or failure.
        cached_prompt_tokens: those of the prompts that the server had computed before, where it says so.
        ttft_ms: time to first token: request sent to first chunk with a token.
        tpot_ms: time per output token of one answer: (last chunk - first chunk) / (tokens - 1).
        itl_ms: between consecutive chunks of one answer, over all answers; a chunk may hold several tokens.
        e2e_ms: request sent to the end of its answer.
        send_delay_ms: how much later than due requests were sent; None if they were not due at certain times.
        goodput_per_s: answers a second that met all goals; None without goals.
        errors: message of each failure, and how often it occurred.
    """

    server: str
    endpoint: str
    model: str
    num_requests: int
    num_failed: int
    seconds: float
    requests_per_s: float
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    itl_ms: Percentiles | None
    e2e_ms: Percentiles | None
    send_delay_ms: Percentiles | None
    goodput_per_s: float | None
    errors: dict[str, int]


def make_report(outcome: Outcome, target: Target, goals_ms: Mapping[str, float]) -> BenchReport:
    """The report of a run.

    Args:
        goals_ms: the greatest `ttft`, `tpot` and `e2e` of a good answer, in milliseconds.
    """
    complete, seconds = outcome.complete, outcome.seconds
    usages = [times.usage for times in complete if times.usage is not None]
    output_tokens = sum(usage.completion_tokens for usage in usages)
    num_good = sum(_is_good(times, goals_ms) for times in complete)
    return BenchReport(
        server=target.server,
        endpoint=target.endpoint,
        model=target.model,
        num_requests=len(complete) + outcome.errors.total(),
        num_failed=outcome.errors.total(),
        seconds=round(seconds, 3),
        requests_per_s=round(len(complete) / seconds, 3),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_prompt_tokens=sum(usage.cached_tokens for usage in usages),
        output_tokens=output_tokens,
        output_tokens_per_s=round(output_tokens / seconds, 1),
        ttft_ms=Percentiles.of([times.ttft_s for times in complete]),
        tpot_ms=Percentiles.of([times.tpot_s for times in complete if times.tpot_s is not None]),
        itl_ms=Percentiles.of([gap for times in complete for gap in np.diff(times.chunk_times_s).tolist()]),
        e2e_ms=Percentiles.of([times.e2e_s for times in complete]),
        send_delay_ms=Percentiles.of([times.sent_s - times.due_s for times in complete if times.due_s is not None]),
        goodput_per_s=round(num_good / seconds, 3) if goals_ms else None,
        errors=dict(outcome.errors),
    )


def for_people(report: BenchReport) -> str:
    """The report as a table."""
    num_answered = report.num_requests - report.num_failed
    cached = f"   {report.cached_prompt_tokens} of them cached" if report.cached_prompt_tokens else ""
    rate = f"{report.requests_per_s:.2f} requests/s"
    lines = [
        f"{num_answered} of {report.num_requests} requests answered in {report.seconds:.2f} s, {rate}",
        f"output tokens  {report.output_tokens:>9}   {report.output_tokens_per_s:.1f} tokens/s",
        f"prompt tokens  {report.prompt_tokens:>9}{cached}",
    ]
    if report.goodput_per_s is not None:
        lines.append(f"goodput        {report.goodput_per_s:>9.2f}   requests/s that met all goals")
    lines.append(f"{'ms':15}" + "".join(f"{name:>11}" for name in ("mean", "p50", "p90", "p99")))
    rows = {
        "time to first": report.ttft_ms,
        "time per token": report.tpot_ms,
        "between chunks": report.itl_ms,
        "whole answer": report.e2e_ms,
        "sent late by": report.send_delay_ms,
    }
    lines += [_row(name, times) for name, times in rows.items() if times is not None]
    return "\n".join([*lines, *(f"failed: {message} ({count} times)" for message, count in report.errors.items())])


def _row(name: str, times: Percentiles) -> str:
    return f"{name:15}" + "".join(f"{cell:>11.1f}" for cell in (times.mean, times.p50, times.p90, times.p99))


def _is_good(times: AnswerTimes, goals_ms: Mapping[str, float]) -> bool:
    measured = {"ttft": times.ttft_s, "tpot": times.tpot_s or 0.0, "e2e": times.e2e_s}
    return all(1000 * measured[name] <= goal_ms for name, goal_ms in goals_ms.items())
