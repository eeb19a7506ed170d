"""A call that is a JSON object, from its beginning on: given as soon as it is one, and given back if it is none."""

from scheduler_svc.frontend.parsing.call_object import CallObject
from scheduler_svc.frontend.parsing.held_back import SPACES
from scheduler_svc.frontend.parsing.output import Output

MAX_UNDECIDED_CHARS = 2**20
MAX_AFTER_CHARS = 2**10  # of an object after its arguments
_PIECE_CHARS = 2**10  # of an undecided object are copied at once: most are decided with the first piece


class ObjectCall:
    """Read one object. A call begins in the output when its name is known and its arguments have begun: what comes
    before that is kept, and is content if the object is no call.

    The last bracket of the arguments waits for the object's end. If members follow the arguments, and a bracket too
    many follows the object, the model took these members for arguments: the call is not whole, and they are content.

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
        self._bracket = ""  # of the arguments, which waits
        self._after = ""  # the arguments
        self._next = ""  # what follows the object, if members follow the arguments

    @property
    def is_complete(self) -> bool:
        """Whether the object's end has been read."""
        return self._object.is_complete

    @property
    def is_over(self) -> bool:
        """Whether the object is complete, or cannot be one."""
        is_too_long = not self.is_call and self._num_undecided >= MAX_UNDECIDED_CHARS
        is_too_long = is_too_long or len(self._after) >= MAX_AFTER_CHARS
        is_complete = self._object.is_complete and not self._waits_for_next
        return is_complete or self._object.is_broken or is_too_long

    @property
    def is_whole(self) -> bool:
        """Whether it is a call with all of its arguments."""
        has_arguments = self._object.has_arguments or self._object.is_complete
        return self.is_call and has_arguments and self._next != "}"

    @property
    def _waits_for_next(self) -> bool:
        return self._object.is_complete and '"' in self._after and not self._next

    def read(self, text: str, start: int) -> int:
        """Read on in `text` from `start`. Return where the object or the text ends."""
        end = self._read_undecided(text, start) if not self.is_call else start
        if self.is_call and not self.is_whole:
            end = self._object.read(text, end)
            self._give()
        while self.is_whole and end < len(text) and not self.is_over:
            end = self._read_next(text, end) if self._object.is_complete else self._read_after(text, end)
        return end

    def is_argument(self, text: str) -> bool:
        """Return whether a piece belongs to the arguments as it is and changes nothing here: it need not be read."""
        return self.is_call and not self._bracket and self._object.is_argument(text)

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
        if self._next == "}":
            rest = self._bracket
        else:
            self._output.add_arguments(self._bracket + arguments)
        if self.is_over or self.is_whole:
            self._output.end_call(is_whole=self.is_whole)
        if not (self.is_complete and self.is_whole):
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

    def _read_after(self, text: str, start: int) -> int:
        piece = text[start : start + MAX_AFTER_CHARS - len(self._after)]
        num_read = self._object.read(piece, 0)
        self._after += piece[:num_read]
        return start + num_read

    def _read_next(self, text: str, start: int) -> int:
        """Pass over a space, or note what is none."""
        if text[start] in SPACES:
            self._after += text[start]
            return start + 1
        self._next = text[start]
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
        arguments = self._bracket + self._object.take_arguments()
        if self._object.is_complete and not self._object.has_arguments:
            arguments = "{}"
        self._bracket = "}" if arguments.endswith("}") else ""
        self._output.add_arguments(arguments.removesuffix(self._bracket))
