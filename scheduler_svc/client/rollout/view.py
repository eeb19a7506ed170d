"""What `baton rollout` reports at its end."""

import sys

from rich.console import Console
from rich.table import Table

from common.installation import this_command
from scheduler_svc.client.rollout.plan import Rollout, TurnState

_WIDTH_WITHOUT_TERMINAL = 200  # wide enough that no line is folded in a log
_ADVICE = {
    TurnState.GATHERING: "See which executors are missing (`baton status`) and start them",
    TurnState.JOINING: "See why its supervisor starts no standby, or start one yourself (`baton-executor --standby`)",
    TurnState.LEAVING: "Stop its process yourself if it must go now; its sequences go on elsewhere",
    TurnState.SUCCESSION: "See why its supervisor starts none, or start one yourself (`baton-executor`)",
}


def print_replaced(rollout: Rollout) -> None:
    """Write a table of the executors that were replaced to stdout, if any were."""
    if not rollout.replaced:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("executor", "old epoch", "new epoch", "successor", "build", "weights", "pause", "turn"):
        table.add_column(header, no_wrap=True, justify="right" if header in ("old epoch", "pause", "turn") else "left")
    for one in rollout.replaced:
        status = one.successor.status
        words = (one.name, one.epoch, status.epoch, status.executor, status.build, status.fingerprint[:8])
        pause = "not known" if one.pause_s is None else f"{one.pause_s:.2f} s"
        table.add_row(*map(str, words), pause, f"{one.seconds:.1f} s")
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, highlight=False, width=None if terminal else _WIDTH_WITHOUT_TERMINAL)
    console.print(table)


def stop_report(rollout: Rollout) -> str:
    """Why the rollout ended early, what was replaced and what not, and what to do."""
    current, *untouched = rollout.queue
    replaced = ", ".join(one.name for one in rollout.replaced)
    left = [process.name for process in (untouched if rollout.turn_state is TurnState.SUCCESSION else rollout.queue)]
    if rollout.misfit is not None and not current.is_present:
        left = [rollout.misfit.name, *(process.name for process in untouched)]
    again = f", then go on with: {this_command()} rollout {' '.join(left)}" if left else ""
    return "\n".join(
        [
            rollout.stopped,
            f"  replaced:     {replaced or 'none'}",
            f"  stopped at:   {current.name} ({rollout.where})",
            f"  not touched:  {', '.join(process.name for process in untouched) or 'none'}",
            f"{_advice(rollout)}{again}",
        ]
    )


def _advice(rollout: Rollout) -> str:
    """Say what to do before the rollout goes on."""
    if rollout.misfit is not None:
        install = "Install the release, or the weights, that you expect where executors start"
        return f"{install}; end {rollout.misfit.name}" if rollout.queue[0].is_present else install
    if not rollout.waits_for_supervisor and rollout.turn_state in (TurnState.JOINING, TurnState.SUCCESSION):
        return "See the log of the successor"
    return _ADVICE[rollout.turn_state]
