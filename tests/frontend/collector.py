"""A collector of traces, as far as frontends can tell: OTLP over HTTP into a list."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.eventually import eventually


class Collector:
    """What has arrived lies in `requests`."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Be away."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def spans(self) -> list[Span]:
        """All spans that have arrived."""
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a frontend that is to export to it soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def resource(self) -> dict[str, object]:
        """What the first request says of its sender."""
        return attributes(self.requests[0].resource_spans[0].resource)

    def of_answer(self, answer_id: str) -> Span:
        """The span of a request, once it has come: with it all that is below it has, as its span is the last one."""
        return self.wait_for(lambda span: attributes(span).get("gen_ai.response.id") == answer_id)

    def wait_for(self, is_wanted) -> Span:
        """The one span that is wanted."""

        def found() -> list[Span]:
            return [span for span in self.spans if is_wanted(span)]

        eventually(found, 10, lambda: f"the span; there are {[span.name for span in self.spans]}")
        [span] = found()
        return span

    def below(self, parent: Span) -> list[Span]:
        """A span's children, in order of time."""
        children = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return sorted(children, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector, for a while."""
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


def attributes(of) -> dict[str, object]:
    """Attributes of a span, an event or a resource."""
    return {pair.key: value_of(pair.value) for pair in of.attributes}


def value_of(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    return [value_of(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)
