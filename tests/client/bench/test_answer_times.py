"""Which chunks of a benchmark's answers count as tokens, and which answers count."""

import json

import pytest

from scheduler_svc.client.bench.answer_times import AnswerTimes
from scheduler_svc.client.bench.workload import BenchRequest
from scheduler_svc.client.errors import RequestFailed
from scheduler_svc.client.progress import Tally


def chat(delta, finish_reason=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def text(text, finish_reason=None):
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
}


def times_of(*events):
    times = AnswerTimes(Tally(1, "requests"))
    for event in events:
        times(json.dumps(event).encode())
    times(b"[DONE]")
    return times


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        (chat({"role": "assistant", "content": ""}), False),
        (chat({"role": "assistant", "content": "a"}), True),
        (chat({"reasoning_content": "a"}), True),
        (chat({"reasoning": "a"}), True),
        (chat({"tool_calls": [{"index": 0}]}), True),
        (chat({"content": ""}), True),  # half a character
        (chat({}, "stop"), False),
        (chat({"content": "a"}, "stop"), True),
        (text("a"), True),
        (text(""), True),
        (text("", "stop"), False),
        (text("a", "stop"), True),
        (USAGE, False),
    ],
)
def test_chunks_with_tokens_count(event, counts):
    assert len(times_of(event).chunk_times_s) == counts


@pytest.mark.parametrize(
    ("asked", "is_exact", "is_right"), [(3, True, True), (4, True, False), (4, False, True), (2, False, False)]
)
def test_an_answer_of_another_length_is_wrong(asked, is_exact, is_right):
    times = times_of(text("a"), USAGE)
    request = BenchRequest("x", asked)
    if is_right:
        times.check(request, is_exact=is_exact)
        assert times.usage.cached_tokens == 4
    else:
        with pytest.raises(RequestFailed):
            times.check(request, is_exact=is_exact)


@pytest.mark.parametrize("events", [[USAGE], [text("a")]], ids=["no text", "no usage"])
def test_an_answer_that_lacks_something_is_wrong(events):
    with pytest.raises(RequestFailed, match="without"):
        times_of(*events).check(BenchRequest("x", 3), is_exact=True)


def test_an_error_in_the_stream_is_raised():
    with pytest.raises(RequestFailed, match="no more"):
        times_of(text("a"), {"error": {"message": "no more"}})
