"""Finds stop strings in a text that arrives in pieces, and shows no part of one unless the client wants to see them."""

from collections.abc import Sequence


class StopStrings:
    """What ends the texts of an answer. All its sequences share this: of long stop strings it takes a megabyte.

    Args:
        strings: one or more.
        are_shown: whether the text ends with the stop string, not before it.

    Attributes:
        strings, are_shown: as given.
        starts: all proper prefixes of length k at k - 1, in the form that str.endswith takes.
    """

    def __init__(self, strings: Sequence[str], *, are_shown: bool = False) -> None:
        assert strings, "without stop strings there is nothing to search"
        assert all(strings), "an empty stop string would end every text"
        self.strings = tuple(strings)
        self.are_shown = are_shown
        longest = max(map(len, strings))
        self.starts = [tuple({s[:k] for s in strings if len(s) > k}) for k in range(1, longest)]


class StopSearch:
    """Searches one sequence's text for the first stop string that is completed.

    Text that could be the start of a stop string is held back until it is clear that it is not, unless stop strings are
    shown. Of several stop strings the one that ends first counts (of those the one that starts first), which makes the
    outcome independent of how the text is cut into pieces.

    Attributes:
        found: the stop string that was completed; empty before.
    """

    def __init__(self, stops: StopStrings) -> None:
        self.found = ""
        self._stops = stops
        self._end = ""  # of the text so far, as much as could be the start of a stop string

    def feed(self, piece: str, *, may_stop: bool = True) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string was completed.

        Args:
            piece: the text goes on with it.
            may_stop: False lets the text go on after stop strings that end in this piece.
        """
        if not piece:
            return "", False
        text, num_seen = self._end + piece, len(self._end)
        hits = [
            (start + len(stop), start)
            for stop in self._stops.strings
            # One that ended in what was seen did not stop the text then.
            if may_stop and (start := text.find(stop, max(0, num_seen - len(stop) + 1))) >= 0
        ]
        if hits:
            end, start = min(hits)
            self.found = text[start:end]
        self._end = "" if hits else self._possible_start(text)
        if self._stops.are_shown:
            return text[num_seen : min(hits)[0] if hits else None], bool(hits)
        return text[: min(hits)[1] if hits else len(text) - len(self._end)], bool(hits)

    def flush(self) -> str:
        """The text that was held back: the sequence ended, and it was no stop string."""
        end, self._end = self._end, ""
        return "" if self._stops.are_shown else end

    def _possible_start(self, text: str) -> str:
        """The longest end of `text` that is the start of a stop string."""
        starts = self._stops.starts
        for length in range(min(len(starts), len(text)), 0, -1):
            if text.endswith(starts[length - 1]):
                return text[-length:]
        return ""
