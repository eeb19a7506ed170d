"""HTTP by raw sockets, to a server that is guarded as a frontend is."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from common.logging import QuietLog, get_logger
from scheduler_svc.frontend.http.connection_guard import ConnectionGuard, ConnectionLimits, GuardLogs
from scheduler_svc.frontend.http.server import http_config
from scheduler_svc.frontend.link.request_counts import RequestCounts

HEAD = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
READER_DROPPED, REFUSED = "reader dropped", "connection refused"
ABORTED = (ConnectionError, asyncio.IncompleteReadError)

log = get_logger(__name__)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """`/echo` and `/v1/messages` say the body again, `/early` answers before it has read anything, `/long` says much,
    `/flood` and `/wait` never end: they say much, and nothing."""
    body = b""
    if scope["path"] in ("/echo", "/v1/messages"):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
    if scope["path"] == "/long":
        body = b"x" * 50_000  # more than the sockets take, and less than makes the application wait
    headers = [(b"content-length", str(len(body)).encode())]
    if scope["path"] not in ("/flood", "/wait"):
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    gone = asyncio.create_task(_disconnected(receive))
    if scope["path"] == "/wait":
        await gone
    while not gone.done():
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        """Read a whole answer with a content-length. Raises one of ABORTED if there is none."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        self.fields = fields
        self.body = await self.reader.readexactly(int(fields.get(b"content-length", 0)))
        return int(head.split()[1])

    async def is_closed(self) -> bool:
        """Whether the server closes the connection soon."""
        try:
            return await asyncio.wait_for(self.reader.read(), 60) is not None
        except ConnectionError:
            return True


@asynccontextmanager
async def serving(
    limits: ConnectionLimits,
    served: ASGIApp = app,
    counts: RequestCounts | None = None,
    guard: type[ConnectionGuard] = ConnectionGuard,
) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    """A server, guarded; gives what connects to it. It logs all that it would log now and then."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        logs = GuardLogs(*(QuietLog(log, event, interval_s=0.0) for event in (READER_DROPPED, REFUSED)))
        config = http_config(served, limits, counts or RequestCounts(), logs=logs)
        config.http = partial(guard, **config.http.keywords)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        clients: list[Client] = []

        async def connect() -> Client:
            clients.append(Client(*await asyncio.open_connection(*listener.getsockname(), limit=2**20)))
            return clients[-1]

        try:
            yield connect
        finally:
            for client in clients:
                client.writer.transport.abort()
            server.should_exit = True
            await task
