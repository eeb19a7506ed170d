"""The span of a response in the background, of the trace of the request that asked for it; and its line in the log."""

from collections.abc import Iterator
from contextlib import contextmanager

from structlog.contextvars import bound_contextvars

from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.background.response_run import ResponseRun
from scheduler_svc.frontend.errors import CLIENT_CLOSED_REQUEST
from scheduler_svc.frontend.requests.responses.background_work import BackgroundWork
from scheduler_svc.frontend.tracing import names
from scheduler_svc.frontend.tracing.life_spans import Attributes
from scheduler_svc.frontend.tracing.notes import follow
from scheduler_svc.frontend.tracing.request_trace import Parent, RequestTrace
from scheduler_svc.frontend.tracing.tracing import Tracing

ENDPOINT = "/v1/responses"
STATUSES = {"failed": 500, "cancelled": CLIENT_CLOSED_REQUEST}  # of the line of a response that has no answer


@contextmanager
def traced(tracing: Tracing | None, client: ApiClient, work: BackgroundWork, run: ResponseRun) -> Iterator[None]:
    """Trace what a worker does for a response. A run for which the core had no room is none."""
    context = AnswerContext.decode(work.submit.context)
    with bound_contextvars(**({"trace_id": context.traceparent[3:35]} if context.traceparent else {})):
        if tracing is None:
            yield
            return
        attributes: Attributes = {names.REQUEST_MODEL: context.model, names.RESPONSE_ID: work.spec.response_id}
        if client.name:
            attributes[names.CLIENT] = client.name
        trace = RequestTrace(tracing.spans, "chat", Parent(context.traceparent), attributes, is_request=False)
        try:
            yield
        finally:
            if not run.refusal:
                _end(tracing, trace, client, run)


def _end(tracing: Tracing, trace: RequestTrace, client: ApiClient, run: ResponseRun) -> None:
    follow(trace, run.generation, client.id)
    trace.core_ids = (run.core_id,)
    if run.outcome is None:
        trace.failed("broken_off", is_ours=False)  # another worker goes on, and writes its line
        tracing.end(trace)
        return
    status = run.outcome.status
    error = status if status in STATUSES else ""
    if error:
        trace.failed(error, is_ours=status == "failed")
    total_s = round((trace.now_ns - trace.start_ns) / 1e9, 4)
    facts = {"key": client.name, "endpoint": ENDPOINT, "status": STATUSES.get(status, 200), "error": error}
    tracing.end(trace, facts | {"total_s": total_s} if tracing.access_log else None)
