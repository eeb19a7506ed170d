"""Whose requests are open, which wait for their client, and how long those that have ended are kept."""

import pytest

from common import messages as m
from common.errors import RequestRejected
from common.wire import int32_array
from scheduler_svc.core.requests.journal_records import Ending, Progress
from scheduler_svc.core.requests.request_table import Request, RequestTable
from scheduler_svc.core.requests.retention import RETAIN_S, Retention
from scheduler_svc.core.sequence import Generated, new_sequences
from scheduler_svc.core.step_output import SequenceEnd
from tests.support.chores import done
from tests.support.submits import submit


@pytest.fixture
def requests():
    return RequestTable()


def add(requests, request_id, *, peer=b"p", now=0.0, endings=(), is_unclaimed=False, num_prompt=3, **fields):
    new = submit(request_id, range(num_prompt), **({"is_resumable": True} | fields))
    sequences = new_sequences(new, int32_array("prompt", new.prompt), 1, 0, None)
    request = Request(new, sequences, now, peer, is_unclaimed, endings=[*endings])
    requests.add(request, now)
    return request


def end(requests, request, index=0, now=0.0):
    requests.ended(SequenceEnd(request.sequences[index], "stop"), now)


def test_a_request_is_open_until_its_last_sequence_has_ended(requests):
    request = add(requests, "a", n=2)
    end(requests, request, 1)
    assert [*requests.of_peer(b"p")] == [request]
    assert request.endings == [None, Ending("stop")]
    end(requests, request, 0, now=5.0)
    assert [*requests.of_peer(b"p")] == []
    assert (request.ended_at, request.peer) == (5.0, None)
    assert requests.find("a") is request, "its client may still come back for the rest"
    assert requests.find("b") is None


def test_open_sequences_are_counted_by_client(requests):
    first = add(requests, "a", client="1a", client_name="alice", n=3)
    second = add(requests, "b", client="1a", client_name="alice")
    add(requests, "c")
    namesake = add(requests, "d", client="2b", client_name="alice")
    assert [requests.num_counted(client) for client in ("1a", "", "2b", "alice")] == [4, 1, 1, 0]
    for i in range(3):
        assert requests.num_counted("1a") == 4 - i
        end(requests, first, i)
    assert requests.num_open_by_name == {"alice": 2, "": 1}
    assert (requests.open_of("1a"), requests.open_of("2b")) == ([second], [namesake])
    end(requests, requests.find("c"))
    end(requests, namesake)
    assert requests.num_open_by_name == {"alice": 1}, "a client without any is not named"


def test_a_client_may_have_so_many_sequences_open(requests):
    alice = {"client": "1a", "client_name": "alice", "client_limit": 4}
    first = add(requests, "a", n=3, **alice)
    requests.check_new(submit("b", n=1, **alice))
    requests.check_new(submit("b", n=9))
    message = "3 sequences of 'alice' are open and the request has 2, the limit is 4"
    with pytest.raises(RequestRejected, match=message) as no:
        requests.check_new(submit("b", n=2, **alice))
    assert no.value.code == "too_many_requests"
    end(requests, first)
    requests.check_new(submit("b", n=2, **alice))


def test_more_sequences_than_a_client_may_ever_have_are_no_reason_to_ask_again(requests):
    alice = {"client": "1a", "client_name": "alice", "client_limit": 4}
    for _ in range(2):
        with pytest.raises(RequestRejected, match="the request has 5 sequences, the limit of 'alice' is 4") as no:
            requests.check_new(submit("b", n=5, **alice))
        assert no.value.code == "invalid_value"
        add(requests, "a", n=4, **alice)


def test_a_frontend_is_told_its_own_open_requests(requests):
    mine = [add(requests, "a", peer=b"p"), add(requests, "b", peer=b"p")]
    add(requests, "c", peer=b"q")
    add(requests, "d", peer=None)
    assert [*requests.of_peer(b"p")] == mine
    assert {request.id for request in requests.all()} == {"a", "b", "c", "d"}


def test_a_frontend_reads_what_clients_have_come_back_to_it_for(requests):
    first, second, third = (add(requests, name, peer=b"p") for name in "abc")
    requests.attach(second, b"q")
    requests.detach(third, 9.0, 0.0)
    assert ([*requests.of_peer(b"p")], [*requests.of_peer(b"q")]) == ([first], [second])
    requests.attach(third, b"q")
    assert [*requests.of_peer(b"q")] == [second, third]
    end(requests, second)
    assert [*requests.of_peer(b"q")] == [third]


def test_a_detached_request_is_late_when_its_time_is_up_unless_it_has_ended_or_is_read(requests):
    late, ended, read = (add(requests, name) for name in ("late", "ended", "read"))
    add(requests, "attached")
    for request in (late, ended, read):
        requests.detach(request, 30.0, 0.0)
    assert [*requests.late(29.9)] == []
    end(requests, ended)
    requests.attach(read, b"q")
    assert [*requests.late(30.0)] == [late]
    requests.detach(late, 30.0, 1.0)
    assert ([*requests.late(30.9)], [*requests.late(31.0)]) == ([], [late])


def test_those_that_wait_longer_do_not_hide_those_that_wait_shorter(requests):
    long, short = add(requests, "long", peer=None), add(requests, "short")
    requests.detach(long, 120.0, 0.0)
    requests.detach(short, 30.0, 5.0)
    assert ([*requests.late(34.9)], [*requests.late(35.0)], [*requests.late(119.9)]) == ([], [short], [short])
    requests.paused(100.0)
    assert ([*requests.late(134.9)], [*requests.late(135.0)]) == ([], [short])


def test_what_the_journal_brought_back_counts_for_its_client_once_the_client_is_back(requests):
    first, second, third = (
        add(requests, name, client="alice", client_name="alice", peer=None, is_unclaimed=True) for name in "abc"
    )
    assert (requests.num_open_by_name, requests.num_counted("alice")) == ({"alice": 3}, 0)
    requests.check_new(submit("new", client="alice", client_limit=1))
    requests.attach(first, b"p")
    requests.attach(first, b"q")
    requests.detach(first, 30.0, 0.0)
    assert requests.num_counted("alice") == 1, "its client was here, and may come back again"
    with pytest.raises(RequestRejected, match="1 sequences of 'alice' are open and the request has 1, the limit is 1"):
        requests.check_new(submit("new", client="alice", client_name="alice", client_limit=1))
    end(requests, second)
    assert (requests.num_open_by_name, requests.num_counted("alice")) == ({"alice": 2}, 1)
    for request in (first, third):
        end(requests, request)
    assert (requests.num_open_by_name, requests.num_counted("alice")) == ({}, 0)


def test_sequences_that_the_journal_brought_back_count_until_they_end(requests):
    endings = [None, None, Ending("stop"), None]
    request = add(requests, "a", n=4, client="alice", peer=None, is_unclaimed=True, endings=endings)
    end(requests, request)
    assert requests.num_counted("alice") == 0
    requests.attach(request, b"p")
    assert requests.num_counted("alice") == 2
    for index, left in ((1, 1), (3, 0)):
        end(requests, request, index)
        assert requests.num_counted("alice") == left


def test_a_restored_request_that_had_ended_is_retained_and_not_open(requests):
    going = add(requests, "going", n=2, client="alice", endings=[None, Ending("stop")])
    ended = add(requests, "ended", n=2, client="alice", endings=[Ending("stop"), Ending("length")], now=4.0)
    assert requests.num_counted("alice") == 1
    assert (going.ended_at, ended.ended_at) == (None, 4.0)
    assert done(requests.let_go(4.0 + RETAIN_S)) == ["ended"]


def test_ended_requests_are_let_go_after_a_while_in_the_order_of_their_ends(requests):
    first, second, third = (add(requests, name) for name in "abc")
    end(requests, second, now=1.0)
    end(requests, first, now=2.0)
    assert done(requests.let_go(RETAIN_S)) == []
    assert done(requests.let_go(1.0 + RETAIN_S)) == ["b"]
    assert done(requests.let_go(2.0 + RETAIN_S)) == ["a"]
    assert requests.all() == [third]
    assert done(requests.let_go(1e9)) == [], "one that is open is never let go"


def test_prompts_of_one_request_are_let_go_together(requests):
    """Or a client that comes back for all of them is told that there is no such request."""
    first, second = add(requests, "alice/r-0"), add(requests, "alice/r-1")
    end(requests, first, now=1.0)
    assert done(requests.let_go(1e6)) == []
    assert requests.find("alice/r-0") is first
    end(requests, second, now=1e6)
    assert done(requests.let_go(1e6 + RETAIN_S - 1.0)) == []
    assert done(requests.let_go(1e6 + RETAIN_S)) == ["alice/r-0", "alice/r-1"]
    assert requests.all() == []


def test_prompts_that_the_journal_brought_back_belong_together_as_before(requests):
    add(requests, "r-0", endings=[Ending("stop")], now=1.0)
    second = add(requests, "r-1", peer=None, now=1.0, is_unclaimed=True)
    assert done(requests.let_go(1e6)) == []
    end(requests, second, now=1e6)
    assert done(requests.let_go(1e6 + RETAIN_S)) == ["r-0", "r-1"]


def test_the_tokens_of_what_is_retained_are_counted():
    requests = RequestTable(Retention(max_bytes=4000))
    for name in "abc":
        end(requests, add(requests, name, num_prompt=200))  # kept twice: in the Submit and in the sequence
    assert done(requests.let_go(0.0)) == ["a"]
    end(requests, add(requests, "huge", num_prompt=2000))
    assert done(requests.let_go(0.0)) == ["b", "c", "huge"]
    end(requests, add(requests, "d", num_prompt=200))
    assert done(requests.let_go(0.0)) == [], "what was let go does not count any more"


def test_the_log_probabilities_of_what_is_retained_are_counted():
    """Five tokens with those of 21 take as much as 215."""
    requests = RequestTable(Retention(max_bytes=2000))
    for name in "abc":
        request = add(requests, name, num_prompt=1)
        for sequence in request.sequences:
            sequence.tokens.extend([7] * 5)
            sequence.logprob_ids.extend([7] * 5 * 21)
            sequence.logprobs.extend([-0.5] * 5 * 21)
        end(requests, request)
    assert done(requests.let_go(0.0)) == ["a"]


def test_the_log_probabilities_of_prompts_of_what_is_retained_are_counted():
    requests = RequestTable(Retention(max_bytes=2000))
    for name in "abc":
        request = add(requests, name, num_prompt=6)
        for sequence in request.sequences:
            sequence.prompt_logprob_ids.extend([7] * 5 * 21)
            sequence.prompt_logprobs.extend([-0.5] * 5 * 21)
        end(requests, request)
    assert done(requests.let_go(0.0)) == ["a"]


def test_the_constraints_of_what_is_retained_are_counted():
    """A list may have as many tokens as the vocabulary has."""
    requests = RequestTable(Retention(max_bytes=2000))
    constraints = m.Constraints(bad_words=(bytes(100),), allowed_token_ids=bytes(800))
    for name in "abc":
        end(requests, add(requests, name, num_prompt=1, constraints=constraints))
    assert done(requests.let_go(0.0)) == ["a"]


def test_requests_that_no_client_can_come_back_for_push_nobody_out():
    requests = RequestTable(Retention(max_requests=2))
    end(requests, add(requests, "kept"))
    for i in range(10):
        end(requests, add(requests, f"plain {i}", is_resumable=False))
    assert done(requests.let_go(0.0)) == []
    assert [request.id for request in requests.all()] == ["kept"]


def test_the_journal_is_told_how_far_each_sequence_is(requests):
    request = add(requests, "a", n=2, now=7.0)
    first, second = request.sequences
    first.model, first.num_cached_prompt = "m", 2
    end(requests, request, 1)
    outputs = {first: Generated(b"1234", b"12345678", b"abcdefgh"), second: Generated(b"56789012")}
    record = request.record(outputs.__getitem__, wall_offset_s=1000.0)
    assert (record.arrival, record.accepted_at, record.submit.message()) == (0, 1007.0, request.submit)
    assert record.progress == (
        Progress(b"1234", "m", 2, None, b"12345678", b"abcdefgh"),
        Progress(b"56789012", "", None, Ending("stop")),
    )
