"""The events of a response through connections that end anywhere: each once, in order, or a clear failure."""

import json
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.client.errors import (
    ConnectionBroke,
    RequestFailed,
    ServiceNotReady,
    ServiceSilent,
    ServiceUnreachable,
)
from scheduler_svc.client.http.api import Api
from scheduler_svc.client.http.response_reading import ResponseReading
from scheduler_svc.client.http.sse import DONE, Event
from scheduler_svc.client.service_address import ServiceAddress
from tests.client.clocks import HurriedClock
from tests.support.effort import examples

ID = "resp_" + "0" * 24
SESSION = {"x-session-token": "c2VydmljZS0x"}
BROKE = ConnectionBroke("http://host", "reset")
REFUSED = ServiceUnreachable("http://host", "refused")


def event(number: int, num_events: int, **more) -> bytes:
    """An event as the service sends it; the last one ends the response."""
    name = "response.completed" if number == num_events - 1 else "response.output_text.delta"
    name = "response.created" if number == 0 else name
    fields = {"type": name, "sequence_number": number, "delta": "x\u2028y", **more}
    if name != "response.output_text.delta":
        fields["response"] = {"id": ID, "status": "completed" if number else "in_progress"}
    return f"event: {name}\ndata: {json.dumps(fields, ensure_ascii=False)}\n\n: keep-alive\n\n".encode()


class Cut(httpx.SyncByteStream):
    """An answer that ends after so many bytes: as a break, or in order."""

    def __init__(self, data: bytes, size: int, *, breaks: bool) -> None:
        self._parts = [data[i : i + size] for i in range(0, len(data), size)]
        self._breaks = breaks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts
        if self._breaks:
            raise httpx.RemoteProtocolError("peer closed connection")


class BackgroundService:
    """One response in the background, and what becomes of each connection to it.

    Args:
        faults: of each of the next requests: a status, or (share of the bytes that come, whether that is a break).
        over_after: requests for its stream after which the response has ended.
    """

    def __init__(self, num_events: int, faults=(), *, over_after: int = 0, size: int = 7) -> None:
        self.num_events = num_events
        self.requests: list[httpx.Request] = []
        self._faults = list(faults)
        self._over_after = over_after
        self._size = size

    @property
    def is_over(self) -> bool:
        return len(self.requests) > self._over_after

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/ready":  # a look at it while it is slow
            return httpx.Response(200)
        self.requests.append(request)
        first = int(request.url.params.get("starting_after", -1)) + 1
        data = b"".join(event(number, self.num_events) for number in range(first, self.num_events))
        fault = self._faults.pop(0) if self._faults else (1.0, False)
        if isinstance(fault, int):
            return httpx.Response(fault, json={"error": {"message": "no", "code": "unavailable"}})
        share, breaks = fault
        if not self.is_over:
            share = min(share, 0.9)  # the last event is not there yet
        sent = data[: round(share * len(data))]
        return httpx.Response(200, stream=Cut(sent, self._size, breaks=breaks), headers=SESSION)

    def read(self, limit_s: float = 60.0, **how) -> tuple[list[int], ResponseReading]:
        """The numbers of all events that a reader gets."""
        address = ServiceAddress("http://127.0.0.1:9", reconnect_timeout_s=limit_s, clock=HurriedClock())
        api = Api(address, httpx.MockTransport(self.handle))
        reading = ResponseReading(limit_s, **(how or {"response_id": ID}))
        return [event["sequence_number"] for event in api.events(reading)], reading


FAULTS = st.lists(st.sampled_from([502, 503, 504]) | st.tuples(st.floats(0, 1), st.booleans()), max_size=8)


@settings(max_examples=examples(150))
@given(
    num_events=st.integers(2, 8),
    faults=FAULTS,
    after=st.integers(-1, 9),
    over_after=st.integers(0, 5),
    size=st.integers(1, 300),
)
def test_each_event_comes_once_wherever_connections_end(num_events, faults, after, over_after, size):
    service = BackgroundService(num_events, faults, over_after=over_after, size=size)
    numbers, reading = service.read(response_id=ID, after=after)
    assert numbers == list(range(after + 1, num_events))
    assert reading.last == {"id": ID, "status": "completed"}, "also if it has been read"
    first = service.requests[0].url.params
    assert first.get("starting_after") == (None if after < 0 else str(after))


def test_a_response_in_the_background_is_made_once_and_read_on_where_it_was_made():
    service = BackgroundService(6, [(0.5, True), 503, (0.5, True)])
    numbers, _ = service.read(body={"input": "x", "background": True})
    assert numbers == list(range(6))
    assert [request.method for request in service.requests] == ["POST", "GET", "GET", "GET"]
    assert json.loads(service.requests[0].content) == {"input": "x", "background": True, "stream": True}
    assert {request.headers["x-session-token"] for request in service.requests[1:]} == set(SESSION.values())
    assert {request.url.path for request in service.requests[1:]} == {f"/v1/responses/{ID}"}


@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.parametrize(("background", "share"), [(False, 0.5), (True, 0.0), (True, 0.05)])
def test_a_response_that_may_have_ended_is_not_made_again(background, share, breaks):
    """Without an id, or where it ends with its connection."""
    service = BackgroundService(6, [(share, breaks)])
    with pytest.raises(ConnectionBroke):
        service.read(body={"input": "x", "background": background})
    assert len(service.requests) == 1


def test_a_refused_request_is_not_repeated():
    service = BackgroundService(6, [503])
    with pytest.raises(ServiceNotReady):
        service.read(body={"input": "x"})
    assert len(service.requests) == 1


def test_zero_seconds_fail_at_the_first_break():
    service = BackgroundService(6, [(0.5, True)])
    with pytest.raises(ConnectionBroke):
        service.read(limit_s=0.0)
    assert len(service.requests) == 1


# --- decided without a socket or a clock ---


def reading_of(**how) -> ResponseReading:
    return ResponseReading(60.0, **(how or {"response_id": ID}))


def taken(reading: ResponseReading, number: int, num_events: int = 9) -> object:
    data = event(number, num_events).split(b"data: ")[1].split(b"\n")[0]
    return reading.take(Event(data, b""))


def test_an_outage_ends_with_an_event_and_is_given_up_when_it_lasts():
    reading = reading_of()
    taken(reading, 0)
    reading.delay_after(BROKE, 10.0)
    assert reading.is_broken
    taken(reading, 1)
    assert not reading.is_broken
    reading.delay_after(BROKE, 100.0)
    reading.delay_after(REFUSED, 159.0)
    with pytest.raises(ServiceUnreachable):
        reading.delay_after(REFUSED, 160.0)


@pytest.mark.parametrize(
    "error",
    [
        ServiceSilent(),
        RequestFailed("gone", status=404, code="response_not_found"),
        RequestFailed("it broke", code="internal_error"),
        RequestFailed("late", status=504, code="deadline_exceeded"),
    ],
    ids=lambda error: error.code or "silent",
)
def test_what_is_no_outage_is_final(error):
    reading = reading_of()
    taken(reading, 0)
    with pytest.raises(RequestFailed):
        reading.delay_after(error, 0.0)


@pytest.mark.parametrize("error", [REFUSED, ServiceNotReady("no executor", status=503, code="no_executor")], ids=str)
def test_what_was_not_taken_is_sent_later(error):
    reading = reading_of(body={"input": "x"})
    assert reading.delay_after(error, 0.0) >= 0
    assert reading.next_request.method == "POST"
    taken(reading, 0)
    with pytest.raises(type(error)):
        reading.delay_after(error, 0.0)


def test_an_empty_answer_has_all_events_asked_for_once():
    """The reader may have the last one. If all of them are an empty answer too, the service is not itself."""
    reading = reading_of(response_id=ID, after=8)
    assert "starting_after=8" in reading.next_request.path
    assert reading.ended()
    assert "starting_after" not in reading.next_request.path
    assert not reading.ended()
    assert "starting_after=8" in reading.next_request.path
    assert reading.ended()
    assert "starting_after" not in reading.next_request.path
    assert taken(reading, 7) is None
    assert not reading.ended(), "it broke"
    reading.delay_after(BROKE, 0.0)
    assert "starting_after=8" in reading.next_request.path


def test_what_has_come_before_is_passed_over():
    reading = reading_of(response_id=ID, after=3)
    assert taken(reading, 3) is None
    assert taken(reading, 4) is not None
    assert taken(reading, 4) is None
    assert reading.after == 4
    assert reading.take(Event(DONE, b"")) is None
    assert not reading.is_complete


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"type":"error","code":"unavailable","message":"busy","param":null}', "busy"),
        (b'{"error":{"code":"unavailable","message":"busy"}}', "busy"),
        (b'{"type":"response.created"}', "something else"),
        (b'{"type":"response.created","sequence_number":"1"}', "something else"),
        (b"[1]", "something else"),
        (b"{", "something else"),
        (b'"\xff"', "something else"),
    ],
)
def test_errors_and_what_is_no_event(data, message):
    with pytest.raises(RequestFailed, match=message) as caught:
        reading_of().take(Event(data, b""))
    assert caught.value.code == ("unavailable" if message == "busy" else "")


def test_an_id_is_one_part_of_the_path():
    assert reading_of(response_id="a/../b?c").next_request.path == "/v1/responses/a%2F..%2Fb%3Fc?stream=true"
