"""Open pages share what a frontend is told by the core: it is read once, and written once for readers of equal rights.

Without pages the core is asked for nothing. The more pages there are, the less often each is told, so that what they
cost together does not grow.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from common import messages as m
from common.clocks import Clocks, read_clocks
from common.errors import RequestRejected
from common.logging import DropLog, get_logger
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.live.page_events import Events, Reader, page_event
from scheduler_svc.frontend.live.picture import Picture

S_A_PAGE = 0.01  # between two Views, for each page: a hundred pages are told once a second
MAX_UNREAD = 64  # events that wait for one page; one with more is told everything anew
MAX_CLOCK_STEP_S = 0.5  # more than that was not the clocks' drift: this machine's was set

log = get_logger(__name__)


class Page:
    """One open page: what it is to be told next.

    Args:
        reader: who reads it.
        beginning: what a page is told first, and whether that is all; if not, it is asked for again.
    """

    def __init__(self, reader: Reader, beginning: Callable[[Reader], tuple[Events, bool]]) -> None:
        self.reader = reader
        self._beginning = beginning
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
        if not self._needs_all:
            return b"".join(told)
        beginning, is_all = self._beginning(self.reader)
        self._needs_all = not is_all
        return beginning


class LiveHub:
    """Has a picture of the service as long as a page is open, and a moment longer.

    Args:
        link: to the core.
        ask_interval_s: between two questions for Views.
        linger_s: for so long after the last page the core is asked on, as a page that is loaded again comes back at
            once.
        clocks: what the machine's clocks show.
    """

    def __init__(
        self,
        link: CoreLink,
        *,
        ask_interval_s: float = 1.0,
        linger_s: float = 5.0,
        clocks: Callable[[], Clocks] = read_clocks,
    ) -> None:
        self._link = link
        self._ask_interval_s = ask_interval_s
        self._linger_s = linger_s
        self._clocks = clocks
        link.on_view = self._take
        self._pages: set[Page] = set()
        self._picture: Picture | None = None  # None until a fresh View has come
        self._asking: asyncio.Task[None] | None = None
        self._last_page_at = 0.0
        self._drops = DropLog(log, "core")
        self._has_stopped = False

    @contextlib.contextmanager
    def page(self, reader: Reader) -> Iterator[Page]:
        """A page that is open in the `with`."""
        page = Page(reader, self._beginning)
        if self._has_stopped:
            page.end()
        self._pages.add(page)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        if self._picture is not None or not self._link.is_up:
            page.tell_all()
        try:
            yield page
        finally:
            self._pages.discard(page)
            self._last_page_at = self._clocks().monotonic_s

    def stop(self) -> None:
        """This frontend ends."""
        self._has_stopped = True
        for page in self._pages:
            page.end()

    # --- the core ---

    async def _ask(self) -> None:
        """Ask for Views as long as there are pages, and tell them when the core cannot be reached."""
        was_up = True
        while self._pages or self._clocks().monotonic_s - self._last_page_at < self._linger_s:
            if self._link.is_up:
                self._send()
            elif was_up:
                self._picture = None
                self._tell_all()
            was_up = self._link.is_up
            await asyncio.sleep(self._ask_interval_s)
        self._asking = None
        self._picture = None

    def _send(self) -> None:
        interval_s = max(m.MIN_VIEW_INTERVAL_S, S_A_PAGE * len(self._pages))
        with contextlib.suppress(RequestRejected):  # it will be asked again
            self._link.send_views(m.SendViews(interval_s=interval_s, is_fresh=self._picture is None))

    def _take(self, view: m.View) -> None:
        """The core has told what has changed."""
        picture = self._picture
        if self._asking is None or (picture is None and not view.is_fresh):
            return  # what comes before the fresh one that was asked for
        offset_s = self._clocks().wall_s - view.at
        is_next = picture is not None and self._follows(view, picture, offset_s)
        if not is_next:
            if picture is not None:
                self._drops.dropped("core", f"what came before View {view.number}")
            self._picture = Picture(offset_s, self._clocks) if view.is_fresh else None
        if self._picture is None:
            self._send()
            return
        try:
            self._picture.apply(view)
        except Exception as error:  # pages are not worth the streams of this frontend
            self._drops.dropped("core", error)
            self._picture = None
            return
        if is_next:
            self._tell(view)
        else:
            self._tell_all()

    @staticmethod
    def _follows(view: m.View, picture: Picture, offset_s: float) -> bool:
        """Whether nothing lies between what is known and a View, and times mean the same in both."""
        return view.number == picture.number + 1 and abs(offset_s - picture.offset_s) <= MAX_CLOCK_STEP_S

    # --- pages ---

    def _tell(self, view: m.View) -> None:
        """Tell all pages what has changed; for readers of equal rights it is written once."""
        assert self._picture is not None
        written: dict[Reader, Events] = {}
        for page in self._pages:
            if page.reader not in written:
                written[page.reader] = self._picture.changes(view, page.reader)
            if written[page.reader]:
                page.tell(written[page.reader])

    def _tell_all(self) -> None:
        for page in self._pages:
            page.tell_all()

    def _beginning(self, reader: Reader) -> tuple[Events, bool]:
        """What a page is told first, and whether that is all: not while it is not known."""
        events = b"" if self._picture is None else self._picture.beginning(reader)
        if events:
            return events, True
        return b"" if self._link.is_up else page_event("gone", {}), False
