"""Events that are counted: of APIs whose streams have a structure, and not one kind of chunk alone."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.events import Events
from scheduler_svc.frontend.answers.openai_objects import Usage
from scheduler_svc.frontend.errors import ApiError

NumberedEvent = tuple[str, Struct]  # its name, and its data without the name and the number


class NumberedEvents(Events):
    """Makes events whose number follows from the answer's tokens alone, whatever came together and wherever the answer
    is written: the pieces of such an answer are those of single tokens (`AnswerContext.is_numbered`). So the rest of a
    stream is all of it, made again from the first token, without what the client has.

    Args:
        after: number of the last event that the client has; -1 for none.
    """

    def __init__(self, *, after: int = -1) -> None:
        self._after = after
        self._number = 0
        self._has_begun = False

    @property
    def number(self) -> int:
        """Of the next event; nothing but the answer so far decides it."""
        return self._number

    def write_after(self, number: int) -> None:
        """Write events after this one from now on."""
        self._after = number

    def begun(self) -> bytes:
        """The first events. They come once, by this or before the first piece."""
        if self._has_begun:
            return b""
        self._has_begun = True
        return b"".join(self._numbered(self._opening()))

    def of(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """The events of pieces."""
        events = [self.begun()]
        num_bytes = len(events[0])
        for piece in pieces:
            for event in self._numbered(self._of_piece(piece)):
                events.append(event)
                num_bytes += len(event)
            if num_bytes > self.most_bytes:
                yield b"".join(events)
                events, num_bytes = [], 0
        if num_bytes:
            yield b"".join(events)

    def ended(self, usage: Usage, computed_by: str) -> bytes:
        """The events behind the last piece."""
        return self.begun() + b"".join(self._numbered(self._ending(usage, computed_by)))

    def failed(self, error: ApiError) -> bytes:
        """The events of a failure."""
        return self.begun() + b"".join(self._numbered(self._failing(error)))

    @abstractmethod
    def _opening(self) -> Iterable[NumberedEvent]: ...

    @abstractmethod
    def _of_piece(self, piece: Piece) -> Iterable[NumberedEvent]: ...

    @abstractmethod
    def _ending(self, usage: Usage, computed_by: str) -> Iterable[NumberedEvent]: ...

    @abstractmethod
    def _failing(self, error: ApiError) -> Iterable[NumberedEvent]: ...

    @abstractmethod
    def _write(self, name: str, data: Struct, number: int) -> bytes:
        """One event as it is sent."""

    def _numbered(self, events: Iterable[NumberedEvent]) -> Iterator[bytes]:
        """Those that the client does not have, as they are sent."""
        for name, data in events:
            number = self._number
            self._number += 1
            if number > self._after:
                yield self._write(name, data, number)
