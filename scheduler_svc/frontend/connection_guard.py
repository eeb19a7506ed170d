"""Drops connections whose reader has stopped reading."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from common.logging import get_logger

log = get_logger(__name__)


class StallGuard(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # h11 or httptools, whichever is there
    """uvicorn's HTTP protocol that aborts a connection whose reader takes nothing for `stall_timeout_s`.

    An application only waits in `send` for such a reader, and has no way to close the connection for good: what is
    still buffered would have to be delivered first. Aborted, the application sees that its client has gone.
    """

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    def __init__(self, *args: Any, stall_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stall_timeout_s = stall_timeout_s
        self._check: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """The write buffer is full: from now on the reader has to show that it reads."""
        super().pause_writing()
        self._check_later()

    def resume_writing(self) -> None:
        """The reader has read."""
        self._stop_checking()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: nothing is left to watch."""
        self._stop_checking()
        super().connection_lost(exc)

    def _check_later(self) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        self._check = self.loop.call_later(self._stall_timeout_s, self._drop_unless_read, unsent_bytes)

    def _drop_unless_read(self, unsent_bytes_before: int) -> None:
        if self.transport.get_write_buffer_size() < unsent_bytes_before:
            self._check_later()
            return
        log.warning("reader dropped", client=self.transport.get_extra_info("peername"), stalled_s=self._stall_timeout_s)
        self.transport.abort()

    def _stop_checking(self) -> None:
        if self._check is not None:
            self._check.cancel()
            self._check = None
