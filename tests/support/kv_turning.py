"""The publisher of KV events without a core around it, and a router that reads slowly."""

import select
import socket
from collections.abc import Callable
from typing import Any

from common.logging import DropLog, get_logger
from scheduler_svc.core.executor.cache_events import CacheEvents
from scheduler_svc.server.kv_event_log import EventLog
from scheduler_svc.server.kv_events import USUAL_LIMITS, KvEventOptions, KvEventPublisher, TellingLimits
from scheduler_svc.server.zmtp.frames import MORE, FrameReader
from tests.support.eventually import eventually
from tests.support.kv_listener import KvListener
from tests.support.kv_readers import Subscriber
from tests.support.raw_zmtp import RawPeer, frame, greeting, ready

ANY = "tcp://127.0.0.1:0"


class Turning:
    """A publisher whose turns the test takes, with a clock that the test moves; each turn moves it by `turn_s`."""

    def __init__(
        self,
        turn_s: float = 0.0,
        limits: TellingLimits = USUAL_LIMITS,
        batches: EventLog | None = None,
        **options: Any,
    ) -> None:
        self.now, self.turn_s = 0.0, turn_s
        self.events = CacheEvents()
        self.drops = DropLog(get_logger("test"), "routers")
        self.publisher = KvEventPublisher(
            KvEventOptions(ANY, replay_endpoint=ANY, **options),
            self.events,
            self.drops,
            lambda: self.now,
            limits=limits,
            batches=batches,
        )
        assert self.publisher.replay_endpoint is not None
        self.endpoint, self.replay_endpoint = self.publisher.endpoint, self.publisher.replay_endpoint

    def __enter__(self) -> "Turning":
        return self

    def __exit__(self, *_: object) -> None:
        self.publisher.close()

    def store(self, first: int, count: int, block_size: int = 4) -> None:
        for key in range(first, first + count):
            self.events.store(key, None, key.to_bytes(4, "little") * block_size, block_size)

    def turn(self) -> None:
        self.now += self.turn_s
        self.publisher.turn()

    def turn_until(self, condition: Callable[[], bool]) -> None:
        def turned() -> bool:
            self.turn()
            return condition()

        eventually(turned, timeout_s=30.0)

    def listens(self, listener: KvListener) -> None:
        """Turn until a router knows all."""

        def knows() -> bool:
            while (message := listener.receive(0.0)) is not None:
                listener.numbers.append(message[1])
                listener.known.take(message[2])
            return not self.events.has_more and len(listener.known.blocks) == self.events.num_blocks

        self.turn_until(knows)


class SlowRouter:
    """A router that reads some bytes when it is told to; little waits in the sockets between.

    Attributes:
        known: what it knows.
        most_known: of how many blocks it has known at once.
    """

    def __init__(self, turning: Turning, topic: bytes = b"") -> None:
        before = {peer.number for peer in turning.publisher.port.members()}
        self._peer = RawPeer(turning.endpoint, greeting() + ready(socket_type=b"SUB") + frame(b"\x01" + topic))
        self._peer.socket.setblocking(False)
        self._reader = FrameReader(2**30)
        self._is_greeted = False
        self._frames: list[bytes] = []
        self.known = Subscriber(is_strict=False)
        self.most_known = 0
        turning.turn_until(lambda: len(turning.publisher.port.members()) > len(before))
        (self.place,) = (peer for peer in turning.publisher.port.members() if peer.number not in before)
        self.place.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)

    def read(self, num_bytes: int) -> None:
        """Take what has come, but not more than that. What the sockets have in between is waited for."""
        if self.place.has_unsent:
            select.select([self._peer.socket], [], [], 1.0)
        try:
            self._reader.feed(self._peer.socket.recv(num_bytes))
        except BlockingIOError:
            return
        self._is_greeted = self._is_greeted or self._reader.take_greeting() is not None
        while self._is_greeted and (sent := self._reader.take_frame()) is not None:
            self._frames.append(sent.body)
            if not sent.flags & MORE:
                if len(self._frames) == 3:  # else it is the handshake
                    self.known.take(self._frames[2])
                    self.most_known = max(self.most_known, len(self.known.blocks))
                self._frames = []

    def close(self) -> None:
        self._peer.close()
