"""Marks of the core become spans."""

from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from scheduler_svc.frontend.tracing.life_spans import Frame, LifeSpans, spans_of
from tests.support.effort import examples

AT_NS = 1_800_000_000 * 10**9
WHATS = m.MarkKind.__args__


def mark(what: m.MarkKind, at: float, executor: str = "", **more) -> m.Mark:
    return m.Mark(at=at, what=what, executor=executor, epoch=3 if executor else 0, **more)


def frame(start_s: float = 0.0, end_s: float = 10.0) -> Frame:
    """The core's time is seconds since AT_NS - 10 s."""
    origin_ns = AT_NS - 10 * 10**9
    return Frame(10.0, AT_NS, origin_ns + round(1e9 * start_s), origin_ns + round(1e9 * end_s))


def read(*marks: m.Mark, index: int = 0, output: int = 0, within: Frame | None = None) -> LifeSpans:
    life = m.SequenceLife(index=index, marks=list(marks), num_left_out=0, output=output)
    return spans_of([(0, life)], within or frame())


def seconds(at_ns: int) -> float:
    return 10 + (at_ns - AT_NS) / 1e9


def phases(spans: LifeSpans) -> list[tuple[str, float, float]]:
    return [(span.name, seconds(span.start_ns), seconds(span.end_ns)) for span in spans.spans]


def test_a_sequence_that_nothing_befalls():
    spans = read(
        mark("queued", 1.0, tokens=5),
        mark("admitted", 2.0, "a", tokens=5, cached=2),
        mark("prefill", 2.0, "a", tokens=2),
        mark("prefill", 2.5, "a", tokens=1),
        mark("first_token", 3.0, "a"),
        mark("ended", 6.0, "a", tokens=7, cause="stop"),
        index=1,
        output=7,
    )
    assert phases(spans) == [("baton.queue", 1, 2), ("baton.prefill", 2, 3), ("baton.decode", 3, 6)]
    queue, prefill, decode = spans.spans
    who = {"baton.prompt": 0, "baton.sequence": 1}
    where = {"baton.executor.name": "a", "baton.executor.epoch": 3}
    assert queue.attributes == who | {"baton.tokens": 5, "baton.cause": "queued"}
    assert prefill.attributes == who | where | {"baton.tokens": 5, "baton.cached_tokens": 2}
    assert decode.attributes == who | where | {"baton.tokens": 7, "baton.cause": "stop"}
    chunks = [(event.name, seconds(event.at_ns), event.attributes) for event in prefill.events]
    assert chunks == [
        ("baton.prefill.chunk", 2.0, {"baton.tokens": 2}),
        ("baton.prefill.chunk", 2.5, {"baton.tokens": 1}),
    ]
    assert [event.name for event in spans.events] == ["baton.first_token"]


def test_a_sequence_whose_executor_is_lost_goes_on_elsewhere():
    spans = read(
        mark("queued", 0.0),
        mark("admitted", 1.0, "a", tokens=5),
        mark("first_token", 2.0),
        mark("lost", 3.0, "a", cause="timeout"),
        mark("admitted", 4.0, "b", tokens=9, cached=4),
        mark("prefill", 4.0, "b", tokens=5),
        mark("resumed", 5.0),
        mark("preempted", 6.0, "b"),
        mark("admitted", 7.0, "b", tokens=10),
        mark("resumed", 8.0, "b"),
        mark("ended", 9.0, cause="length"),
    )
    assert phases(spans) == [
        ("baton.queue", 0, 1),
        ("baton.prefill", 1, 2),
        ("baton.decode", 2, 3),
        ("baton.queue", 3, 4),
        ("baton.prefill", 4, 5),
        ("baton.decode", 5, 6),
        ("baton.queue", 6, 7),
        ("baton.prefill", 7, 8),
        ("baton.decode", 8, 9),
    ]
    assert [span.attributes.get("baton.executor.name") for span in spans.spans] == [
        None,
        *"aa",
        None,
        *"bb",
        None,
        *"bb",
    ]
    assert [span.attributes["baton.cause"] for span in spans.spans[::3]] == ["queued", "lost", "preempted"]
    names = ["baton.first_token", "baton.lost", "baton.resumed", "baton.preempted", "baton.resumed"]
    assert [event.name for event in spans.events] == names
    assert spans.events[1].attributes["baton.cause"] == "timeout"


def test_a_pooled_sequence_has_no_decode():
    spans = read(mark("queued", 1.0), mark("admitted", 2.0, "a"), mark("prefill", 2.0, "a"), mark("ended", 3.0))
    assert phases(spans) == [("baton.queue", 1, 2), ("baton.prefill", 2, 3)]


def test_what_has_not_ended_ends_with_the_request():
    assert phases(read(mark("queued", 1.0))) == [("baton.queue", 1, 10)]
    assert phases(read(mark("first_token", 1.0), within=frame(end_s=4.0))) == [("baton.decode", 1, 4)]


def test_a_request_that_reads_on_has_what_happened_in_its_time():
    marks = (
        mark("queued", 0.0),
        mark("admitted", 1.0, "a"),
        mark("first_token", 2.0),
        mark("preempted", 5.0),
        mark("admitted", 8.0, "a"),
        mark("ended", 9.0),
    )
    spans = read(*marks, within=frame(3.0, 7.0))
    assert phases(spans) == [("baton.decode", 3, 5), ("baton.queue", 5, 7)]
    assert [event.name for event in spans.events] == ["baton.preempted"]


def test_marks_in_the_middle_may_be_missing():
    spans = read(mark("queued", 1.0), mark("prefill", 4.0, "a", tokens=3), mark("ended", 5.0))
    assert phases(spans) == [("baton.queue", 1, 4), ("baton.prefill", 4, 5)]
    assert phases(read(mark("queued", 1.0), mark("resumed", 4.0, "a"))) == [
        ("baton.queue", 1, 4),
        ("baton.decode", 4, 10),
    ]
    assert read(mark("ended", 1.0)) == read() == LifeSpans()


def test_the_core_wrote_its_answer_between_question_and_answer():
    def at_ns(*ends: float) -> int:
        lives = tuple(
            m.SequenceLife(index=0, marks=[mark("ended", end)], num_left_out=0, output=0) for end in (*ends, 4.0)
        )
        return Frame.of(m.Life(query_id=0, at=5.0, sequences=lives), 2000, 3000, 0, 1000).at_ns

    assert at_ns() == 2500
    assert at_ns(4.9999988) == 2200  # which ended 1200 ns before, and not after the request
    assert at_ns(4.9999999) == at_ns(6.0) == at_ns(float("inf")) == 2000
    assert at_ns(float("-inf")) == at_ns(0.0) == 2500


TIMES = st.one_of(st.floats(), st.floats(-20, 20))
MARKS = st.builds(
    m.Mark,
    at=TIMES,
    what=st.sampled_from(WHATS),
    executor=st.sampled_from(["", "a", "b"]),
    epoch=st.integers(0, 9),
    tokens=st.integers(0, 2**31),
    cached=st.integers(0, 2**31),
    cause=st.sampled_from(["", "stop", "timeout"]),
)


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(MARKS, max_size=12)), max_size=3),
    TIMES,
    st.floats(-20, 20),
    st.floats(0, 20),
)
def test_of_any_marks_all_spans_lie_in_the_request_and_follow_each_other(lives, at, start_s, length_s):
    within = frame(start_s, start_s + length_s)
    within = Frame(at, within.at_ns, within.start_ns, within.end_ns)
    sequences = [
        (prompt, m.SequenceLife(index=index, marks=marks, num_left_out=0, output=1))
        for index, (prompt, marks) in enumerate(lives)
    ]
    spans = spans_of(sequences, within)
    for index in range(len(lives)):
        own = [span for span in spans.spans if span.attributes["baton.sequence"] == index]
        bounds = [at_ns for span in own for at_ns in (span.start_ns, span.end_ns)]
        assert bounds == sorted(bounds)
    for span in spans.spans:
        assert within.start_ns <= span.start_ns <= span.end_ns <= within.end_ns
        events = [event.at_ns for event in span.events]
        assert events == sorted(events)
        assert all(span.start_ns <= at_ns <= span.end_ns for at_ns in events)
    moments = [event.at_ns for event in spans.events]
    assert moments == sorted(moments)
    assert all(within.start_ns <= at_ns <= within.end_ns for at_ns in moments)


def test_a_token_on_its_way_to_a_sequence_that_waits_again_begins_no_decode():
    spans = read(
        mark("queued", 1.0),
        mark("admitted", 2.0, "a"),
        mark("preempted", 3.0, "a"),
        mark("first_token", 3.5, "a"),
        mark("admitted", 8.0, "a"),
        mark("resumed", 9.0, "a"),
        mark("ended", 10.0),
    )
    queue, prefill, decode = "baton.queue", "baton.prefill", "baton.decode"
    assert phases(spans) == [(queue, 1, 2), (prefill, 2, 3), (queue, 3, 8), (prefill, 8, 9), (decode, 9, 10)]
