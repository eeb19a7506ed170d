"""A call that is a JSON object, from its beginning on: given as soon as it is one, and given back if it is none."""

from scheduler_svc.frontend.parsing.call_object import CallObject
from scheduler_svc.frontend.parsing.output import Output

MAX_UNDECIDED_CHARS = 2**20
MAX_AFTER_CHARS = 2**10  # of an object after its arguments
_PIECE_CHARS = 2**10  # of an undecided object are copied at once: most are decided with the first piece


class ObjectCall:
    """Read one object. A call begins in the output when its name is known and its arguments have begun: what comes
    before that is kept, and is content if the object is no call.

    Args:
        opening: text before the object that belongs to it.
        needs_arguments: whether an object with a name alone is no call. One without arguments and with something else
            never is: that may be what the arguments should be.

    Attributes:
        is_call: whether it has begun in the output.
    """

    def __init__(self, output: Output, opening: str, *, needs_arguments: bool) -> None:
        self.is_call = False
        self._output = output
        self._needs_arguments = needs_arguments
        self._object = CallObject()
        self._undecided = [opening]
        self._num_undecided = 0
        self._after = ""  # the arguments

    @property
    def is_complete(self) -> bool:
        """Whether the object's end has been read."""
        return self._object.is_complete

    @property
    def is_over(self) -> bool:
        """Whether the object is complete, or cannot be one."""
        is_too_long = not self.is_call and self._num_undecided >= MAX_UNDECIDED_CHARS
        is_too_long = is_too_long or len(self._after) >= MAX_AFTER_CHARS
        return self._object.is_complete or self._object.is_broken or is_too_long

    @property
    def is_whole(self) -> bool:
        """Whether it is a call with all of its arguments."""
        return self.is_call and (self._object.has_arguments or self._object.is_complete)

    def read(self, text: str, start: int) -> int:
        """Read on in `text` from `start`. Return where the object or the text ends."""
        end = self._read_undecided(text, start) if not self.is_call else start
        if self.is_call and not self.is_whole:
            end = self._object.read(text, end)
            self._give()
        while self.is_whole and end < len(text) and not self.is_over:
            piece = text[end : end + MAX_AFTER_CHARS - len(self._after)]
            num_read = self._object.read(piece, 0)
            self._after += piece[:num_read]
            end += num_read
        return end

    def is_argument(self, text: str) -> bool:
        """Return whether a piece belongs to the arguments as it is and changes nothing here: it need not be read."""
        return self.is_call and self._object.is_argument(text)

    def close(self) -> None:
        """Close the brackets that are missing, if they are all that is: a tag stands after the object."""
        self._object.close()
        if self.is_call:
            self._give()
        else:
            self._begin()

    def end(self, held: str = "") -> None:
        """Stop reading: what is neither arguments nor the end of their object is content.

        Args:
            held: text that could not be read.
        """
        self._object.end()
        if not self.is_call:
            self._output.add_content("".join(self._undecided) + held)
            return
        arguments, rest = self._object.take_rest()
        self._output.add_arguments(arguments)
        if self.is_whole or self._object.is_broken:
            self._output.end_call(is_whole=self.is_whole)
        if not self.is_complete:
            self._output.add_content(rest + self._after + held)

    def _read_undecided(self, text: str, start: int) -> int:
        while start < len(text) and not self.is_call and not self.is_over:
            piece = text[start : start + min(_PIECE_CHARS, MAX_UNDECIDED_CHARS - self._num_undecided)]
            num_read = self._object.read(piece, 0)
            self._undecided.append(piece[:num_read])
            self._num_undecided += num_read
            start += num_read
            self._begin()
        return start

    def _begin(self) -> None:
        may_be_alone = not (self._needs_arguments or self._object.has_others)
        has_begun = self._object.has_begun or (self._object.is_complete and may_be_alone)
        if not self.is_call and self._object.name and has_begun:
            self.is_call = True
            self._undecided = []
            self._output.begin_call(self._object.name)
            self._give()

    def _give(self) -> None:
        self._output.add_arguments(self._object.take_arguments())
        if self._object.is_complete and not self._object.has_arguments:
            self._output.add_arguments("{}")
        if self.is_whole:
            self._output.end_call()
