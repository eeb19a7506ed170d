"""Frontends that are connected, and when each was last heard. Pure: the time is the caller's."""

from collections.abc import Collection, Iterator

from scheduler_svc.core.actions import Peer

SILENT_AFTER_S = 10.0  # then an operator is told
END_AFTER_S = 30.0  # longer than any work that a frontend does in one piece: then it hangs, and is ended


class Frontends:
    """Connected frontends. A silent one stays connected: its process may be busy, or frozen for a while.

    Args:
        end_after_s: how long one may be silent before it counts as hanging.
    """

    def __init__(self, end_after_s: float = END_AFTER_S) -> None:
        self._end_after_s = end_after_s
        self._last_heard: dict[Peer, float] = {}
        self._pids: dict[Peer, int] = {}
        self._silent: set[Peer] = set()

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._last_heard))

    def __len__(self) -> int:
        return len(self._last_heard)

    def __contains__(self, peer: Peer | None) -> bool:
        return peer in self._last_heard

    def heard(self, peer: Peer, now: float) -> bool:
        """A frontend has said something. Returns whether it is a new one."""
        is_new = peer not in self._last_heard
        self._last_heard[peer] = now
        self._silent.discard(peer)
        return is_new

    def named(self, peer: Peer, pid: int) -> None:
        """A frontend has said which process it is."""
        self._pids[peer] = pid

    @property
    def pids(self) -> Collection[int]:
        """Processes of connected frontends: those that have loaded the model's files and serve."""
        return self._pids.values()

    def pid(self, peer: Peer) -> int:
        """A frontend's process, 0 if it has not said so."""
        return self._pids.get(peer, 0)

    def remove(self, peer: Peer) -> bool:
        """A frontend is gone. Returns whether it was connected."""
        self._silent.discard(peer)
        self._pids.pop(peer, None)
        return self._last_heard.pop(peer, None) is not None

    def newly_silent(self, now: float) -> list[tuple[Peer, float]]:
        """Frontends whose silence is worth a line in the log, each once, with its seconds."""
        found = [(peer, s) for peer, s in self._silences(now, SILENT_AFTER_S) if peer not in self._silent]
        self._silent.update(peer for peer, _ in found)
        return found

    def hanging(self, now: float) -> list[tuple[Peer, float]]:
        """Frontends that will not speak again, with the seconds of their silence."""
        return self._silences(now, self._end_after_s)

    def paused(self, seconds: float, now: float) -> None:
        """This side has not run for so long, and could not hear."""
        self._last_heard = {peer: min(heard + seconds, now) for peer, heard in self._last_heard.items()}

    def _silences(self, now: float, longer_than_s: float) -> list[tuple[Peer, float]]:
        silences = [(peer, now - heard) for peer, heard in self._last_heard.items()]
        return [(peer, seconds) for peer, seconds in silences if seconds > longer_than_s]
