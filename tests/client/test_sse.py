"""The event parser, fed in every possible cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.client.sse import EventParser

STREAM = 'data: {"text":"a\u2028b\x85c ü"}\r\n\r\n: a comment\ndata:{"n":1}\n\nevent: x\ndata: [DONE]\n\n'.encode()
EVENTS = ['{"text":"a\u2028b\x85c ü"}'.encode(), b'{"n":1}', b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_gives_the_same_events(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    parser = EventParser()
    pieces = [STREAM[start:end] for start, end in pairwise(edges)]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS
