"""The header by which a gateway leads a client back to the service that has its request, in both of our clients."""

import asyncio

import pytest

from scheduler_svc.client.http.event_stream import EventStreams
from scheduler_svc.client.service_address import ServiceAddress
from tests.client.fake_server import MODEL, Drop, Refuse

OURS, ANOTHER = "c2VydmljZS0x", "c2VydmljZS0y"


@pytest.fixture(params=["the commands", "load generation"])
def generate(request, server, baton, clock):
    """Generate eight tokens, and return how many events of the stream came."""

    def by_command():
        result = baton("generate", "x", "--max-tokens", 8)
        assert result.exit_code == 0, result.stderr
        return result.stdout.split()

    def by_stream():
        words = []
        body = {"model": MODEL, "prompt": "x", "max_tokens": 8, "stream": True}
        streams = EventStreams(ServiceAddress(server.url, clock=clock))
        asyncio.run(streams.post("/v1/completions", body, words.append))
        return [word for word in words if b'"text"' in word and b"w" in word]

    return by_command if request.param == "the commands" else by_stream


def test_an_error_of_another_service_leads_nowhere(server, generate):
    """A 503 without the request comes from a service that does not know it."""
    server.session = OURS
    server.script.append(Drop(after_tokens=5))
    server.resume_script.append(Refuse(503, session=ANOTHER))
    assert len(generate()) == 8
    assert server.sessions == [OURS, OURS]


def test_a_header_that_is_no_text_is_ignored(server, generate):
    server.session = "caf\xe9"  # a byte that is no UTF-8
    server.script.append(Drop(after_tokens=5))
    assert len(generate()) == 8
    assert server.sessions == [""]
