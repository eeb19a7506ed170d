"""When what happens as an executor goes and another one takes over was seen, as the logs of the services have it.

| time | until | written by |
|---|---|---|
| `lost_ms` | the scheduler sees the end of the executor's connection | scheduler |
| `gone_ms` | the executor's pidfd is readable: on a GPU, when the driver has taken its context down | keeper |
| `leased_ms` | the keeper gives its pool to the next executor | keeper |
| `mapped_ms` | that executor has mapped the pool | executor |
| `joined_ms` | that executor has the scheduler's Welcome | executor |

All are counted from the signal. A setting without a keeper has the first and the last one alone.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

SIGNS = {
    "lost_ms": ("scheduler", "executor lost"),
    "gone_ms": ("keeper", "executor gone"),
    "leased_ms": ("keeper", "pool leased"),
    "mapped_ms": ("executor", "holds a pool"),
    "joined_ms": ("executor", "joined"),
}
_FACT = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


@dataclass(frozen=True)
class Event:
    """A line of a log.

    Attributes:
        at: seconds since 1970.
        facts: all of the line, by their names.
    """

    at: float
    service: str
    name: str
    facts: dict[str, str]


def swap_times(folder: Path, signals: Sequence[float]) -> dict[str, list[float]]:
    """Milliseconds from each signal to the first line of each kind before the next signal, by the names above.

    Args:
        folder: of the logs.
        signals: when executors were told to go or killed, in seconds since 1970.
    """
    events = sorted(_events(folder), key=lambda event: event.at)
    found: dict[str, list[float]] = {}
    for signalled, following in zip(signals, [*signals[1:], float("inf")], strict=True):
        for name, sign in SIGNS.items():
            times = [each.at for each in events if (each.service, each.name) == sign]
            since = [at for at in times if signalled <= at < following]
            if since:
                found.setdefault(name, []).append(1000 * (since[0] - signalled))
    return found


def teardowns(folder: Path) -> list[float]:
    """Milliseconds from the end of each drained epoch to the end of its process."""
    events = list(_events(folder))
    found = []
    for gone in (event for event in events if event.name == "executor gone"):
        ends = [
            event.at
            for event in events
            if event.name == "epoch over"
            and "drained" in event.facts.values()
            and event.facts["log"] == gone.facts["executor"]
            and gone.at - 10.0 < event.at <= gone.at
        ]
        if ends:
            found.append(1000 * (gone.at - max(ends)))
    return found


def _events(folder: Path) -> Iterator[Event]:
    for log in folder.glob("*.log"):
        for line in log.read_text(errors="replace").splitlines():
            facts = {name: value.strip('"') for name, value in _FACT.findall(line)}
            if facts.keys() >= {"time", "service", "event"}:
                at = datetime.fromisoformat(facts["time"]).timestamp()
                yield Event(at, facts["service"], facts["event"], facts | {"log": log.stem})
