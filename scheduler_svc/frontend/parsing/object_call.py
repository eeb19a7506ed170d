"""A call that is a JSON object, from its beginning on: given as soon as it is one, and given back if it is none."""

from scheduler_svc.frontend.parsing.call_object import CallObject
from scheduler_svc.frontend.parsing.output import Output

MAX_UNDECIDED_CHARS = 2**20
_PIECE_CHARS = 2**10  # of an undecided object are copied at once: most are decided with the first piece


class ObjectCall:
    """Reads one object. A call begins in the output when its name is known; what comes before that is kept until then.

    Args:
        opening: text before the object that belongs to it, and is content if the object is no call.
        needs_arguments: whether an object with a name alone is no call.

    Attributes:
        has_ended: whether nothing more is to be read: the object is complete, or cannot be one.
        is_call: whether it has begun in the output.
    """

    def __init__(self, output: Output, opening: str, *, needs_arguments: bool) -> None:
        self.has_ended = False
        self.is_call = False
        self._output = output
        self._needs_arguments = needs_arguments
        self._object = CallObject()
        self._undecided = [opening]
        self._num_undecided = 0

    def read(self, text: str, start: int) -> int:
        """Read on in `text` from `start`; where the object or the text ends."""
        end = self._read_undecided(text, start) if not self.is_call else start
        if self.is_call:
            end = self._object.read(text, end)
            self._output.add_arguments(self._object.take_arguments())
        self._close()
        return end

    def is_argument(self, text: str) -> bool:
        """Whether a piece belongs to the arguments as it is and changes nothing here: it need not be read."""
        return self.is_call and self._object.is_argument(text)

    def undecided(self) -> str:
        """All of the text, if it is no call yet."""
        return "".join(self._undecided)

    def _read_undecided(self, text: str, start: int) -> int:
        while start < len(text) and not self.is_call and not self._is_over:
            piece = text[start : start + min(_PIECE_CHARS, MAX_UNDECIDED_CHARS - self._num_undecided)]
            num_read = self._object.read(piece, 0)
            self._undecided.append(piece[:num_read])
            self._num_undecided += num_read
            start += num_read
            if self._object.name and (self._object.has_arguments or not self._needs_arguments):
                self.is_call = True
                self._undecided = []
                self._output.begin_call(self._object.name)
        return start

    @property
    def _is_over(self) -> bool:
        is_too_long = not self.is_call and self._num_undecided >= MAX_UNDECIDED_CHARS
        return self._object.is_complete or self._object.is_broken or is_too_long

    def _close(self) -> None:
        self.has_ended = self._is_over
        if not self.has_ended:
            return
        if not self.is_call:
            self._output.add_content(self.undecided())
            return
        if self._object.is_complete and not self._object.has_arguments:
            self._output.add_arguments("{}")
        self._output.end_call()
