"""The last events that an operator would want to have seen: those of the log, for pages and `baton status`. Pure."""

from collections import Counter, deque
from collections.abc import Iterable

from common.messages import EventKind, FleetEvent
from common.printable import printable
from scheduler_svc.core.actions import WriteLog
from scheduler_svc.core.scheduling.stats import Move

MAX_EVENTS = 256
PREEMPTIONS_TOLD_S = 1.0  # they come in crowds: an executor's are one event a second
REJECTIONS_TOLD_S = 60.0  # executors that may not join try again and again: each is told of once a minute
MAX_REJECTED = 256  # names that are remembered for that
KINDS: dict[str, EventKind] = {
    "executor joined": "joined",
    "executor rejected": "rejected",
    "executor finishing": "finishing",
    "executor draining": "draining",
    "executor left": "left",
    "executor lost": "lost",
    "requests restored from the journal": "restored",
    "journal failed": "journal_failed",
    "journal lost": "journal_failed",
    "journal stuck": "journal_failed",
    "journal works again": "journal_ok",
}


class Timeline:
    """Remembers the last events.

    Attributes:
        events: the last MAX_EVENTS, the oldest first.
    """

    def __init__(self) -> None:
        self.events: deque[FleetEvent] = deque(maxlen=MAX_EVENTS)
        self._next_number = 0
        self._names: dict[int, str] = {}
        self._preempted: Counter[int] = Counter()
        self._told_preemptions = float("-inf")
        self._rejected: dict[str, float] = {}  # when that was told of an executor

    @property
    def last_number(self) -> int:
        """Number of the newest event; -1 if there is none."""
        return self._next_number - 1

    def last(self, count: int) -> list[FleetEvent]:
        """The last so many events."""
        return self.after(self.last_number - count)

    def after(self, number: int) -> list[FleetEvent]:
        """The events after the one with this number, as far as they are remembered."""
        count = min(self.last_number - number, len(self.events))
        return [self.events[i] for i in range(-count, 0)] if count > 0 else []

    def logged(self, line: WriteLog, now: float) -> None:
        """A line was written to the log."""
        kind, facts = KINDS.get(line.event), line.facts
        if kind is None or (kind == "rejected" and self._is_told(facts["executor"], now)):
            return
        if kind == "restored" and not facts["open"]:  # answers that had ended are kept, and nothing goes on
            return
        if kind == "joined":
            self._names[facts["epoch"]] = facts["executor"]
        elif kind in ("left", "lost"):
            self._names.pop(facts["epoch"], None)
        self._note(
            now,
            kind,
            executor=printable(facts.get("executor", "")),
            epoch=facts.get("epoch", 0),
            cause=facts.get("cause", ""),
            reason=printable(str(facts.get("reason", facts.get("not_adopted", "")))),
            sequences=facts.get("sequences_moved", facts.get("open", 0)),
            blocks_cached=facts.get("blocks_cached", 0),
        )

    def moved(self, moves: Iterable[Move]) -> None:
        """Plans were made."""
        for move in moves:
            if move.what == "preempted":
                self._preempted[move.epoch] += 1

    def tick(self, now: float) -> None:
        """Tell what has gathered; to be called ten times a second."""
        if self._preempted and now - self._told_preemptions >= PREEMPTIONS_TOLD_S:
            self._told_preemptions = now
            for epoch, count in self._preempted.items():
                self._note(now, "preempted", executor=self._names.get(epoch, ""), epoch=epoch, sequences=count)
            self._preempted.clear()

    def _is_told(self, rejected: str, now: float) -> bool:
        """Whether it was told a moment ago that an executor was rejected."""
        if now - self._rejected.get(rejected, float("-inf")) < REJECTIONS_TOLD_S:
            return True
        if len(self._rejected) == MAX_REJECTED:
            self._rejected.clear()
        self._rejected[rejected] = now
        return False

    def _note(self, now: float, kind: EventKind, **facts: str | int) -> None:
        self.events.append(FleetEvent(number=self._next_number, at=now, kind=kind, **facts))  # type: ignore[arg-type]
        self._next_number += 1
