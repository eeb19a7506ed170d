"""The event parser, fed in every possible cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.client.http.sse import Event, EventParser

STREAM = (
    'data: {"text":"a\u2028b\x85c ü"}\r\n\r\n: a comment\nid: 1-2\ndata:{"n":1}\n\n'
    ": keep-alive\n\nevent: x\ndata: two\ndata: lines\nid: 3\n\n\n: keep-alive\n\ndata: [DONE]\n\n"
).encode()
EVENTS = [
    Event('{"text":"a\u2028b\x85c ü"}'.encode(), b""),
    Event(b'{"n":1}', b"1-2"),
    Event(b"two\nlines", b"3"),
    Event(b"[DONE]", b"3"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_gives_the_same_events(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    parser = EventParser()
    pieces = [STREAM[start:end] for start, end in pairwise(edges)]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


@given(st.integers(0, len(STREAM)))
def test_an_event_that_breaks_off_is_never_given_out(cut):
    """A client that resumes after the id of the last event misses no event and gets none twice."""
    events = EventParser().feed(STREAM[:cut])
    assert events == EVENTS[: len(events)]
    num_complete = sum(STREAM[:cut].count(end) for end in (b"\r\n\r\n", b"}\n\n", b"id: 3\n\n", b"[DONE]\n\n"))
    assert len(events) == num_complete
