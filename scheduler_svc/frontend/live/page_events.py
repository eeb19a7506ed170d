"""What pages are told, in words and as bytes: server-sent events of JSON (docs/page.md)."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from common import messages as m

Events = bytes

_encode = msgspec.json.Encoder().encode


def page_event(name: str, data: Any) -> Events:
    """One event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(data))


def shown_name(request_id: str, reader: str) -> str:
    """A request as a page names it: by its answer's id, which `/page/requests/ID` takes.

    Args:
        request_id: the core's, `CLIENT/ID-PROMPT`.
        reader: id of the page's client: others' requests keep the id of theirs.
    """
    name = request_id.removesuffix("-0")
    return name.removeprefix(f"{reader}/") if reader else name


def core_names(shown: str, reader: str, *, sees_all: bool) -> list[str]:
    """The core's ids that a page may mean by a name, the likeliest first."""
    own = f"{reader}/{shown}" if reader else shown
    names = [own, shown] if sees_all and reader else [own]
    return [id_ for name in names for id_ in (f"{name}-0", name)]


class Reader(msgspec.Struct, frozen=True):
    """Who reads a page: pages of equal readers get equal bytes.

    Attributes:
        client: id of the API key, empty without keys.
        sees_all: whether it may read what tells of all clients.
    """

    client: str
    sees_all: bool

    def waiting(self, sequences: Iterable[m.WaitingSequence], offset_s: float) -> Events:
        """The queue.

        Args:
            offset_s: Unix time less the core's time.
        """
        return page_event("waiting", [self._shown(sequence, offset_s) for sequence in self._visible(sequences)])

    def running(self, sequences: Iterable[m.RunningSequence], offset_s: float) -> Events:
        """What executors have."""
        return page_event("running", [self._shown(sequence, offset_s) for sequence in self._visible(sequences)])

    def events(self, events: Iterable[m.FleetEvent], offset_s: float) -> Events:
        """What happened. A reason may quote what a request brought about, so only those who see all are told it."""
        hidden = {} if self.sees_all else {"reason": ""}
        return page_event("events", [msgspec.structs.replace(e, at=e.at + offset_s, **hidden) for e in events])

    def _visible(self, sequences: Iterable[Any]) -> Iterable[Any]:
        return (each for each in sequences if self.sees_all or each.request.startswith(f"{self.client}/"))

    def _shown(self, sequence: Any, offset_s: float) -> Any:
        name = shown_name(sequence.request, self.client)
        return msgspec.structs.replace(sequence, request=name, since=sequence.since + offset_s)


def history_event(samples: Sequence[m.HistorySample], offset_s: float) -> Events:
    """Seconds of the service."""
    return page_event("history", [msgspec.structs.replace(sample, at=sample.at + offset_s) for sample in samples])
