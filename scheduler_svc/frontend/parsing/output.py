"""What a format of calls gives: content and calls, collected until somebody takes them."""

from scheduler_svc.frontend.parsing.held_back import SPACES, Trailing
from scheduler_svc.frontend.parsing.parts import CallPart, MessagePart


class Output:
    """Collect content and calls.

    Whitespace between calls, and at the ends of content that stands beside calls, is layout and is left out; between
    pieces of content it stays.

    Args:
        is_one_call: later calls are left out.

    Attributes:
        num_calls: that have begun, without those that are left out.
        has_left_out: whether a call has begun that is left out.
    """

    def __init__(self, *, is_one_call: bool) -> None:
        self.num_calls = 0
        self._is_one_call = is_one_call
        self.has_left_out = False
        self._is_in_call = False
        self._has_broken_call = False
        self._trailing = Trailing()
        self._has_content = False
        self._content: list[str] = []
        self._calls: list[CallPart] = []
        self._name = ""  # of a call that has begun since the last `take`
        self._arguments: list[str] = []

    @property
    def has_cut_call(self) -> bool:
        """Whether the arguments of a call are not whole, if no more text comes: they are no JSON."""
        return self._is_in_call or self._has_broken_call

    def add_content(self, text: str) -> None:
        """Go on with the content."""
        self._show(self._trailing.feed(text))

    def is_shown(self, text: str) -> bool:
        """Return whether a piece of content is shown as it is and changes nothing here: it need not be added."""
        return self._has_content and self._trailing.is_shown(text)

    def begin_call(self, name: str) -> None:
        """Begin another call."""
        self._end_part()
        self.has_left_out = self._is_one_call and self.num_calls == 1
        if not self.has_left_out:
            self.num_calls += 1
            self._is_in_call = True
            self._name = name

    def add_arguments(self, text: str) -> None:
        """Go on with the arguments of the last call."""
        if text and not self.has_left_out:
            self._arguments.append(text)

    def end_call(self, *, is_whole: bool = True) -> None:
        """End the last call.

        Args:
            is_whole: whether its arguments are.
        """
        if not self.has_left_out:
            self._is_in_call = False
            self._has_broken_call = self._has_broken_call or not is_whole

    def take(self) -> MessagePart:
        """Return what came since the last time."""
        self._end_part()
        part = MessagePart("", "".join(self._content), tuple(self._calls))
        self._content, self._calls = [], []
        return part

    def flush(self) -> None:
        """End the text."""
        if not self.num_calls:
            self._show(self._trailing.take())

    def _show(self, text: str) -> None:
        if not self._has_content and self.num_calls:
            text = text.lstrip(SPACES)
        self._has_content = self._has_content or bool(text)
        self._content.append(text)

    def _end_part(self) -> None:
        if self._name or self._arguments:
            self._calls.append(CallPart(self.num_calls - 1, self._name, "".join(self._arguments)))
            self._name, self._arguments = "", []
