"""What this frontend counts of its requests, until the core has it: the core's metrics are those of all frontends."""

from collections import Counter

from common import messages as m

MAX_LABELS = 256  # of each kind between two reports; what else there is counts as OTHER
MAX_LABEL_CHARACTERS = 64
OTHER = "other"


class RequestCounts:
    """Counts since the last report."""

    def __init__(self) -> None:
        self._http: Counter[tuple[str, int]] = Counter()
        self._refused: Counter[str] = Counter()
        self._ignored: Counter[str] = Counter()

    def answered(self, path: str, status: int) -> None:
        """An HTTP request to this endpoint was answered."""
        key = (path[:MAX_LABEL_CHARACTERS], status)
        self._http[key if key in self._http or len(self._http) < MAX_LABELS else (OTHER, status)] += 1

    def refused(self, code: str) -> None:
        """This frontend refused a request; not the core, which counts for itself."""
        self._refused[_label(code, self._refused)] += 1

    def ignored(self, place: str) -> None:
        """A field of a request was ignored; it stood in this place of the body."""
        self._ignored[_label(place, self._ignored)] += 1

    def report(self) -> m.FrontendCounts | None:
        """What the core has to be told; None if nothing has been counted."""
        if not (self._http or self._refused or self._ignored):
            return None
        return m.FrontendCounts(
            http=tuple(m.HttpCount(path=path, status=code, count=n) for (path, code), n in self._http.items()),
            refused=tuple(m.NamedCount(name=name, count=n) for name, n in self._refused.items()),
            ignored=tuple(m.NamedCount(name=name, count=n) for name, n in self._ignored.items()),
        )

    def reported(self) -> None:
        """The report is on its way: count from 0 again."""
        for counts in (self._http, self._refused, self._ignored):
            counts.clear()


def _label(name: str, counts: Counter[str]) -> str:
    is_plain = name.isascii() and name.replace(".", "_").replace("-", "_").isidentifier()
    if not is_plain or len(name) > MAX_LABEL_CHARACTERS:
        return OTHER
    return name if name in counts or len(counts) < MAX_LABELS else OTHER
