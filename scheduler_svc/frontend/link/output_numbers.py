"""Whether Outputs of the core are all there: each carries its number on this connection."""

from enum import Enum


class Place(Enum):
    """Where an Outputs stands."""

    NEXT = "next"
    STALE = "stale"  # of the connection before this one, whose answers have ended
    GAP = "gap"  # one before it is missing


class OutputNumbers:
    """Counts the Outputs of one connection after the other."""

    def __init__(self) -> None:
        self._expected = 0

    def begin(self) -> None:
        """There is a new connection."""
        self._expected = 0

    def take(self, number: int) -> Place:
        """An Outputs with this number has come."""
        place = Place.NEXT
        if number not in (0, self._expected):
            place = Place.GAP if self._expected else Place.STALE
        if place is not Place.STALE:
            self._expected = number + 1
        return place
