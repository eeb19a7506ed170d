"""Whose response begins next: owners take turns, and each owner's responses come in their order."""

import heapq
import itertools

from scheduler_svc.frontend.background.pace import RESTS, Pace, Rests

MOST = 1024  # that are open at once; the others wait in the store
MOST_OF_OWNER = 512
# Refusals of the core that say that there is no room.
OF_OWNER, OF_ALL, OF_RATE = "too_many_requests", "queue_full", "rate_limit_exceeded"
NO_ROOM = (OF_OWNER, OF_ALL, OF_RATE)

Name = tuple[str, str]  # owner and response


class Turns:
    """Responses that wait until the core has room for them. `now` is in seconds of any clock.

    Args:
        most, most_of_owner: that are open at once.
        rests: after refusals.
    """

    def __init__(self, most: int = MOST, most_of_owner: int = MOST_OF_OWNER, rests: Rests = RESTS) -> None:
        self._all = Pace(most, rests)
        self._most_of_owner = most_of_owner
        self._rests = rests
        self._paces: dict[str, Pace] = {}  # of owners that have something here
        self._waiting: dict[str, list[tuple[int, Name]]] = {}  # heaps of owners, these in the order of their turns
        self._places: dict[Name, int] = {}  # of those that have begun: what was added first comes first
        self._next_place = itertools.count()

    @property
    def is_waiting(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def add(self, name: Name) -> None:
        """One more waits, behind the others of its owner."""
        owner, _ = name
        heapq.heappush(self._waiting.setdefault(owner, []), (next(self._next_place), name))
        self._paces.setdefault(owner, Pace(self._most_of_owner, self._rests))

    def next(self, now: float) -> Name | None:
        """The one that begins now; None if none may. `ended` or `refused` has to be called for it."""
        if not self._all.may_begin(now):
            return None
        owner = next((owner for owner in self._waiting if self._paces[owner].may_begin(now)), None)
        if owner is None:
            return None
        names = self._waiting.pop(owner)
        place, name = heapq.heappop(names)
        self._places[name] = place
        if names:
            self._waiting[owner] = names  # behind the others
        for pace in (self._all, self._paces[owner]):
            pace.begun(now)
        return name

    def taken(self, name: Name) -> None:
        """The core has taken one that has begun."""
        for pace in (self._all, self._paces[name[0]]):
            pace.taken()

    def refused(self, name: Name, code: str, now: float) -> None:
        """The core had no room for one that has begun: it waits again, at its place."""
        owner, _ = name
        of_owner = self._paces[owner]
        full, other = (self._all, of_owner) if code == OF_ALL else (of_owner, self._all)
        full.refused(now)
        other.ended()
        heapq.heappush(self._waiting.setdefault(owner, []), (self._places.pop(name), name))

    def ended(self, name: Name) -> None:
        """One that has begun is over."""
        owner, _ = name
        del self._places[name]
        for pace in (self._all, self._paces[owner]):
            pace.ended()
        if not self._paces[owner].num_open and owner not in self._waiting:
            del self._paces[owner]
