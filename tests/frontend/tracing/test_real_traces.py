"""Traces of the real core: an executor drains and a frontend is killed, and it stays one trace."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.frontend.collector import attributes, collecting
from tests.frontend.sse import events_in
from tests.support.core import FakeExecutor, running_core
from tests.support.frontend_process import MODEL, Frontend
from tests.support.plain_http import http

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 100, "ignore_eos": True, "stream": True, "resumable": True}


@pytest.mark.slow
def test_a_stream_whose_executor_and_whose_frontend_are_replaced(tmp_path: Path):
    with running_core(tmp_path) as core, collecting() as collector:
        first = FakeExecutor(core.back, name="a", step_s=0.01)
        link = SimpleNamespace(endpoint=core.front)
        frontend = Frontend(link, tmp_path / "log", **collector.environment)
        other = Frontend(link, tmp_path / "other-log", **collector.environment)
        try:
            frontend.wait_until_ready()
            other.wait_until_ready()
            headers = {"traceparent": PARENT}
            url = f"{frontend.url}/v1/completions"
            with http.stream("POST", url, json=BODY | {"request_id": "r"}, headers=headers) as answer:
                next(events_in(answer))
                frontend.process.kill()  # its span is lost
            first_read_ns = time.time_ns()
            second = FakeExecutor(core.back, name="b", step_s=0.01)
            with http.stream("GET", f"{other.url}/v1/requests/r/events") as answer:
                events = events_in(answer)
                next(events)
                first.leaving.set()
                list(events)
            span = collector.of_answer("r")
        finally:
            frontend.process.kill()
            other.stop()
            first.kill()
            second.kill()
    assert (span.name, span.trace_id.hex()) == (f"resume {MODEL}", PARENT.split("-")[1])
    assert span.parent_span_id.hex() != PARENT.split("-")[2]  # that of the span that was lost
    assert attributes(span)["gen_ai.usage.output_tokens"] == 100
    assert span.start_time_unix_nano >= first_read_ns
    phases = [(child.name, attributes(child).get("baton.executor.name")) for child in collector.below(span)]
    assert phases == [
        ("baton.decode", "a"),
        ("baton.queue", None),
        ("baton.prefill", "b"),
        ("baton.decode", "b"),
    ]
    assert [event.name for event in span.events] == ["baton.left", "baton.resumed"]
