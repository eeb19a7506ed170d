"""The service as the core's Views have drawn it, and what pages are told of it."""

from collections import deque
from collections.abc import Callable

from common import messages as m
from common.clocks import Clocks, read_clocks
from scheduler_svc.frontend.live.block_map import BlockMap, encoded_blocks
from scheduler_svc.frontend.live.page_events import Events, Reader, history_event, page_event

MAX_HISTORY_S = 300.0
MAX_EVENTS = 256


class Picture:
    """Begins with a fresh View, and takes in every one that follows it.

    Args:
        offset_s: Unix time less the core's time.
        clocks: what the machine's clocks show.

    Attributes:
        number: of the last View.
        offset_s: as given.
    """

    def __init__(self, offset_s: float, clocks: Callable[[], Clocks] = read_clocks) -> None:
        self.number = -1
        self.offset_s = offset_s
        self._clocks = clocks
        self._report: m.StatusReport | None = None
        self._waiting: tuple[m.WaitingSequence, ...] = ()
        self._running: tuple[m.RunningSequence, ...] = ()
        self._events: deque[m.FleetEvent] = deque(maxlen=MAX_EVENTS)
        self._history: deque[m.HistorySample] = deque()
        self._maps: dict[int, BlockMap] = {}
        self._beginnings: dict[Reader, Events] = {}  # what has been written since the last View
        self._all_maps: Events | None = None

    def apply(self, view: m.View) -> None:
        """Take in a View. A fresh one that was not asked for here begins nothing anew: what it tells again is known.
        Raises WireError if its blocks make no sense."""
        self.number = view.number
        self._beginnings.clear()
        self._all_maps = None
        if view.report is not None:
            self._report = view.report
            sizes = {executor.epoch: executor.num_blocks for executor in view.report.executors}
            self._maps = {epoch: self._maps.get(epoch) or BlockMap(size) for epoch, size in sizes.items()}
        self._waiting = self._waiting if view.waiting is None else view.waiting
        self._running = self._running if view.running is None else view.running
        last_event = self._events[-1].number if self._events else -1
        self._events.extend(event for event in view.events if event.number > last_event)
        last_sample = self._history[-1].at if self._history else float("-inf")
        self._history.extend(sample for sample in view.history if sample.at > last_sample)
        while self._history and view.at - self._history[0].at > MAX_HISTORY_S:
            self._history.popleft()
        for changes in view.blocks:
            if (block_map := self._maps.get(changes.epoch)) is not None:
                block_map.apply(changes, self._clocks().monotonic_s)

    def beginning(self, reader: Reader) -> Events:
        """All that a page is told first; nothing before the first report. For readers of equal rights it is written
        once for each View."""
        if self._report is None:
            return b""
        if reader not in self._beginnings:
            self._beginnings[reader] = b"".join(
                (
                    page_event("status", self._report),
                    reader.waiting(self._waiting, self.offset_s),
                    reader.running(self._running, self.offset_s),
                    reader.events(self._events, self.offset_s),
                    history_event(list(self._history), self.offset_s),
                    self._written_maps(),
                )
            )
        return self._beginnings[reader]

    def changes(self, view: m.View, reader: Reader) -> Events:
        """What a page is told of a View that has just been taken in."""
        parts = []
        if view.report is not None:
            parts.append(page_event("status", view.report))
        if view.waiting is not None:
            parts.append(reader.waiting(view.waiting, self.offset_s))
        if view.running is not None:
            parts.append(reader.running(view.running, self.offset_s))
        if view.events:
            parts.append(reader.events(view.events, self.offset_s))
        if view.history:
            parts.append(history_event(view.history, self.offset_s))
        for told in view.blocks:
            changed, found = encoded_blocks(told.changed), encoded_blocks(told.found)
            parts.append(page_event("blocks", {"epoch": told.epoch, "changed": changed, "found": found}))
        return b"".join(parts)

    def _written_maps(self) -> Events:
        if self._all_maps is None:
            now = self._clocks().monotonic_s
            self._all_maps = b"".join(block_map.event(epoch, now) for epoch, block_map in self._maps.items())
        return self._all_maps
