"""A StatusReport as a table for people."""

import sys

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from common.messages import ExecutorStatus, PastEvent, Percentiles, StatusReport, StoreStatus
from scheduler_svc.client.output import duration

_WIDTH_WITHOUT_TERMINAL = 200  # wide enough that no line is folded in a log
_WIDE = 120  # columns of a terminal that has room for everything
_FIXED_FACTS = ("device", "dtype", "pid", "epoch")
_NUMBERS = ("pid", "epoch", "blocks", "cached", "running", "step ms", "uptime")
_STATE_STYLES = {"ready": "green", "finishing": "yellow", "draining": "yellow"}
_WAITS_FOR = {
    "no_executor": "the first for an executor that can take it",
    "pool": "the first for the next executor of its memory",
    "landing": "the first for its own tokens in flight",
    "alone": "the first to run alone after failures, or behind one that does",
    "share": "the first for others, whose clients have had less",
    "lanes": "the first for a lane",
    "memory": "the first for memory",
    "yields": "the first for prompts of others to be computed",
    "turn": "the first for its turn",
}
_FEW = 10  # of which percentiles, interpolated within a bucket, would say more than is known
_TROUBLE = ("lost", "rejected", "journal_failed")
_JOURNAL_FAILED = "The journal cannot be written: requests accepted now are lost if the scheduler ends. See its log."


def print_status(report: StatusReport) -> None:
    """Write the view to stdout: in colour on a terminal, as plain lines elsewhere."""
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, highlight=False, width=None if terminal else _WIDTH_WITHOUT_TERMINAL)
    console.print(status_view(report))


def status_view(report: StatusReport) -> RenderableType:
    """Facts about the whole service, then a line for each executor."""
    title = f"{report.model}, up {duration(report.uptime_s)}, Baton {report.version}"
    facts = Text(_facts(report))
    troubles = [_JOURNAL_FAILED] if report.journal == "failed" else []
    troubles += [
        f"Keys of {whose} cannot be read, those of before stay: {why}." for whose, why in report.keys_unreadable.items()
    ]
    if report.store_unreadable:
        troubles.append(f"The store cannot be read: {report.store_unreadable}.")
    for trouble in troubles:
        facts.append(f"\n{trouble}", style="bold red")
    parts: list[RenderableType] = [Text(title, style="bold"), facts, Text(), _ExecutorTable(report.executors)]
    return Group(*parts, *([Text(), _events(report.events)] if report.events else []))


def _facts(report: StatusReport) -> str:
    cached = report.cached_prompt_tokens / report.prompt_tokens if report.prompt_tokens else 0.0
    facts = {
        "queue": f"{report.running} running, {report.waiting} waiting"
        + (f" ({_WAITS_FOR[report.waits_for]})" if report.waits_for else ""),
        "tokens/s": f"{report.output_tokens_per_s:.0f} output, {report.prefill_tokens_per_s:.0f} prompt",
        "latency": "; ".join(
            f"{name} {_milliseconds(told)}"
            for name, told in (("first token", report.first_token), ("between tokens", report.between_tokens))
            if told is not None
        )
        or "no token in the last five minutes",
        "requests": f"{report.requests_finished} finished, {report.requests_failed} failed",
        "tokens": f"{report.output_tokens} output, {report.prompt_tokens} prompt ({cached:.0%} from the prefix cache)",
        "trouble": f"{report.executors_lost} executors lost, {report.sequences_resumed} sequences resumed, "
        f"{report.recomputed_tokens} tokens computed again, {report.pools_adopted} pools continued, "
        f"{report.preemptions} preemptions, "
        f"{report.messages_dropped} messages dropped",
        "journal": report.journal + (f", {report.journal_lag_s:.1f} s behind" if report.journal == "ok" else ""),
    }
    if (store := report.store) is not None:
        facts["store"] = _store(store)
    if (scale := report.scale) is not None:
        ready = sum(executor.state == "ready" for executor in report.executors)
        facts["scale"] = (
            f"{scale.wanted} executors wanted ({scale.reason}), {ready} ready, first token in "
            f"{scale.forecast_ttft_s:.1f} s by the forecast"
        )
    return "\n".join(f"{name:10}{fact}" for name, fact in facts.items())


def _store(store: StoreStatus) -> str:
    parts = [
        f"{_megabytes(store.bytes_on_disk)}, {_megabytes(store.free_bytes)} free",
        f"{store.open_batches} batches and {store.open_responses} background responses open (worker {store.worker})",
    ]
    if named := {name: used for name, used in store.clients.items() if name != "other"}:
        name = max(named, key=lambda name: named[name])
        share = f" ({named[name] / store.limit_bytes:.0%} of its limit)" if store.limit_bytes else ""
        who = f"most has {name}:" if name else "all clients together have"  # without keys
        parts.append(f"{who} {_megabytes(named[name])}{share}")
    return "; ".join(parts)


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _milliseconds(told: Percentiles) -> str:
    if told.count < _FEW:
        return f"about {1e3 * told.p50:.0f} ms ({told.count} in the last five minutes)"
    return "/".join(f"{1e3 * value:.0f}" for value in (told.p50, told.p90, told.p99)) + " ms (p50/p90/p99)"


def _events(events: list[PastEvent]) -> Text:
    """The last events, the newest first."""
    lines = Text()
    for event in reversed(events):
        name = f" {event.executor}" if event.executor else ""
        facts = [
            event.reason or event.cause,  # a reason says all that the cause says
            f"{event.sequences} sequences" if event.sequences else "",
            f"{event.blocks_cached} blocks kept" if event.blocks_cached else "",
        ]
        style = "red" if event.kind in _TROUBLE else ""
        lines.append(f"{duration(event.age_s):>8} ago  ")
        lines.append(event.kind.replace("_", " "), style=style)
        lines.append(name + "".join(f", {fact}" for fact in facts if fact) + "\n")
    lines.rstrip()
    return lines


class _ExecutorTable:
    """A line for each executor; on a narrow terminal without the facts that never change."""

    def __init__(self, executors: list[ExecutorStatus]) -> None:
        self._executors = executors

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._executors:
            yield Text("no executors", style="yellow")
            return
        rows = [_cells(executor) for executor in self._executors]
        hidden = set() if options.max_width >= _WIDE else set(_FIXED_FACTS)
        if not any(executor.keeps_pool for executor in self._executors):
            hidden.add("pool")
        if not any(executor.node for executor in self._executors):
            hidden.add("node")
        if len({executor.build for executor in self._executors}) == 1:  # and not in the middle of an upgrade
            hidden.add("build")
        shown = [header for header in rows[0] if header not in hidden]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for header in shown:
            table.add_column(header, no_wrap=True, justify="right" if header in _NUMBERS else "left")
        for row in rows:
            table.add_row(*(row[header] for header in shown))
        yield table


def _cells(executor: ExecutorStatus) -> dict[str, str | Text]:
    """Header and content of each column."""
    return {
        "executor": executor.executor,
        "node": executor.node,
        "state": Text(executor.state, style=_STATE_STYLES.get(executor.state, "")),
        "device": executor.device,
        "dtype": executor.dtype,
        "weights": executor.fingerprint[:8],
        "build": executor.build,
        "pid": str(executor.pid),
        "epoch": str(executor.epoch),
        "blocks": f"{executor.num_blocks - executor.free_blocks}/{executor.num_blocks}",
        "cached": str(executor.cached_blocks),
        "running": f"{executor.running}/{executor.max_num_seqs}",
        "step ms": f"{executor.step_ms:.1f}",
        "uptime": duration(executor.uptime_s),
        "pool": ("kept, standby" if executor.has_standby else "kept") if executor.keeps_pool else "own",
    }
