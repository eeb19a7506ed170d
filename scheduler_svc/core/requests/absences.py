"""Which requests wait for their clients, and until when. Pure: the time is the caller's."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile


class Absences:
    """Requests without a reader, by id.

    Those that wait equally long stand in the order in which they began to, which is the order of their times. So a look
    at the first of each kind finds all that are late, however many wait.
    """

    def __init__(self) -> None:
        self._until: dict[float, OrderedDict[str, float]] = {}  # by how long they wait, in seconds

    def __len__(self) -> int:
        return sum(map(len, self._until.values()))

    def begin(self, request_id: str, wait_s: float, now: float) -> None:
        """A request waits for its client from now on. `now` never goes back."""
        self.end(request_id)
        self._until.setdefault(wait_s, OrderedDict())[request_id] = now + wait_s

    def end(self, request_id: str) -> None:
        """It waits no longer, if it did."""
        for until in self._until.values():
            until.pop(request_id, None)

    def late(self, now: float) -> Iterator[str]:
        """Requests whose time is up."""
        for until in self._until.values():
            for request_id, _ in takewhile(lambda entry: entry[1] <= now, until.items()):
                yield request_id

    def paused(self, seconds: float) -> None:
        """The caller has not run for so long: clients may need that long to come back."""
        for until in self._until.values():
            for request_id in until:
                until[request_id] += seconds
