"""Whose requests are open, which wait for their client, and how long those that have ended are kept."""

from array import array

import pytest

from common import messages as m
from common.wire import int32_array
from scheduler_svc.core.requests import request_table as r
from scheduler_svc.core.requests.journal_records import Ending
from scheduler_svc.core.requests.request_table import RETAIN_S, Request, RequestTable
from scheduler_svc.core.sequence import new_sequences
from scheduler_svc.core.step_output import SequenceEnd


@pytest.fixture
def requests():
    return RequestTable()


def add(requests, request_id, *, n=1, client="", peer=b"p", now=0.0, num_prompt=3, endings=()):
    prompt = array("i", range(num_prompt)).tobytes()
    submit = m.Submit(request_id=request_id, prompt=prompt, params=m.SamplingParams(max_tokens=9), n=n, client=client)
    sequences = new_sequences(submit, int32_array("prompt", prompt), 0, None)
    request = Request(submit, sequences, now, peer, True, endings=[*endings])
    requests.add(request, now)
    return request


def end(requests, request, index=0, now=0.0):
    requests.ended(SequenceEnd(request.sequences[index], "stop"), now)


def test_a_request_is_open_until_its_last_sequence_has_ended(requests):
    request = add(requests, "a", n=2)
    end(requests, request, 1)
    assert requests.of_peer(b"p") == [request]
    assert request.endings == [None, Ending("stop")]
    end(requests, request, 0, now=5.0)
    assert requests.of_peer(b"p") == []
    assert (request.ended_at, request.peer) == (5.0, None)
    assert requests.find("a") is request, "its client may still come back for the rest"
    assert requests.find("b") is None


def test_open_requests_are_counted_by_client(requests):
    first = add(requests, "a", client="alice", n=3)
    add(requests, "b", client="alice")
    add(requests, "c")
    assert (requests.num_open("alice"), requests.num_open(""), requests.num_open("bob")) == (2, 1, 0)
    for i in range(3):
        assert requests.num_open("alice") == 2
        end(requests, first, i)
    assert requests.clients == {"alice": 1, "": 1}
    end(requests, requests.find("c"))
    assert requests.clients == {"alice": 1}, "a client without any is not named"


def test_a_frontend_is_told_its_own_open_requests(requests):
    mine = [add(requests, "a", peer=b"p"), add(requests, "b", peer=b"p")]
    add(requests, "c", peer=b"q")
    add(requests, "d", peer=None)
    assert requests.of_peer(b"p") == mine
    assert {request.id for request in requests.all()} == {"a", "b", "c", "d"}


def test_a_detached_request_is_late_when_its_time_is_up_unless_it_has_ended(requests):
    late, ended = add(requests, "late"), add(requests, "ended")
    add(requests, "attached")
    late.cancel_at = ended.cancel_at = 30.0
    assert requests.late(29.9) == []
    end(requests, ended)
    assert requests.late(30.0) == [late]


def test_a_restored_request_that_had_ended_is_retained_and_not_open(requests):
    going = add(requests, "going", n=2, client="alice", endings=[None, Ending("stop")])
    ended = add(requests, "ended", n=2, client="alice", endings=[Ending("stop"), Ending("length")], now=4.0)
    assert requests.num_open("alice") == 1
    assert (going.ended_at, ended.ended_at) == (None, 4.0)
    assert requests.let_go(4.0 + RETAIN_S) == ["ended"]


def test_ended_requests_are_let_go_after_a_while_in_the_order_of_their_ends(requests):
    first, second, third = (add(requests, name) for name in "abc")
    end(requests, second, now=1.0)
    end(requests, first, now=2.0)
    assert requests.let_go(RETAIN_S) == []
    assert requests.let_go(1.0 + RETAIN_S) == ["b"]
    assert requests.let_go(2.0 + RETAIN_S) == ["a"]
    assert requests.all() == [third]
    assert requests.let_go(1e9) == [], "one that is open is never let go"


def test_no_more_than_so_many_are_retained(requests, monkeypatch):
    monkeypatch.setattr(r, "MAX_RETAINED", 2)
    for name in "abcd":
        end(requests, add(requests, name))
    assert requests.let_go(0.0) == ["a", "b"]
    assert requests.let_go(0.0) == []


def test_no_more_than_so_many_tokens_are_retained(requests, monkeypatch):
    monkeypatch.setattr(r, "MAX_RETAINED_TOKENS", 1000)
    for name in "abc":
        end(requests, add(requests, name, num_prompt=200))  # kept twice: in the Submit and in the sequence
    assert requests.let_go(0.0) == ["a"]
    end(requests, add(requests, "huge", num_prompt=2000))
    assert requests.let_go(0.0) == ["b", "c", "huge"]
    end(requests, add(requests, "d", num_prompt=200))
    assert requests.let_go(0.0) == [], "what was let go does not count any more"


def test_the_journal_is_told_how_far_each_sequence_is(requests):
    request = add(requests, "a", n=2, now=7.0)
    first, second = request.sequences
    first.model, first.num_cached_prompt = "m", 2
    end(requests, request, 1)
    outputs = {first: b"1234", second: b"56789012"}
    record = request.record(outputs.__getitem__, wall_offset_s=1000.0)
    assert (record.arrival, record.accepted_at, record.submit) == (0, 1007.0, request.submit)
    assert [(told.token_ids, told.model, told.num_cached or 0, told.ending) for told in record.progress] == [
        (b"1234", "m", 2, None),
        (b"56789012", "", 0, Ending("stop")),
    ]
