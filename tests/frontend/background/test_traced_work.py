"""Responses in the background, traced; without OpenTelemetry, as what is exported is of no matter here."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from structlog.testing import capture_logs

from common import messages as m
from scheduler_svc.frontend.tracing.life_spans import Attributes
from scheduler_svc.frontend.tracing.request_trace import Ending, NoSpans, Parent
from scheduler_svc.frontend.tracing.tracing import Tracing
from tests.frontend.answers.responses.told import ID, context_of
from tests.frontend.background.working import CORE_ID, WORDS, ended, keep, working
from tests.frontend.links import in_event_loop, linked_core, until
from tests.support.fake_core import refuse, say

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class SomeSpan:
    """A span that is kept."""

    def __init__(self, name: str, parents: Sequence[Parent]) -> None:
        self.name = name
        self.parents = parents
        self.traceparent = ""
        self.is_recorded = True
        self.ending: Ending | None = None

    def end(self, ending: Ending) -> None:
        assert self.ending is None
        self.ending = ending


class SomeSpans:
    """Keeps spans, for a `Tracing`; none goes anywhere."""

    def __init__(self) -> None:
        self.begun: list[SomeSpan] = []
        self.is_closed = False

    def begin(
        self, name: str, start_ns: int, attributes: Attributes, parents: Sequence[Parent], *, is_request: bool
    ) -> SomeSpan:
        assert not is_request
        self.begun.append(SomeSpan(name, parents))
        return self.begun[-1]

    def close(self) -> None:
        self.is_closed = True


def one(request_id: str, now: float) -> tuple[m.SequenceLife, ...]:
    return (m.SequenceLife(index=0, marks=[m.Mark(at=now, what="queued")], num_left_out=0, output=0),)


def slowly(submit: m.Submit):
    yield 0.03
    yield from say(WORDS)(submit)


@in_event_loop
async def test_a_response_is_computed_in_the_trace_of_its_request(tmp_path: Path):
    async with linked_core(tmp_path, slowly) as (core, link):
        core.tell_life = one
        spans = SomeSpans()
        tracing = Tracing(spans, link.life)
        async with working(link, tmp_path, tracing) as (_, store):
            context = msgspec.structs.replace(context_of(), traceparent=TRACEPARENT)
            await keep(store, context=context.encode())
            await ended(store)
            await until(lambda: spans.begun and spans.begun[0].ending)
        [span] = spans.begun
        assert (span.name, span.parents) == (f"chat {context.model}", (Parent(TRACEPARENT),))
        assert span.ending is not None
        assert span.ending.error == ""
        told = span.ending.attributes
        assert told["gen_ai.response.id"] == ID
        assert told["gen_ai.usage.output_tokens"] == len(WORDS)
        assert told["gen_ai.response.finish_reasons"] == ("length",)
        assert "error.type" not in told
        assert core.life_queries == [CORE_ID]
        await tracing.close()
        assert spans.is_closed


@in_event_loop
async def test_a_run_for_which_there_is_no_room_is_no_span(tmp_path: Path):
    spans = SomeSpans()
    async with (
        linked_core(tmp_path) as (core, link),
        working(link, tmp_path, Tracing(spans, link.life)) as (made, store),
    ):
        core.script = refuse("full", "queue_full")
        await keep(store)
        made.start("", ID)
        await until(lambda: core.submits)
        core.script = say(WORDS)
        core.stories.clear()
        await ended(store)
        await until(lambda: spans.begun and spans.begun[0].ending)
    assert len(core.submits) > 1
    assert len(spans.begun) == 1


@in_event_loop
async def test_a_response_that_fails(tmp_path: Path):
    async with linked_core(tmp_path, refuse("broken", "internal_error")) as (_, link):
        spans = SomeSpans()
        async with working(link, tmp_path, Tracing(spans, link.life)) as (_, store):
            await keep(store)
            assert (await ended(store)).status == "failed"
            await until(lambda: spans.begun and spans.begun[0].ending)
        assert spans.begun[0].ending.error == "failed"


@in_event_loop
async def test_a_response_has_one_line_when_it_has_ended_and_not_when_there_is_no_room(tmp_path: Path):
    async with linked_core(tmp_path, refuse("full", "queue_full")) as (core, link):
        core.tell_life = one
        tracing = Tracing(NoSpans(), link.life, access_log=True)
        with capture_logs() as logs:
            async with working(link, tmp_path, tracing) as (made, store):
                await keep(store)
                made.start("", ID)
                await until(lambda: core.submits)
                core.script = slowly
                core.stories.clear()
                await ended(store)
                await until(lambda: [line for line in logs if line["event"] == "answered"])
            await tracing.close()
    [line] = [line for line in logs if line["event"] == "answered"]
    assert (line["id"], line["endpoint"], line["status"]) == (ID, "/v1/responses", 200)
    assert line["tokens_out"] == len(WORDS)
    assert line["total_s"] >= 0.03
    assert "error" not in line


@in_event_loop
async def test_a_response_that_fails_has_a_line_that_says_so(tmp_path: Path):
    async with linked_core(tmp_path, refuse("broken", "internal_error")) as (_, link):
        tracing = Tracing(NoSpans(), link.life, access_log=True)
        with capture_logs() as logs:
            async with working(link, tmp_path, tracing) as (_, store):
                await keep(store)
                await ended(store)
            await tracing.close()
    [line] = [line for line in logs if line["event"] == "answered"]
    assert (line["status"], line["error"], line["tokens_out"]) == (500, "failed", 0)
