"""Spans by OpenTelemetry's SDK, exported by OTLP over HTTP. The SDK itself reads the standard variables."""

import logging
import os
import threading
import uuid
from collections.abc import Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, get_current_span
from opentelemetry.trace.propagation import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from common.logging import QuietLog, get_logger
from scheduler_svc.frontend.tracing.life_spans import Attributes, ChildSpan
from scheduler_svc.frontend.tracing.request_trace import Ending, Parent

LOG_INTERVAL_S = 60.0  # between two lines about a collector that is away
FLUSH_MAY_TAKE_S = 1.0  # at the end
CLOSE_MAY_TAKE_S = 0.3  # for what is on its way then
MAX_LOGGED_CHARACTERS = 300
UNKNOWN_SERVICE = "unknown_service"  # the SDK's name for a service that has none

log = get_logger(__name__)


class OtelSpans:
    """Makes spans and exports them from a thread of its own, which drops what it cannot send.

    Args:
        process: `frontend` or `worker`.
        version: of Baton.

    Raises:
        ValueError: a variable has a value that the SDK does not take.
    """

    def __init__(self, process: str, version: str) -> None:
        logger = logging.getLogger("opentelemetry")
        logger.handlers[:] = [_ToQuietLog()]
        logger.propagate = False
        self._exporter = OTLPSpanExporter()
        self._provider = TracerProvider(resource=_resource(process, version), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("baton", version)

    def begin(
        self, name: str, start_ns: int, attributes: Attributes, parents: Sequence[Parent], *, is_request: bool
    ) -> "OtelSpan":
        """Begin a span; see `Spans`."""
        contexts = [context for parent in parents if (context := _context(parent)) is not None]
        span = self._tracer.start_span(
            name,
            context=contexts[0] if contexts else Context(),  # not what is current in this thread: nothing is
            kind=SpanKind.SERVER if is_request else SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(get_current_span(context).get_span_context()) for context in contexts[1:]],
            start_time=start_ns,
        )
        return OtelSpan(self, span)

    def add(self, child: ChildSpan, parent: Context) -> None:
        """Export a span that has ended."""
        span = self._tracer.start_span(
            child.name, context=parent, attributes=child.attributes, start_time=child.start_ns
        )
        for event in child.events:
            span.add_event(event.name, event.attributes, event.at_ns)
        span.end(child.end_ns)

    def close(self) -> None:
        """Export what is left, if that does not take long."""
        closing = threading.Thread(target=self._provider.shutdown, name="close-traces", daemon=True)
        closing.start()
        closing.join(FLUSH_MAY_TAKE_S)
        if closing.is_alive():
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # it tries no more
            closing.join(CLOSE_MAY_TAKE_S)


class OtelSpan:
    """A span that has begun; see `OpenSpan`."""

    def __init__(self, spans: OtelSpans, span: Span) -> None:
        self._spans = spans
        self._span = span
        self.traceparent = _traceparent(span.get_span_context())
        self.is_recorded = span.is_recording()

    def end(self, ending: Ending) -> None:
        """Export it, and all that is below it."""
        if not self.is_recorded:
            return
        context = set_span_in_context(self._span, Context())
        for child in ending.life.spans:
            self._spans.add(child, context)
        for event in ending.life.events:
            self._span.add_event(event.name, event.attributes, event.at_ns)
        self._span.set_attributes(ending.attributes)
        if ending.error:
            self._span.set_status(Status(StatusCode.ERROR, ending.error))
        self._span.end(ending.end_ns)


class _ToQuietLog(logging.Handler):
    """What the SDK has to say, as lines of ours: a collector may be away for days."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._quiet = QuietLog(log, "traces not exported", interval_s=LOG_INTERVAL_S)

    def emit(self, record: logging.LogRecord) -> None:
        """Log it, unless that was done a moment ago."""
        self._quiet.happened(reason=record.getMessage()[:MAX_LOGGED_CHARACTERS])


def _resource(process: str, version: str) -> Resource:
    """What all spans say of this process. What the variables say counts more."""
    ours: dict[str, Any] = {
        "service.name": "baton",
        "service.version": version,
        "service.instance.id": str(uuid.uuid4()),
        "process.pid": os.getpid(),
        "baton.process": process,
    }
    said: dict[str, Any] = dict(Resource.create().attributes)
    if str(said["service.name"]).startswith(UNKNOWN_SERVICE):
        del said["service.name"]
    return Resource({**ours, **said})


def _context(parent: Parent) -> Context | None:
    """The context of a span that W3C's headers name; None if they name none."""
    headers = {"traceparent": parent.traceparent, "tracestate": parent.tracestate}
    context = TraceContextTextMapPropagator().extract({name: value for name, value in headers.items() if value})
    return context if get_current_span(context).get_span_context().is_valid else None


def _traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
