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
