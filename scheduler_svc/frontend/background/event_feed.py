"""The events of a response as they are written: once, for all that read it now."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.responses.events import BEGINNING, NEVER, ResponseEvents, ResponseSpec

MAX_UNREAD_BYTES = 256 * 1024  # of events that wait for one reader; one with more has to ask again


class FeedReader:
    """What one reader is still to be given.

    Attributes:
        is_over: whether nothing more will come.
        is_whole: whether all has come, to the end of the response.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.is_whole = False
        self._unread: list[bytes] = []
        self._num_unread = 0
        self._has_news = asyncio.Event()

    async def next(self) -> bytes:
        """The events since the last call, in one piece; empty when no more will come."""
        await self._has_news.wait()
        events, self._unread, self._num_unread = b"".join(self._unread), [], 0
        if not self.is_over:
            self._has_news.clear()
        return events

    def tell(self, events: bytes) -> None:
        """These come next."""
        self._unread.append(events)
        self._num_unread += len(events)
        if self._num_unread > MAX_UNREAD_BYTES:
            self.end(is_whole=False)
        self._has_news.set()

    def end(self, *, is_whole: bool) -> None:
        """No more will come."""
        if not self.is_over:
            self.is_over, self.is_whole = True, is_whole
            self._has_news.set()


class EventFeed:
    """Writes the events of a response's tokens, while there are readers. Events of the whole response are numbered, and
    not written here: they have its head.

    Attributes:
        events: what numbers and writes them.
        is_closed: whether no more will come.
    """

    def __init__(self, spec: ResponseSpec) -> None:
        self.events = ResponseEvents(spec, after=NEVER)
        self.is_closed = False
        self._readers: list[FeedReader] = []
        self._has_grown = asyncio.Event()

    def write(self, pieces: Sequence[Piece]) -> None:
        """The response has these pieces more."""
        for events in self.events.of(pieces):
            for reader in self._readers:
                reader.tell(events)
            self._readers = [reader for reader in self._readers if not reader.is_over]
        self._news()

    @contextlib.contextmanager
    def reader(self) -> Iterator[FeedReader]:
        """One more reader in the `with`: it gets what is written from now on."""
        reader = FeedReader()
        if self.is_closed:
            reader.end(is_whole=False)
        self._readers.append(reader)
        self.events.write_after(len(BEGINNING) - 1)
        try:
            yield reader
        finally:
            if reader in self._readers:
                self._readers.remove(reader)
            if not self._readers:
                self.events.write_after(NEVER)

    async def grown(self) -> None:
        """Return when there are more pieces, or none will come."""
        await self._has_grown.wait()

    def close(self, *, is_whole: bool) -> None:
        """No more will come.

        Args:
            is_whole: whether that is because the response has ended.
        """
        self.is_closed = True
        for reader in self._readers:
            reader.end(is_whole=is_whole)
        self._news()

    def _news(self) -> None:
        self._has_grown.set()
        if not self.is_closed:
            self._has_grown = asyncio.Event()
