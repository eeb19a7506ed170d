"""A KeeperReport as tables for people, and as JSON."""

import json
import sys
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from common.messages import KeeperReport, KeptPool, KeptWeights
from scheduler_svc.client.output import duration

_WIDTH_WITHOUT_TERMINAL = 200  # wide enough that no line is folded in a log
_NUMBERS = ("size", "blocks", "lease", "pid", "standbys", "users")


def print_report(report: KeeperReport) -> None:
    """Write the view to stdout: in colour on a terminal, as plain lines elsewhere."""
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, highlight=False, width=None if terminal else _WIDTH_WITHOUT_TERMINAL)
    console.print(report_view(report))


def report_json(report: KeeperReport) -> str:
    """The report with the names of its fields, which messages are sent without."""

    def named(value: Any) -> Any:
        match value:
            case msgspec.Struct():
                return {name: named(content) for name, content in msgspec.structs.asdict(value).items()}
            case tuple():
                return [named(item) for item in value]
        return value

    return json.dumps(named(report), indent=2)


def report_view(report: KeeperReport) -> RenderableType:
    """The keeper, then a line for each pool and each set of weights."""
    title = f"keeper {report.keeper}, pid {report.pid}, up {duration(report.uptime_s)}"
    facts = f"{size(report.num_bytes)} of {size(report.max_bytes)} kept"
    pools = _table([_pool(pool) for pool in report.pools], "no pools")
    weights = _table([_weights(weights) for weights in report.weights], "no weights")
    return Group(Text(title, style="bold"), Text(facts), Text(), pools, Text(), weights)


def size(num_bytes: int) -> str:
    """For people: `512 B`, `1.5 MiB`, `31.2 GiB`."""
    value, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if unit != "B" else f"{num_bytes} B"


def _table(rows: list[dict[str, str | Text]], without: str) -> RenderableType:
    if not rows:
        return Text(without, style="yellow")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in rows[0]:
        table.add_column(header, no_wrap=True, justify="right" if header in _NUMBERS else "left")
    for row in rows:
        table.add_row(*row.values())
    return table


def _pool(pool: KeptPool) -> dict[str, str | Text]:
    held = f"held for {duration(pool.since_s)}" if pool.holder else f"free for {duration(pool.since_s)}"
    return {
        "pool": pool.pool,
        "size": size(pool.num_bytes),
        "blocks": str(pool.num_blocks),
        "weights": pool.kind.fingerprint[:8],
        "dtype": pool.kind.dtype,
        "layout": pool.kind.layout,
        "rank": f"{pool.kind.rank}/{pool.kind.num_ranks}",
        "device": pool.kind.device,
        "lease": str(pool.lease),
        "state": Text(held, style="green" if pool.holder else "yellow"),
        "holder": pool.holder or "-",
        "pid": str(pool.holder_pid) if pool.holder else "-",
        "standbys": str(pool.num_standbys),
    }


def _weights(weights: KeptWeights) -> dict[str, str | Text]:
    more = weights.num_users - len(weights.users)
    names = ", ".join(weights.users) + (f" and {more} more" if more else "")
    return {
        "weights": weights.fingerprint[:8],
        "size": size(weights.num_bytes),
        "dtype": weights.kind.dtype,
        "quantization": weights.kind.quantization,
        "packing": weights.kind.packing,
        "rank": f"{weights.kind.rank}/{weights.kind.num_ranks}",
        "device": weights.kind.device,
        "users": str(weights.num_users),
        "used by": names or Text(f"nobody for {duration(weights.idle_s)}", style="yellow"),
    }
