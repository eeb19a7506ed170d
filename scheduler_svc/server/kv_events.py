"""Tells routers in front of several schedulers what this one has cached: the port that they subscribe at.

A batch goes out once a turn to all subscribers, and nothing waits for one of them: what a subscriber does not read is
kept up to a limit, and then it is sent nothing more. A gap in the numbers shows that to it, and a router that asks at
the replay port gets what it has missed. As soon as a subscriber has room again, all is told anew, and so it is for one
that has just subscribed: what a subscriber hears begins with `AllBlocksCleared`.

All that is here may be more than is kept for a subscriber, and is encoded faster than any reads. So it is told at the
pace of the slowest: the next part waits until little waits to be sent to any subscriber, unless one is too slow, which
is then sent nothing more either. What happens meanwhile is told at once, and one telling ends before the next begins.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from common.logging import DropLog, get_logger
from scheduler_svc.core.executor.cache_events import BLOCKS_AT_ONCE, CacheEvent, CacheEvents, Cleared
from scheduler_svc.server.kv_event_format import encode_batch
from scheduler_svc.server.kv_event_log import EventLog, encode_number
from scheduler_svc.server.kv_event_replay import ReplayPort
from scheduler_svc.server.open_port import MAX_MEMBERS, OpenPort
from scheduler_svc.server.peer import PeerConnection
from scheduler_svc.server.zmtp.connection import SUBSCRIBE
from scheduler_svc.server.zmtp.frames import encode_message
from scheduler_svc.server.zmtp.mechanisms import Role

TELL_ANEW_EVERY_S = 5.0  # at most, because all subscribers get it
MAX_SUBSCRIPTIONS = 16  # of one subscriber
PUBLISHER = Role(b"PUB", (b"SUB", b"XSUB"))

log = get_logger(__name__)


@dataclass(frozen=True)
class KvEventOptions:
    """What an operator chooses.

    Attributes:
        endpoint: where routers subscribe.
        topic: of the messages; llm-d wants `kv@POD@MODEL`, and Dynamo any.
        replay_endpoint: where they ask for what they have missed; None for no such port.
        salt: the `cache_salt` of the requests whose blocks are told of.
        cache_group: of the API keys that have this salt; None for requests without one.
    """

    endpoint: str
    topic: str = ""
    replay_endpoint: str | None = None
    salt: str = ""
    cache_group: str | None = None


@dataclass(frozen=True)
class TellingLimits:
    """What waits for subscribers, and how long.

    Attributes:
        unsent_bytes: that wait for one subscriber.
        unsent_old_bytes: that wait for one subscriber when more is told anew.
        part_patience_s: so long a part of what is told anew waits for subscribers that are slow.
        patience_s: so long all of it does, together.
        members: of each port.
    """

    unsent_bytes: int = 2**24
    unsent_old_bytes: int = 2**20
    part_patience_s: float = 1.0
    patience_s: float = 30.0
    members: int = MAX_MEMBERS


USUAL_LIMITS = TellingLimits()


class KvEventPublisher:
    """Sends what `events` has, a batch a turn.

    Args:
        events: of the scheduler.
        drops: counts and logs malformed requests.
        clock, wall_clock: seconds of a monotonic clock, and since 1970.
        limits: of what waits for subscribers.
        batches: where it keeps what was sent last; None for a log of the usual size.

    Attributes:
        endpoint, replay_endpoint: with the ports that were picked.
        port, replay: its ports, for reading.
        log: the batches that were sent last.
        behind: peers that are sent nothing before all is told anew.
    """

    def __init__(
        self,
        options: KvEventOptions,
        events: CacheEvents,
        drops: DropLog,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        limits: TellingLimits = USUAL_LIMITS,
        batches: EventLog | None = None,
    ) -> None:
        self._events = events
        self._limits = limits
        self._clock = clock
        self._wall_clock = wall_clock
        self._topic = options.topic.encode()
        self.port = OpenPort(
            options.endpoint, PUBLISHER, self._is_subscriber, limits.unsent_bytes, clock, limits.members
        )
        self.endpoint = self.port.endpoint
        self.log = EventLog() if batches is None else batches
        self.replay = None
        self.replay_endpoint = None
        if options.replay_endpoint is not None:
            self.replay = ReplayPort(options.replay_endpoint, self._topic, self.log, drops, clock, limits.members)
            self.replay_endpoint = self.replay.endpoint
        self._subscriptions: dict[bytes, list[bytes]] = {}  # by peer, the topics that it wants
        self.behind: set[bytes] = set()
        self._must_tell_anew = False
        self._told_anew_at = self._part_told_at = float("-inf")
        self._waits_for_readers = False

    def register(self, poller: zmq.Poller) -> None:
        """Let the loop's poller wake up for these ports."""
        poller.register(self.port.fileno(), zmq.POLLIN)
        if self.replay is not None:
            poller.register(self.replay.fileno(), zmq.POLLIN)

    @property
    def has_more(self) -> bool:
        """Whether a turn has something to do, whatever the poller says."""
        can_tell = self._events.has_news or (self._events.has_untold and not self._waits_for_readers)
        return can_tell or (self.replay is not None and self.replay.has_more)

    def turn(self) -> None:
        """Take subscriptions and requests, and send what has happened since the last turn."""
        for peer, frames in self.port.receive():
            self._subscribe(peer, frames)
        if self.replay is not None and self.replay.turn():
            self._must_tell_anew = True
        subscribers = self.subscribers()
        can_follow = {peer.number for peer in subscribers if not peer.has_unsent} & self.behind
        now = self._clock()
        must_tell_anew = bool(can_follow or self._must_tell_anew) and not self._events.has_untold
        if must_tell_anew and now - self._told_anew_at >= TELL_ANEW_EVERY_S:
            self._must_tell_anew, self._told_anew_at, self._part_told_at = False, now, now
            self.behind -= can_follow
            self._events.tell_anew()
        self._waits_for_readers = self._events.has_untold and not self._is_time_for_more(subscribers, now)
        if events := self._events.take(0 if self._waits_for_readers else BLOCKS_AT_ONCE):
            self._publish(events, subscribers)

    def close(self) -> None:
        """Say that nothing is here any more, and close the ports."""
        self._publish([Cleared()], self.subscribers())
        self.port.close()
        if self.replay is not None:
            self.replay.close()

    def _subscribe(self, peer: PeerConnection, frames: list[bytes]) -> None:
        topics = self._subscriptions.setdefault(peer.number, [])
        topic, had_ours = frames[0][1:], self._has_ours(topics)
        if frames[0][:1] != SUBSCRIBE:
            if topic in topics:
                topics.remove(topic)
        elif len(topics) < MAX_SUBSCRIPTIONS:
            topics.append(topic)
            if self._has_ours(topics) and not had_ours:
                self.behind.add(peer.number)
        else:
            self.port.refuse(peer, f"more than {MAX_SUBSCRIPTIONS} subscriptions")

    def _is_subscriber(self, peer: PeerConnection) -> bool:
        return self._has_ours(self._subscriptions.get(peer.number, []))

    def _has_ours(self, topics: list[bytes]) -> bool:
        return any(self._topic.startswith(topic) for topic in topics)

    def subscribers(self) -> list[PeerConnection]:
        """Those that want our topic."""
        members = {peer.number: peer for peer in self.port.members()}
        self._subscriptions = {number: topics for number, topics in self._subscriptions.items() if number in members}
        self.behind &= members.keys()
        return [members[number] for number, topics in self._subscriptions.items() if self._has_ours(topics)]

    def _is_time_for_more(self, subscribers: list[PeerConnection], now: float) -> bool:
        """Whether the next part may be told anew. Who has held it up for too long is left behind."""
        limits, waited_s = self._limits, now - self._part_told_at
        slow = {peer.number for peer in subscribers if peer.num_unsent_bytes > limits.unsent_old_bytes} - self.behind
        if slow and waited_s < limits.part_patience_s and now - self._told_anew_at < limits.patience_s:
            return False
        self.behind |= slow
        self._part_told_at = now
        return True

    def _publish(self, events: list[CacheEvent], subscribers: list[PeerConnection]) -> None:
        batch = encode_batch(events, self._wall_clock())
        number = self.log.append(batch)
        message = encode_message((self._topic, encode_number(number), batch))
        for peer in subscribers:
            if peer.number in self.behind:
                continue
            if self.port.has_room(peer):
                self.port.send(peer, message)
            else:
                self.behind.add(peer.number)
