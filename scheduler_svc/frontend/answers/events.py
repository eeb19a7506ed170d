"""An answer as server-sent events, in the words of the API that its request came by."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.event_ids import EventIds, Position
from scheduler_svc.frontend.answers.formats import Format
from scheduler_svc.frontend.answers.openai_objects import Usage, to_json
from scheduler_svc.frontend.errors import ApiError

DONE = b"data: [DONE]\n\n"


class Events(ABC):
    """Makes the events of one answer, in the order of its methods.

    Attributes:
        most_bytes: of events that are joined, or one event: some have the log-probabilities of a prompt.
    """

    most_bytes = 2**16

    def begun(self) -> bytes:
        """Events that come when the core has accepted the request, maybe long before its first token."""
        return b""

    @abstractmethod
    def of(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Events of pieces that came together, joined where they are not long."""

    @abstractmethod
    def ended(self, usage: Usage, computed_by: str) -> bytes:
        """What comes behind the last piece.

        Args:
            computed_by: as in `TokenDelta.model`.
        """

    def failed(self, error: ApiError) -> bytes:
        """The last event of an answer that fails after it has begun."""
        return event(error.body())


class ChunkEvents(Events):
    """The chunks of completions and chats. Their ids (`event_ids.py`) name tokens.

    Args:
        position: what the client has.
        has_ids: False leaves the ids out.
    """

    def __init__(self, form: Format, position: Position, *, has_ids: bool) -> None:
        self._format = form
        self._is_end = position.is_end
        self._ids = EventIds(position.choices, are_sent=has_ids)
        self._unopened = {number for number, delivered in enumerate(position.choices) if not delivered.has_opened}

    def of(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """A chunk for each piece."""
        events: list[bytes] = []
        num_bytes = 0
        for piece in pieces:
            if piece.choice in self._unopened:
                self._unopened.remove(piece.choice)
                opening = self._format.opening(piece)
                if opening is not None:
                    events.append(event(to_json(opening), self._ids.opened(piece.choice)))
            has_ended = piece.finish_reason is not None
            event_id = self._ids.advanced(piece.choice, piece.num_tokens, has_ended=has_ended)
            events.append(event(to_json(self._format.chunk(piece)), event_id))
            num_bytes += len(events[-1])
            if num_bytes > self.most_bytes:
                yield b"".join(events)
                events, num_bytes = [], 0
        if events:
            yield b"".join(events)

    def ended(self, usage: Usage, computed_by: str) -> bytes:
        """The usage, if it was asked for and the client does not have it, and the word that ends every stream."""
        if not self._format.include_usage or self._is_end:
            return DONE
        return event(to_json(self._format.ending(usage, computed_by)), self._ids.end()) + DONE


def event(data: bytes, event_id: str = "") -> bytes:
    """An event, its data first: some clients read no further."""
    return b"data: %b\nid: %b\n\n" % (data, event_id.encode()) if event_id else b"data: %b\n\n" % data
