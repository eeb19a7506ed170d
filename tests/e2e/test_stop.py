"""`baton up` is told to stop while answers are open: those that cannot be read on later come to their ends."""

import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.service import Service
from tests.support.eventually import eventually

BODY = {"model": "baton-demo", "prompt": "JULIET:", "max_tokens": 500, "ignore_eos": True}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_stop_lets_open_answers_end_and_refuses_new_ones(tmp_path):
    with Service(tmp_path, options=("--stop-grace", 100)) as service, ThreadPoolExecutor(5) as threads:

        def answer(body):
            return httpx.post(f"{service.url}/v1/completions", json=body, timeout=60)

        asked = [threads.submit(answer, BODY | {"stream": stream}) for stream in (False, False, True, True)]
        service.wait_for_sequences(4)
        service.signal(signal.SIGTERM)
        eventually(lambda: refuses(service.url))
        assert not all(answer.done() for answer in asked), "the machine is too fast for this test: ask for more tokens"
        answers = [future.result() for future in asked]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert all(answer.json()["usage"]["completion_tokens"] == BODY["max_tokens"] for answer in answers[:2])
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers[2:])
        assert service.wait() == 0
        assert "stopping the scheduler, whose open answers have 100 s to end" in service.log()


def refuses(url):
    """Whether new connections are refused, at once."""
    try:
        httpx.get(f"{url}/health", timeout=5)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        pass  # it had been accepted
    return False
