"""Open pages share what a frontend is told by the core: it is read once, and written once for readers of equal rights.

Without pages the core is asked for nothing. The more pages there are, the less often each is told, so that what they
cost together does not grow.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator

from common import messages as m
from common.errors import RequestRejected, WireError
from common.logging import DropLog, get_logger
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.live.block_map import BlockMap, encoded_blocks
from scheduler_svc.frontend.live.page_events import Events, Reader, history_event, page_event

ASK_INTERVAL_S = 1.0
S_A_PAGE = 0.01  # between two Views, for each page: a hundred pages are told once a second
MAX_UNREAD = 64  # events that wait for one page; one with more is told everything anew
MAX_HISTORY_S = 300.0
MAX_EVENTS = 256

log = get_logger(__name__)


class Page:
    """One open page: what it is to be told next.

    Args:
        reader: who reads it.
        everything: gives all that a page is told at its beginning.
    """

    def __init__(self, reader: Reader, everything: Callable[[Reader], Events]) -> None:
        self.reader = reader
        self._everything = everything
        self._unread: list[Events] = []
        self._needs_all = True
        self._has_more = asyncio.Event()
        self.has_ended = False

    def tell(self, events: Events) -> None:
        """Something has changed."""
        if len(self._unread) >= MAX_UNREAD:
            self._unread.clear()
            self._needs_all = True
        if not self._needs_all:
            self._unread.append(events)
        self._has_more.set()

    def tell_all(self) -> None:
        """All that the page has been told may be wrong."""
        self._unread.clear()
        self._needs_all = True
        self._has_more.set()

    def end(self) -> None:
        """The page gets nothing more."""
        self.has_ended = True
        self._has_more.set()

    async def next(self) -> Events:
        """What the page is to be told, in one piece."""
        await self._has_more.wait()
        self._has_more.clear()
        told, self._unread = self._unread, []
        if self._needs_all and (everything := self._everything(self.reader)):
            self._needs_all = False
            return everything
        return b"".join(told)


class LiveHub:
    """Knows the service as the core describes it, as long as a page is open.

    Args:
        link: to the core.
    """

    def __init__(self, link: CoreLink) -> None:
        self._link = link
        link.on_view = self._take
        self._pages: set[Page] = set()
        self._asking: asyncio.Task[None] | None = None
        self._drops = DropLog(log, "core")
        self._has_stopped = False
        self._number = -1  # of the last View
        self._forget()

    @contextlib.contextmanager
    def page(self, reader: Reader) -> Iterator[Page]:
        """A page that is open in the `with`."""
        page = Page(reader, self._everything)
        if self._has_stopped:
            page.end()
        self._pages.add(page)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        elif self._is_known:
            page.tell_all()
        try:
            yield page
        finally:
            self._pages.discard(page)
            if not self._pages and self._asking is not None:
                self._asking.cancel()
                self._asking = None
                self._forget()

    def stop(self) -> None:
        """This frontend ends."""
        self._has_stopped = True
        for page in self._pages:
            page.end()

    # --- the core ---

    async def _ask(self) -> None:
        """Ask for Views as long as there are pages, and tell them when the core cannot be reached."""
        was_up = True
        while True:
            if self._link.is_up:
                self._send()
            elif was_up:
                self._is_known = False
                self._tell(lambda _: page_event("gone", {}))
            was_up = self._link.is_up
            await asyncio.sleep(ASK_INTERVAL_S)

    def _send(self) -> None:
        interval_s = max(m.MIN_VIEW_INTERVAL_S, S_A_PAGE * len(self._pages))
        with contextlib.suppress(RequestRejected):  # it will be asked again
            self._link.send_views(m.SendViews(interval_s=interval_s, is_fresh=not self._is_known))

    def _take(self, view: m.View) -> None:
        """The core has told what has changed."""
        if self._asking is None:
            return
        if not view.is_fresh and not self._is_known:
            return  # what comes before the fresh one that was asked for
        if not view.is_fresh and view.number != self._number + 1:
            self._drops.dropped("core", f"what came before View {view.number}")
            self._is_known = False
            self._send()
            return
        is_anew = view.is_fresh and not self._is_known
        if is_anew:
            self._forget()
            self._offset_s = time.time() - view.at
            self._is_known = True
        self._number = view.number
        try:
            self._apply(view)
        except WireError as error:
            self._drops.dropped("core", error)
            self._is_known = False
            return
        if is_anew:
            for page in self._pages:
                page.tell_all()
        else:
            self._tell(lambda reader: self._changes(view, reader))

    def _forget(self) -> None:
        self._is_known = False
        self._offset_s = 0.0
        self._report: m.StatusReport | None = None
        self._waiting: tuple[m.WaitingSequence, ...] = ()
        self._running: tuple[m.RunningSequence, ...] = ()
        self._events: deque[m.FleetEvent] = deque(maxlen=MAX_EVENTS)
        self._history: deque[m.HistorySample] = deque()
        self._maps: dict[int, BlockMap] = {}

    def _apply(self, view: m.View) -> None:
        if view.report is not None:
            self._report = view.report
            sizes = {executor.epoch: executor.num_blocks for executor in view.report.executors}
            kept = {epoch: block_map for epoch, block_map in self._maps.items() if epoch in sizes}
            self._maps = {epoch: kept.get(epoch) or BlockMap(size) for epoch, size in sizes.items()}
        self._waiting = self._waiting if view.waiting is None else view.waiting
        self._running = self._running if view.running is None else view.running
        self._events.extend(event for event in view.events if event.number > self._last_event)
        self._history.extend(sample for sample in view.history if sample.at > self._last_sample)
        while self._history and view.at - self._history[0].at > MAX_HISTORY_S:
            self._history.popleft()
        for changes in view.blocks:
            if (block_map := self._maps.get(changes.epoch)) is not None:
                block_map.apply(changes, time.monotonic())

    @property
    def _last_event(self) -> int:
        return self._events[-1].number if self._events else -1

    @property
    def _last_sample(self) -> float:
        return self._history[-1].at if self._history else float("-inf")

    # --- pages ---

    def _tell(self, events: Callable[[Reader], Events]) -> None:
        """Tell all pages; for readers with equal rights it is written once."""
        written: dict[Reader, Events] = {}
        for page in self._pages:
            if page.reader not in written:
                written[page.reader] = events(page.reader)
            if written[page.reader]:
                page.tell(written[page.reader])

    def _changes(self, view: m.View, reader: Reader) -> Events:
        parts = []
        if view.report is not None:
            parts.append(page_event("status", view.report))
        if view.waiting is not None:
            parts.append(reader.waiting(view.waiting, self._offset_s))
        if view.running is not None:
            parts.append(reader.running(view.running, self._offset_s))
        if view.events:
            parts.append(reader.events(view.events, self._offset_s))
        if view.history:
            parts.append(history_event(view.history, self._offset_s))
        for told in view.blocks:
            changed, found = encoded_blocks(told.changed), encoded_blocks(told.found)
            parts.append(page_event("blocks", {"epoch": told.epoch, "changed": changed, "found": found}))
        return b"".join(parts)

    def _everything(self, reader: Reader) -> Events:
        """All that a page is told at its beginning; nothing while that is not known."""
        if not self._is_known or self._report is None:
            return b""
        now = time.monotonic()
        sizes = {executor.epoch: executor.num_blocks for executor in self._report.executors}
        maps = [
            page_event("map", {"epoch": epoch, "num_blocks": sizes[epoch], "states": block_map.encoded(now)})
            for epoch, block_map in self._maps.items()
        ]
        return b"".join(
            (
                page_event("status", self._report),
                reader.waiting(self._waiting, self._offset_s),
                reader.running(self._running, self._offset_s),
                reader.events(self._events, self._offset_s),
                history_event(list(self._history), self._offset_s),
                *maps,
            )
        )
