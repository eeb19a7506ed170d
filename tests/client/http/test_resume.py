"""What is sent next for a request whose answer broke off: decided without a socket or a clock."""

import pytest

from scheduler_svc.client.errors import (
    ConnectionBroke,
    RequestFailed,
    ServiceNotReady,
    ServiceSilent,
    ServiceUnreachable,
)
from scheduler_svc.client.http.resume import Resumption

BROKE = ConnectionBroke("http://host", "reset")
REFUSED = ServiceUnreachable("http://host", "refused")
NOT_FOUND = RequestFailed("never heard of it", status=404, code="request_not_found")
EXISTS = RequestFailed("it is here", status=409, code="request_exists")
TAKEN_OVER = RequestFailed("another connection reads it", status=409, code="taken_over")
COMPLETIONS = "/v1/completions"


@pytest.fixture
def request_():
    return Resumption(COMPLETIONS, 60.0)


def test_a_request_chooses_its_id(request_):
    assert request_.fields == {"request_id": request_.request_id, "resumable": True}
    assert request_.request_id.startswith("cmpl-")
    assert Resumption("/v1/chat/completions", 60.0).request_id.startswith("chatcmpl-")
    assert Resumption(COMPLETIONS, 60.0).request_id != request_.request_id


def test_it_asks_for_what_follows_the_last_event(request_):
    assert request_.events_path is None, "it is posted first"
    request_.take(b"3")
    request_.delay_after(BROKE, 0.0)
    assert request_.events_path == f"/v1/requests/{request_.request_id}/events"
    assert request_.headers == {"Last-Event-ID": "3"}
    request_.take(b"4")
    assert request_.headers == {"Last-Event-ID": "4"}


def test_it_goes_back_to_the_service_that_answered(request_):
    """Behind a gateway over several services only one of them knows the request."""
    assert request_.session_headers == {}
    request_.answered_by("c2VydmljZS0x")
    request_.take(b"3")
    request_.delay_after(BROKE, 0.0)
    assert request_.headers == {"Last-Event-ID": "3", "x-session-token": "c2VydmljZS0x"}
    request_.answered_by("")
    assert request_.session_headers == {"x-session-token": "c2VydmljZS0x"}, "a gateway may say it once"
    request_.answered_by("c2VydmljZS0y")
    assert request_.session_headers == {"x-session-token": "c2VydmljZS0y"}


def test_a_post_that_broke_is_looked_for_before_it_is_sent_again(request_):
    request_.delay_after(BROKE, 0.0)
    assert request_.events_path is not None
    assert request_.headers == {}
    request_.delay_after(NOT_FOUND, 0.0)
    assert request_.events_path is None, "it was never accepted"
    request_.delay_after(EXISTS, 0.0)
    assert request_.events_path is not None, "it was on its way, and came after we had asked"


def test_a_connection_that_was_refused_has_brought_nothing_there(request_):
    request_.delay_after(REFUSED, 0.0)
    assert request_.events_path is None


def test_a_request_that_was_forgotten_is_not_begun_again(request_):
    request_.take(b"3")
    request_.delay_after(BROKE, 0.0)
    with pytest.raises(RequestFailed, match="without a journal"):
        request_.delay_after(NOT_FOUND, 1.0)


def test_a_stream_without_ids_cannot_be_resumed(request_):
    request_.take(b"")
    with pytest.raises(ConnectionBroke):
        request_.delay_after(BROKE, 0.0)


@pytest.mark.parametrize(
    "error",
    [
        REFUSED,
        BROKE,
        ServiceNotReady("starting", status=503, code="unavailable"),
        RequestFailed("bad gateway", status=502),
        RequestFailed("gateway timeout", status=504),
        RequestFailed("the scheduler went away", code="unavailable"),
    ],
    ids=str,
)
def test_outages_are_waited_for(request_, error):
    assert 0 < request_.delay_after(error, 0.0) < 1


@pytest.mark.parametrize(
    "error",
    [
        RequestFailed("too long", status=400, code="context_length_exceeded"),
        RequestFailed("no key", status=401),
        RequestFailed("no such page", status=404, code="unknown_url"),
        RequestFailed("not found, and never looked for", status=404, code="request_not_found"),
        RequestFailed("not ours", status=409, code="request_exists"),
        RequestFailed("busy", status=429, code="queue_full"),
        RequestFailed("a bug", status=500, code="internal_error"),
        RequestFailed("too late", status=504, code="deadline_exceeded"),
        RequestFailed("another client reads it", code="taken_over"),
        ServiceSilent(),
    ],
    ids=str,
)
def test_answers_are_final(request_, error):
    with pytest.raises(RequestFailed) as caught:
        request_.delay_after(error, 0.0)
    assert caught.value is error


def test_an_outage_has_a_limit_and_ends_with_an_event(request_):
    for now_s in range(60):
        assert request_.delay_after(REFUSED, 100.0 + now_s) <= 2.0
    assert request_.is_broken
    request_.take(b"0")
    assert not request_.is_broken
    assert request_.delay_after(BROKE, 160.0) <= 0.1, "a new outage"
    assert request_.delay_after(REFUSED, 219.5) <= 0.5, "no longer than the limit"
    with pytest.raises(ServiceUnreachable):
        request_.delay_after(REFUSED, 220.0)


def taken_over_by_ourselves(request):
    """Two of its attaches met on their way: the one whose answer has no reader came last."""
    request.take(b"3")
    request.delay_after(BROKE, 0.0)
    request.delay_after(BROKE, 0.1)  # the attach broke off before it was answered


def test_what_its_own_late_attach_took_over_is_attached_to_again(request_):
    taken_over_by_ourselves(request_)
    request_.take(b"4")  # of the answer to the attach that was in time
    request_.delay_after(TAKEN_OVER, 0.2)
    assert request_.events_path is not None
    assert request_.headers == {"Last-Event-ID": "4"}
    with pytest.raises(RequestFailed) as caught:
        request_.delay_after(TAKEN_OVER, 0.3)
    assert caught.value is TAKEN_OVER, "once is its own attach, twice is another client's"


@pytest.mark.parametrize("lost", [REFUSED, ServiceNotReady("starting", status=503)], ids=str)
def test_a_late_attach_is_not_forgotten_while_the_service_is_away(request_, lost):
    taken_over_by_ourselves(request_)
    request_.delay_after(lost, 0.2)
    request_.delay_after(TAKEN_OVER, 0.3)
    assert request_.events_path is not None


@pytest.mark.parametrize("attached", [False, True])
def test_what_somebody_else_took_over_is_his(request_, attached):
    """Every attach of this client was answered before the next began, so that none can be under way."""
    request_.take(b"3")
    request_.delay_after(BROKE, 0.0)
    if attached:
        request_.take(b"4")
        request_.delay_after(BROKE, 0.1)
    with pytest.raises(RequestFailed) as caught:
        request_.delay_after(TAKEN_OVER, 0.2)
    assert caught.value is TAKEN_OVER


def test_zero_turns_it_off():
    request = Resumption(COMPLETIONS, 0.0)
    assert request.fields == {}
    with pytest.raises(ConnectionBroke):
        request.delay_after(BROKE, 0.0)
