"""Ids of events: what they say, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.frontend.answers.event_ids import Delivered, EventIds, Position, check_event_id
from scheduler_svc.frontend.errors import ApiError

COUNTS = st.integers(0, 2**31 - 1)
STEPS = st.tuples(st.integers(0, 3), st.sampled_from(["open", "text", "end"]), COUNTS)


def test_what_ids_say():
    start = Position.start(3)
    ids = EventIds(start.choices)
    assert ids.opened(1) == "-.0.-"
    assert ids.advanced(1, 5, has_ended=False) == "-.5.-"
    assert ids.advanced(0, 0, has_ended=True) == "0!.5.-"
    assert ids.advanced(2, 17, has_ended=True) == "0!.5.17!"
    ended, open_ = Delivered(has_opened=True, has_ended=True), Delivered(has_opened=True, num_tokens=5)
    assert Position.after("0!.5.-", 3) == Position((ended, open_, Delivered()))
    assert Position.after("end", 3) == Position(start.choices, is_end=True)


def test_a_stream_without_ids():
    ids = EventIds(Position.start(2).choices, are_sent=False)
    assert {ids.opened(0), ids.advanced(0, 5, has_ended=False), ids.advanced(1, 5, has_ended=True), ids.end()} == {""}
    assert EventIds(Position.start(2).choices).end() == "end"


@given(st.lists(STEPS, max_size=12))
def test_a_stream_goes_on_counting_where_it_was(steps: list[tuple[int, str, int]]):
    """The ids after any event are those that a stream gives which begins after that event."""
    ids = EventIds(Position.start(4).choices)
    for choice, kind, count in steps:
        event_id = ids.opened(choice) if kind == "open" else ids.advanced(choice, count, has_ended=kind == "end")
        again = EventIds(Position.after(event_id, 4).choices)
        # Setting an entry to what it is shows the whole id.
        entry = Position.after(event_id, 4).choices[choice]
        if kind == "open":
            assert again.opened(choice) == event_id
        else:
            assert again.advanced(choice, entry.num_tokens, has_ended=entry.has_ended) == event_id


@pytest.mark.parametrize(
    "bad",
    [
        *(".", "x", "-1", "1.", ".1", "1..2", "01", "1!!", "!", "-!", "end.1", "END", "0x1", "\uff11"),
        *("", "1 ", " 1", "1\n", "9" * 11),
    ],
)
def test_what_is_no_id(bad: str):
    with pytest.raises(ApiError) as caught:
        check_event_id(bad)
    assert (caught.value.status, caught.value.param) == (400, "Last-Event-ID")


def test_an_id_of_another_request():
    with pytest.raises(ApiError, match="it has 2 choices, the request has 3"):
        Position.after("1.2", 3)
