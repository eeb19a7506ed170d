"""A stop string is found wherever the text is cut, and nothing of it is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.frontend.text.stop_strings import StopSearch, StopStrings

LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    search = StopSearch(StopStrings(stops))
    shown = ""
    for piece in pieces:
        text, found = search.feed(piece)
        shown += text
        if found:
            return shown, True
    return shown + search.flush(), False


def by_definition(stops: list[str], text: str) -> tuple[str, bool]:
    """The shortest beginning of the text that ends in a stop string, without that string."""
    for end in range(1, len(text) + 1):
        if ended := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, ended))], True
    return text, False


@given(STOPS, st.lists(LETTERS, max_size=10))
def test_cuts_make_no_difference(stops: list[str], pieces: list[str]):
    text = "".join(pieces)
    assert run(stops, pieces) == run(stops, list(text)) == by_definition(stops, text)


@given(STOPS, st.lists(st.tuples(LETTERS, st.booleans()), max_size=10), st.booleans())
def test_pieces_that_may_not_stop(stops: list[str], pieces: list[tuple[str, bool]], are_shown: bool):
    """The first stop string that ends in a piece that may, as if each character were looked at."""
    search, shown, found = StopSearch(StopStrings(stops, are_shown=are_shown)), "", False
    for piece, may_stop in pieces:
        if not found:
            more, found = search.feed(piece, may_stop=may_stop)
            shown += more
    text, expected = "", None
    for letter, may_stop in [(letter, may_stop) for piece, may_stop in pieces for letter in piece]:
        text += letter
        ended = [stop for stop in stops if text.endswith(stop)]
        if may_stop and ended and expected is None:
            expected = text if are_shown else text[: len(text) - max(map(len, ended))]
    assert found == (expected is not None)
    assert shown + ("" if found else search.flush()) == (text if expected is None else expected)


def test_what_is_shown_anyway_is_not_held_back():
    search = StopSearch(StopStrings(["abc"], are_shown=True))
    assert [search.feed(piece) for piece in ("xa", "b", "cd")] == [("xa", False), ("b", False), ("c", True)]


@given(STOPS, LETTERS)
def test_no_more_is_held_back_than_could_be_a_stop_string(stops: list[str], text: str):
    search = StopSearch(StopStrings(stops))
    shown, found = search.feed(text)
    if not found:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
        for start in range(len(shown)):
            assert not any(stop.startswith(text[start:]) for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [(["Hello\n", "\nWorld"], "Hello"), (["Hello\n", "World\n\n"], "Hello\nWorld"), (["\n\n"], ""), (["x\n"], "x\n")],
)
def test_blank_line(pieces: list[str], shown: str):
    assert run(["\n\n"], pieces)[0] == shown
