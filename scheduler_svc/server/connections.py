"""All connections of a port: which are ready to be read from, and how much strangers may take of everything."""

import resource
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from common.logging import QuietLog, get_logger
from scheduler_svc.core.actions import Peer
from scheduler_svc.server.doorway import Doorway
from scheduler_svc.server.peer import PeerConnection
from scheduler_svc.server.strangers import (
    ACCEPT,
    ADMIT,
    HANDSHAKE_STEP,
    MESSAGE,
    READ,
    TURN_AWAY,
    StrangerBudget,
    Strangers,
)

ACCEPTS_A_TURN = 8
LINGER_S = 0.2

log = get_logger(__name__)


class Connections:
    """The connections, in two kinds: those of peers that were admitted, and those of strangers.

    Args:
        doorway: where peers come in.
        budget: how much work strangers may cause.
        new_selector: makes what watches the connections.

    Attributes:
        endpoint: of the doorway.
        are_strangers_waiting: whether they have had their share of the core's time.
    """

    def __init__(
        self,
        doorway: Doorway,
        budget: StrangerBudget,
        new_selector: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector,
    ) -> None:
        self._doorway = doorway
        self.endpoint = doorway.endpoint
        self._budget = budget
        self._peers: dict[Peer, PeerConnection] = {}
        self._strangers = Strangers(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._lost: list[Peer] = []
        # Strangers, and the port that they come by, have a selector of their own, which is not asked when they have
        # had their share of the core's time. It stands in the first one like a connection.
        self._selector, self._strangers_selector = new_selector(), new_selector()
        self._strangers_selector.register(self._doorway.socket, selectors.EVENT_READ)
        self._selector.register(_number_of(self._strangers_selector), selectors.EVENT_READ)
        self.are_strangers_waiting = False
        self._has_opened = False  # whether newcomers had their turn the last time that some waited
        self._unwatched = QuietLog(log, "a connection cannot be watched")

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def keys_failure(self) -> str:
        """Why the keys of peers cannot be read; empty if they can."""
        return self._doorway.keys_failure

    def fileno(self) -> int:
        """For a poller: readable when a connection is."""
        return _number_of(self._selector)

    def get(self, peer: Peer) -> PeerConnection | None:
        """The connection with this number, while it is open."""
        return self._peers.get(peer)

    def look_after(self, now: float) -> None:
        """Close connections that were strangers for too long, or whose key has been revoked."""
        self._budget.refill(now)
        if self.are_strangers_waiting and not self._budget.is_spent:
            self._watch_strangers()
        for peer in self._strangers.superfluous(now):
            self.drop(peer)
        for peer in self._doorway.revoked(self._peers.values()):
            log.warning("connection closed: its key has been revoked", address=peer.address)
            self.drop(peer)

    def read(self, now: float) -> Iterator[PeerConnection]:
        """Let new peers in, send what waits, and read; the peers that were read from.

        A peer is not read from while what it said before waits to be taken.
        """
        for key, events in self._selector.select(0):
            if key.data is not None:
                yield from self._serve(key.data, events)
        if self.are_strangers_waiting:
            return
        for key, events in self._ready_strangers():
            if self._budget.is_spent:
                self._selector.unregister(_number_of(self._strangers_selector))
                self.are_strangers_waiting = True
                return
            if key.data is None:
                self._has_opened = True
                self._accept(now)
            else:
                self._budget.spend(READ)
                yield from self._serve(key.data, events)

    def has_to_wait(self, peer: PeerConnection) -> bool:
        """Whether the peer is a stranger, and strangers have had their share of the core's time."""
        return not peer.is_admitted and self._budget.is_spent

    def count_work(self, peer: PeerConnection, *, handshake_steps: int, messages: int) -> None:
        """So much of what the peer sent was looked at."""
        if not peer.is_admitted:
            steps = handshake_steps if self._doorway.asks_for_keys else 0
            self._budget.spend(HANDSHAKE_STEP * steps + MESSAGE * messages)

    def write(self, peer: PeerConnection, data: bytes) -> None:
        """Send data as soon as the connection takes it; drop the connection if it is broken."""
        try:
            peer.write(data)
            self._watch(peer)
        except OSError:
            self.drop(peer)

    def admit(self, peer: PeerConnection) -> None:
        """It is no stranger any more. It is dropped if it cannot be watched as such."""
        self._strangers.remove(peer)
        self._budget.spend(ADMIT)  # it was a stranger until now, and may be one again at once
        peer.admit()
        self._move(peer, self._strangers_selector, self._selector)

    def dismiss(self, peer: PeerConnection, now: float) -> None:
        """It is a stranger again. It is dropped if it cannot be watched as such."""
        peer.is_admitted = False
        self._strangers.add(peer, now)
        self._move(peer, self._selector, self._strangers_selector)

    def drop(self, peer: PeerConnection) -> None:
        """Close a connection."""
        if not peer.is_open:
            return
        with suppress(KeyError):  # the system would not let it be watched
            self._selector_of(peer).unregister(peer.socket)
        peer.close()
        del self._peers[peer.number]
        self._strangers.remove(peer)
        if peer.has_spoken:
            self._lost.append(peer.number)

    def take_lost(self) -> list[Peer]:
        """The peers that have sent a message and whose connection was closed since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def close(self) -> None:
        """Close all; what waits to be sent has a moment to leave."""
        self._doorway.close()
        peers = list(self._peers.values())
        deadline = time.monotonic() + LINGER_S
        while any(peer.has_unsent for peer in peers) and time.monotonic() < deadline:
            time.sleep(LINGER_S / 20)
            for peer in peers:
                self._flush(peer)
        for peer in peers:
            self.drop(peer)
        self._strangers_selector.close()
        self._selector.close()

    # --- inside ---

    def _watch_strangers(self) -> None:
        """Look at strangers again, now or in a later turn."""
        try:
            self._selector.register(_number_of(self._strangers_selector), selectors.EVENT_READ)
            self.are_strangers_waiting = False
        except OSError as error:
            self._unwatched.happened(reason=error.strerror)

    def _ready_strangers(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Strangers, and the port if somebody waits there.

        The port comes last, or first if the budget was spent before it came to it: the system might tell the same one
        first each time, which could then keep the others from ever being served.
        """
        ready = self._strangers_selector.select(0)
        ready.sort(key=lambda found: (found[0].data is None) == self._has_opened)
        self._has_opened = False
        return ready

    def _serve(self, peer: PeerConnection, events: int) -> Iterator[PeerConnection]:
        if events & selectors.EVENT_WRITE:
            self._flush(peer)
        if peer.is_open and events & selectors.EVENT_READ and not peer.has_unread:
            peer.read()
            yield peer

    def _flush(self, peer: PeerConnection) -> None:
        if not peer.is_open:
            return
        try:
            peer.flush()
            self._watch(peer)
        except OSError:
            self.drop(peer)

    def _watch(self, peer: PeerConnection) -> None:
        """Ask for the moment in which more can be sent, if anything is left. Raises OSError if that is refused."""
        selector = self._selector_of(peer)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.has_unsent else 0)
        if selector.get_key(peer.socket).events != events:
            selector.modify(peer.socket, events, peer)

    def _move(self, peer: PeerConnection, old: selectors.BaseSelector, new: selectors.BaseSelector) -> None:
        try:
            new.register(peer.socket, old.unregister(peer.socket).events, peer)
        except OSError as error:
            self._unwatched.happened(address=peer.address, reason=error.strerror)
            self.drop(peer)

    def _selector_of(self, peer: PeerConnection) -> selectors.BaseSelector:
        return self._selector if peer.is_admitted else self._strangers_selector

    def _accept(self, now: float) -> None:
        before = self._doorway.num_turned_away
        self._let_in(now)
        self._budget.spend(TURN_AWAY * (self._doorway.num_turned_away - before))

    def _let_in(self, now: float) -> None:
        for _ in range(ACCEPTS_A_TURN):
            self._budget.spend(ACCEPT)
            try:
                peer = self._doorway.accept(now)
                if peer is None:
                    return
                self._strangers_selector.register(peer.socket, selectors.EVENT_READ, peer)
            except OSError as error:  # too few files, or too little memory; what was accepted is closed with its object
                log.error("a connection cannot be accepted", reason=error.strerror, connections=len(self._peers))
                self._budget.exhaust()  # or the core would do nothing but try
                if (oldest := self._strangers.oldest()) is not None:
                    self.drop(oldest)
                return
            self._peers[peer.number] = peer
            self._strangers.add(peer, now)
            self.write(peer, peer.connection.take_output())
            for superfluous in self._strangers.superfluous(now):
                self.drop(superfluous)


def _number_of(selector: selectors.BaseSelector) -> int:
    """The file descriptor of a selector: epoll's and kqueue's can be polled themselves."""
    return selector.fileno()  # type: ignore[attr-defined, no-any-return]
