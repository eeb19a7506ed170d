"""The frontend's side of the background worker's socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from common.logging import get_logger
from common.socket_path import SocketPath
from scheduler_svc.store_options import WORKER_SOCKET

TIMEOUT_S = 10.0  # without a byte; a stream that waits has comments
MAX_CALLS = 100  # at once; the others wait
ENDED = b": ended\n\n"  # the end of a stream whose response has ended, and is in the store

log = get_logger(__name__)


class WorkerGone(Exception):
    """The worker cannot be reached, or the connection to it broke."""


class WorkerLink:
    """Speaks to the worker of a store. An owner is the id of an API key, empty without keys.

    Args:
        folder: of the store, in which the worker has its socket.
    """

    def __init__(self, folder: Path) -> None:
        self._socket = SocketPath(folder / WORKER_SOCKET)
        # As many as clients read; and what is to be told never waits for one of them.
        self._streams = self._client(httpx.Limits(max_connections=None))
        self._calls = self._client(httpx.Limits(max_connections=MAX_CALLS))
        self._telling: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """This frontend ends: streams of responses in the background are to end, too."""
        self._stopped.set()

    async def stopped(self) -> None:
        """Return when `stop` is called."""
        await self._stopped.wait()

    def run(self, owner: str, response_id: str) -> None:
        """There is a response to run. This does not wait for the worker, which may have to be started first; one that
        does not hear of the response finds it in the store a little later."""
        self._tell("/run", _params(owner, response_id))

    async def look(self) -> None:
        """Have the worker look at the store: a key was revoked, and what its client had open has ended there."""
        await self._post("/look", {})

    async def cancel(self, owner: str, response_id: str) -> None:
        """A response is not wanted any more. Returns when it has ended, if the worker runs it."""
        await self._post("/cancel", _params(owner, response_id))

    def run_batch(self, owner: str, batch_id: str) -> None:
        """There is a batch to run; as `run`."""
        self._tell("/batches/run", {"owner": owner, "batch_id": batch_id})

    def cancel_batch(self, owner: str, batch_id: str) -> None:
        """The store has it that a batch is cancelled. This does not wait for the worker either."""
        self._tell("/batches/cancel", {"owner": owner, "batch_id": batch_id})

    @asynccontextmanager
    async def events(self, owner: str, response_id: str, after: int) -> AsyncIterator[AsyncIterator[bytes] | None]:
        """The stream of a response after the event with this number, or None if it does not run.

        Raises:
            WorkerGone: here, or while the stream is read.
        """
        params = _params(owner, response_id) | {"after": str(after)}
        try:
            async with self._streams.stream("GET", "/events", params=params) as answer:
                yield answer.aiter_bytes() if answer.status_code == httpx.codes.OK else None
        except httpx.TransportError as error:
            raise WorkerGone(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._streams.aclose()
        await self._calls.aclose()
        self._socket.close()

    def _client(self, limits: httpx.Limits) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=self._socket.path, limits=limits)
        return httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=TIMEOUT_S)

    def _tell(self, path: str, params: dict[str, str]) -> None:
        task = asyncio.create_task(self._post(path, params))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _post(self, path: str, params: dict[str, str]) -> None:
        try:
            await self._calls.post(path, params=params)
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            log.warning("the background worker cannot be reached", about=params, reason=reason)


def _params(owner: str, response_id: str) -> dict[str, str]:
    return {"owner": owner, "response_id": response_id}
