"""Frontends that are connected, and when each was last heard. Pure: the time is the caller's."""

from collections.abc import Iterator

from scheduler_svc.core.actions import Peer

FRONTEND_TIMEOUT_S = 10.0


class Frontends:
    """Connected frontends. A silent one stays connected: its process may only be frozen."""

    def __init__(self) -> None:
        self._last_heard: dict[Peer, float] = {}
        self._silent: set[Peer] = set()

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._last_heard))

    def __len__(self) -> int:
        return len(self._last_heard)

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._last_heard

    def heard(self, peer: Peer, now: float) -> bool:
        """A frontend, perhaps a new one, has said something. Returns whether it had been silent."""
        self._last_heard[peer] = now
        was_silent = peer in self._silent
        self._silent.discard(peer)
        return was_silent

    def remove(self, peer: Peer) -> bool:
        """A frontend is gone. Returns whether it was connected."""
        self._silent.discard(peer)
        return self._last_heard.pop(peer, None) is not None

    def overdue(self, now: float) -> list[tuple[Peer, float]]:
        """Frontends that have been silent for too long and are not marked so, with the seconds of their silence."""
        silences = [(peer, now - heard) for peer, heard in self._last_heard.items() if peer not in self._silent]
        return [(peer, seconds) for peer, seconds in silences if seconds > FRONTEND_TIMEOUT_S]

    def mark_silent(self, peer: Peer) -> None:
        """A frontend is silent until it is heard again."""
        self._silent.add(peer)

    def paused(self, seconds: float, now: float) -> None:
        """This side has not run for so long, and could not hear."""
        self._last_heard = {peer: min(heard + seconds, now) for peer, heard in self._last_heard.items()}
