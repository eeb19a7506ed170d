"""The span of a response in the background: of the trace of the request that asked for it."""

from collections.abc import Iterator
from contextlib import contextmanager

from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.background.response_run import ResponseRun
from scheduler_svc.frontend.requests.responses.background_work import BackgroundWork
from scheduler_svc.frontend.tracing import names
from scheduler_svc.frontend.tracing.life_spans import Attributes
from scheduler_svc.frontend.tracing.notes import follow
from scheduler_svc.frontend.tracing.request_trace import Parent, RequestTrace
from scheduler_svc.frontend.tracing.tracing import Tracing


@contextmanager
def traced(tracing: Tracing | None, client: ApiClient, work: BackgroundWork, run: ResponseRun) -> Iterator[None]:
    """Trace what a worker does for a response. A run for which the core had no room is none."""
    if tracing is None:
        yield
        return
    context = AnswerContext.decode(work.submit.context)
    attributes: Attributes = {names.REQUEST_MODEL: context.model, names.RESPONSE_ID: work.spec.response_id}
    if client.name:
        attributes[names.CLIENT] = client.name
    trace = RequestTrace(tracing.spans, "chat", Parent(context.traceparent), attributes, is_request=False)
    try:
        yield
    finally:
        if not run.refusal:
            _end(tracing, trace, client.id, run)


def _end(tracing: Tracing, trace: RequestTrace, owner: str, run: ResponseRun) -> None:
    follow(trace, run.generation, owner)
    trace.core_ids = (run.core_id,)
    if run.outcome is None:
        trace.failed("broken_off", is_ours=False)  # another worker goes on
    elif run.outcome.status in ("failed", "cancelled"):
        trace.failed(run.outcome.status, is_ours=run.outcome.status == "failed")
    tracing.end(trace)
