"""The port at which a router asks again for KV events that it has missed.

A request is `[empty, number (8 bytes, big endian)]`. The answer is a message `[empty, topic, number, batch]` for each
batch from that number on that is kept, and a last one with the number -1 and an empty batch. That is vLLM's format
since its pull request 45177; before, the topic was missing, which Dynamo still takes and llm-d does not.
"""

import time
from collections.abc import Callable

from common.logging import DropLog
from scheduler_svc.server.kv_event_format import END_OF_REPLAY, SEQUENCE_BYTES
from scheduler_svc.server.kv_event_log import EventLog, encode_number
from scheduler_svc.server.open_port import MAX_MEMBERS, OpenPort
from scheduler_svc.server.peer import PeerConnection
from scheduler_svc.server.zmtp.frames import encode_message
from scheduler_svc.server.zmtp.mechanisms import Role

BATCHES_AT_ONCE = 64  # to all routers together, in one turn
BYTES_AT_ONCE = 2**22  # the same; the last batch may exceed it
MAX_UNSENT_BYTES = 2**20  # that wait for one router: each has a copy of its own, and the log has all of it anyway
REPLAY_ROUTER = Role(b"ROUTER", (b"DEALER", b"REQ"))


class ReplayPort:
    """Answers requests, some batches a turn.

    Args:
        endpoint: to bind.
        topic: of the messages.
        batches: what there is.
        drops: counts and logs malformed requests.
        clock: seconds of a monotonic clock.
        max_members: see `OpenPort`.

    Attributes:
        endpoint: with the port that was picked.
        port: that it answers at, for reading.
        asked: by peer, from which batch on it waits for an answer; a new request takes the place of its last.
    """

    def __init__(
        self,
        endpoint: str,
        topic: bytes,
        batches: EventLog,
        drops: DropLog,
        clock: Callable[[], float] = time.monotonic,
        max_members: int = MAX_MEMBERS,
    ) -> None:
        self.port = OpenPort(endpoint, REPLAY_ROUTER, self._is_being_answered, MAX_UNSENT_BYTES, clock, max_members)
        self.endpoint = self.port.endpoint
        self._topic = topic
        self._batches = batches
        self._drops = drops
        self.asked: dict[bytes, tuple[PeerConnection, int]] = {}

    def fileno(self) -> int:
        """For a poller."""
        return self.port.fileno()

    @property
    def has_more(self) -> bool:
        """Whether `turn` could send something at once."""
        return any(self._has_room(peer) for peer, _ in self.asked.values())

    def turn(self) -> bool:
        """Take requests and send some of what was asked for.

        Returns:
            Whether a router asked for batches that are forgotten: it has to be told all anew.
        """
        missed = False
        for peer, frames in self.port.receive():
            if len(frames) != 2 or frames[0] or len(frames[1]) != SEQUENCE_BYTES:
                self._drops.dropped(peer.address, "a replay request has an empty frame and 8 bytes")
                continue
            number = int.from_bytes(frames[1], "big")
            missed = missed or number < self._batches.first
            self.asked[peer.number] = (peer, number)
        self._answer()
        return missed

    def close(self) -> None:
        """Close the port."""
        self.port.close()

    def _answer(self) -> None:
        left, bytes_left = BATCHES_AT_ONCE, BYTES_AT_ONCE
        for name, (peer, number) in list(self.asked.items()):
            if left <= 0 or bytes_left <= 0:
                return
            del self.asked[name]  # to stand behind the others, if something is left
            at = max(number, self._batches.first)
            while left > 0 and bytes_left > 0 and at < self._batches.next and self._has_room(peer):
                self._send(peer, encode_number(at), self._batches[at])
                left, bytes_left, at = left - 1, bytes_left - len(self._batches[at]), at + 1
            if at >= self._batches.next and self._has_room(peer):
                self._send(peer, END_OF_REPLAY, b"")
            elif peer.is_open:
                self.asked[name] = (peer, at)

    def _is_being_answered(self, peer: PeerConnection) -> bool:
        return peer.number in self.asked or peer.has_unsent

    def _has_room(self, peer: PeerConnection) -> bool:
        return peer.is_open and self.port.has_room(peer)

    def _send(self, peer: PeerConnection, number: bytes, batch: bytes) -> None:
        self.port.send(peer, encode_message((b"", self._topic, number, batch)))
