"""Finds stop strings in a text that arrives in pieces, and never shows any part of one."""

from collections.abc import Sequence


class StopStrings:
    """What ends the texts of an answer. All its sequences share this: of long stop strings it takes a megabyte.

    Attributes:
        strings: one or more.
        starts: all proper prefixes of length k at k - 1, in the form that str.endswith takes.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        assert strings, "without stop strings there is nothing to search"
        assert all(strings), "an empty stop string would end every text"
        self.strings = tuple(strings)
        longest = max(map(len, strings))
        self.starts = [tuple({s[:k] for s in strings if len(s) > k}) for k in range(1, longest)]


class StopSearch:
    """Searches one sequence's text for the first stop string that is completed.

    Text that could be the start of a stop string is held back until it is clear that it is not. Of several stop
    strings the one that ends first counts (of those the one that starts first), which makes the outcome
    independent of how the text is cut into pieces.
    """

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string was completed (the text ends before it)."""
        if not piece:
            return "", False
        text = self._held + piece
        hits = [(start + len(stop), start) for stop in self._stops.strings if (start := text.find(stop)) >= 0]
        if hits:
            self._held = ""
            return text[: min(hits)[1]], True
        self._held = self._possible_start(text)
        return text[: len(text) - len(self._held)], False

    def flush(self) -> str:
        """The text that was held back: the sequence ended, and it was no stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> str:
        """The longest end of `text` that is the start of a stop string."""
        starts = self._stops.starts
        for length in range(min(len(starts), len(text)), 0, -1):
            if text.endswith(starts[length - 1]):
                return text[-length:]
        return ""
