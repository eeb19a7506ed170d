"""A TCP proxy in a thread, whose connections a test can freeze and break: the network between two services."""

import asyncio
import threading
from types import TracebackType
from typing import Self


class CuttableProxy:
    """Forwards connections to 127.0.0.1:`target_port`.

    Attributes:
        port: where it listens on loopback.
    """

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._flowing = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def lead_to(self, target_port: int) -> None:
        """From now on new connections are forwarded to this port."""
        self._target_port = target_port

    def cut(self) -> None:
        """From now on nothing goes through, in either direction; connections stay open, as far as both ends know."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def heal(self) -> None:
        """What was held back arrives."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    def break_all(self) -> None:
        """Close all connections; new ones can be made."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._flowing.set()
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, near_reader: asyncio.StreamReader, near_writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            near_writer.transport.abort()
            return
        self._writers |= {near_writer, far_writer}
        await asyncio.gather(self._pump(near_reader, far_writer), self._pump(far_reader, near_writer))
        self._writers -= {near_writer, far_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
