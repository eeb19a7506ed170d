"""What is written of requests is what is read back, however it was cut into batches."""

from array import array
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from common.errors import BatonError
from common.wire import int32_array
from scheduler_svc.core.requests.journal_records import (
    Ending,
    EndRecord,
    Progress,
    RequestRecord,
    StepRecord,
    encode,
    replay,
)
from scheduler_svc.core.sequence import new_sequences
from scheduler_svc.core.step_output import SequenceEnd, StepOutput
from tests.support.effort import examples

PROMPT = array("i", [5, 6, 7]).tobytes()


def submit(request_id, n=1, **changes):
    return m.Submit(request_id=request_id, prompt=PROMPT, params=m.SamplingParams(max_tokens=100), n=n, **changes)


def request_record(request_id, arrival=0, n=1):
    return RequestRecord(arrival, 1000.5, submit(request_id, n), (Progress(),) * n)


def step_record(model, **tokens):
    """A step that gave `s3=7`: token 7 to the sequence of arrival 3."""
    arrivals = array("q", [int(name[1:]) for name in tokens])
    return StepRecord(model, arrivals.tobytes(), array("i", tokens.values()).tobytes())


def tokens_of(request):
    return [array("i", told.token_ids).tolist() for told in request.progress]


def test_a_request_comes_back_as_it_was_submitted():
    params = m.SamplingParams(max_tokens=9, temperature=0.5, seed=2**62, stop_token_ids=(1, 2))
    whole = m.Submit(
        request_id="key/cmpl-1-0",
        prompt=PROMPT,
        params=params,
        n=2,
        stream=False,
        cache_salt="salt",
        priority=-4,
        timeout_s=7.5,
        client="key",
        client_limit=3,
        context=b"\x00\xff",
    )
    record = RequestRecord(2**40, 1e9 + 0.25, whole, (Progress(), Progress(b"", "", 2, Ending("error", "why", "code"))))
    assert replay([encode([record])]) == [record]


def test_records_are_made_of_what_the_scheduler_gives():
    first, second = new_sequences(submit("a", n=2), int32_array("prompt", PROMPT), 2**33, None)
    second.num_cached_prompt = 3
    end = SequenceEnd(second, "error", "too bad", "internal_error")
    output = StepOutput([first, second], [11, 12], [first], [end], "model")
    payload = encode([request_record("a", 2**33, n=2), StepRecord.of(output), *map(EndRecord.of, output.ends)])
    (request,) = replay([payload])
    assert tokens_of(request) == [[11], [12]]
    assert request.progress[0] == Progress(array("i", [11]).tobytes(), "model", None, None)
    assert request.progress[1].num_cached == 3
    assert request.progress[1].ending == Ending("error", "too bad", "internal_error")


def test_requests_come_in_the_order_of_their_arrival_not_of_their_records():
    payload = encode([request_record("late", 5), request_record("early", 2), request_record("middle", 3, n=2)])
    assert [request.submit.request_id for request in replay([payload])] == ["early", "middle", "late"]


def test_what_is_said_of_a_request_that_was_let_go_is_passed_over():
    payload = encode(
        [
            step_record("x", s0=1, s9=2),
            request_record("a", 9),
            EndRecord(0, 0, Ending("stop")),
            step_record("x", s9=3, s0=4),
        ]
    )
    (request,) = replay([payload])
    assert tokens_of(request) == [[3]]
    assert request.progress[0].ending is None


def test_an_empty_journal_has_no_requests():
    assert replay([]) == replay([encode([]), encode([])]) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        msgspec.msgpack.encode([["unknown", 1]]),
        encode([request_record("a")])[:-1],
        msgspec.msgpack.encode(7),
    ],
)
def test_what_is_no_batch_is_an_error_that_says_so(payload):
    with pytest.raises(BatonError, match="the journal has a record that cannot be read"):
        replay([encode([request_record("b")]), payload])


@dataclass
class Told:
    """What a history said of one sequence."""

    tokens: list = field(default_factory=list)
    model: str = ""
    num_cached: int | None = None
    ending: Ending | None = None

    def progress(self):
        return Progress(array("i", self.tokens).tobytes(), self.model, self.num_cached, self.ending)


@dataclass
class History:
    """A random history: records in batches, the truth, and in which batch each request was introduced last."""

    batches: list
    submits: dict
    truth: dict
    introduced: dict


@st.composite
def histories(draw):
    told = History([[]], {}, {}, {})
    for _ in range(draw(st.integers(1, 40))):
        going = [arrival for arrival, sequence in told.truth.items() if sequence.ending is None]
        kind = draw(st.sampled_from(["accept", "accept again", "batch", "step", "step", "step", "end"]))
        if kind == "accept":
            arrival, n = len(told.truth), draw(st.integers(1, 3))
            told.submits[arrival] = submit(f"r{arrival}", n)
            told.truth |= {arrival + i: Told() for i in range(n)}
        if kind == "accept again" and told.submits:
            arrival = draw(st.sampled_from(sorted(told.submits)))
        if kind.startswith("accept") and told.submits:
            n = told.submits[arrival].n
            progress = tuple(told.truth[arrival + i].progress() for i in range(n))
            told.batches[-1].append(RequestRecord(arrival, float(arrival), told.submits[arrival], progress))
            told.introduced[arrival] = len(told.batches) - 1
        if kind == "batch":
            told.batches.append([])
        if kind == "step" and going:
            chosen = draw(st.lists(st.sampled_from(going), unique=True, min_size=1))
            model, token = draw(st.sampled_from(["one", "two"])), draw(st.integers(0, 2**31 - 1))
            told.batches[-1].append(step_record(model, **{f"s{arrival}": token for arrival in chosen}))
            for arrival in chosen:
                told.truth[arrival].tokens.append(token)
                told.truth[arrival].model = model
        if kind == "end" and going:
            arrival, num_cached = draw(st.sampled_from(going)), draw(st.none() | st.integers(0, 3))
            ending = Ending(draw(st.sampled_from(["stop", "length", "cancelled", "error"])), "e", "c")
            told.batches[-1].append(EndRecord(arrival, num_cached, ending))
            told.truth[arrival].num_cached, told.truth[arrival].ending = num_cached, ending
    return told


@settings(max_examples=examples(150), deadline=None)
@given(histories(), st.data())
def test_any_tail_of_the_journal_tells_all_of_the_requests_introduced_in_it(told, data):
    """So the batches before the oldest RequestRecord that is needed can be let go."""
    keep_from = data.draw(st.integers(0, len(told.batches)))
    requests = {request.arrival: request for request in replay([encode(b) for b in told.batches[keep_from:]])}
    assert set(requests) == {arrival for arrival, batch in told.introduced.items() if batch >= keep_from}
    for arrival, request in requests.items():
        assert request.submit == told.submits[arrival]
        assert request.progress == tuple(told.truth[arrival + i].progress() for i in range(request.submit.n))
