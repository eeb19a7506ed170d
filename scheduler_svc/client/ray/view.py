"""What `baton ray status` prints."""

import sys

from rich.console import Console
from rich.table import Table

from scheduler_svc.client.ray.facts import Host, Seen
from scheduler_svc.client.ray.manager import FleetView
from scheduler_svc.client.ray.spec import RayFleetSpec

_WIDTH_WITHOUT_TERMINAL = 200
_NUM_EVENTS = 10


def print_view(view: FleetView, spec: RayFleetSpec) -> None:
    """Write the fleet to stdout."""
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, highlight=False, width=None if terminal else _WIDTH_WITHOUT_TERMINAL)
    ready = len(view.seen.ready or ())
    console.print(f"fleet {spec.name}, revision {spec.revision}, at {view.url or 'no scheduler yet'}")
    console.print(f"executors  {ready} ready, {view.wanted} wanted, {_waiting(view)} waiting for resources")
    console.print(f"journal    {journal_words(view, spec)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("process", "node", "state", "pid", "ends", "last end"):
        table.add_column(header, no_wrap=True)
    for host in sorted(view.seen.hosts, key=lambda host: (host.name.role, host.name.where, host.name.number)):
        table.add_row(*_cells(host, view.seen))
    console.print(table)
    for event in view.events[-_NUM_EVENTS:]:
        console.print(f"{event.at}  {event.words}")


def journal_words(view: FleetView, spec: RayFleetSpec) -> str:
    """Where the journal is, and what that means."""
    if spec.no_journal:
        return "none: requests that are open when the scheduler ends are lost"
    lost = "if that node is lost, requests that are open are lost with it"
    if spec.journal is None:
        return f"on the scheduler's node alone: {lost} (--journal, on a path that all nodes see)"
    if view.journal_blind is None:
        return f"{spec.journal}; not known yet which nodes see it"
    if view.journal_blind:
        return f"{spec.journal}, which {', '.join(view.journal_blind)} do not see: it is on one node, and {lost}"
    return f"{spec.journal}, which every node sees: the scheduler may move to another node, and goes on there"


def _waiting(view: FleetView) -> int:
    return sum(1 for place in view.seen.places if not place.node)


def _cells(host: Host, seen: Seen) -> list[str]:
    report = host.report
    if report is None:
        return [str(host.name), "", host.life.value, "", "", host.failure]
    role = ""
    if host.name.role == "executor" and host.is_live:
        role = ", ready" if seen.is_ready(host) else ", standby" if report.is_well else ", starting"
    state = "leaving" if host.is_leaving and report.pid else host.life.value + role
    return [
        str(host.name),
        report.address,
        state,
        str(report.pid or ""),
        str(report.ends),
        report.reason.splitlines()[0] if report.reason else "",
    ]
