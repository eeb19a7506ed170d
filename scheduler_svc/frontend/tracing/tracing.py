"""The traces of one process: when a request is over, the core is asked what became of it, and its span is exported."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.tracing import access_log
from scheduler_svc.frontend.tracing.access_log import Told
from scheduler_svc.frontend.tracing.life_spans import Frame, LifeSpans, spans_of
from scheduler_svc.frontend.tracing.request_trace import MAX_SEQUENCES, RequestTrace, Spans

MAX_ASKED_FOR = 512  # requests at once; there are more only while the core is stuck


class ClosableSpans(Spans, Protocol):
    """Where spans come from, until it is closed."""

    def close(self) -> None:
        """Export what is left, if that does not take long."""


class Tracing:
    """Ends the spans of requests, and writes their lines into the log.

    Args:
        spans: where they come from.
        ask: has the core tell the life of its request with this id. Raises RequestRejected if there is no answer.
        access_log: whether each answer has a line.
    """

    def __init__(
        self, spans: ClosableSpans, ask: Callable[[str], Awaitable[m.Life]], *, access_log: bool = False
    ) -> None:
        self.spans = spans
        self.access_log = access_log
        self._ask = ask
        self._ending: set[asyncio.Task[None]] = set()

    def end(self, trace: RequestTrace, facts: Mapping[str, Any] | None = None) -> None:
        """A request is over. This does not wait for the core.

        Args:
            facts: for its line in the log; None for no line.
        """
        end_ns = trace.now_ns
        is_told = trace.is_recorded or facts is not None
        if is_told:
            trace.note_answer()
        if not trace.core_ids or not is_told or len(self._ending) >= MAX_ASKED_FOR:
            self._finish(trace, facts, end_ns, [])
            return
        task = asyncio.create_task(self._end(trace, facts, end_ns))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all spans, and export what is left."""
        ending = list(self._ending)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self.spans.close()

    async def _end(self, trace: RequestTrace, facts: Mapping[str, Any] | None, end_ns: int) -> None:
        told: list[Told] = []
        try:
            told = await self._told(trace, end_ns)
        finally:
            self._finish(trace, facts, end_ns, told)

    def _finish(self, trace: RequestTrace, facts: Mapping[str, Any] | None, end_ns: int, told: Sequence[Told]) -> None:
        if facts is not None:
            access_log.write(facts, trace, told)
        trace.end(end_ns, _spans(told) if trace.is_recorded else LifeSpans())

    async def _told(self, trace: RequestTrace, end_ns: int) -> list[Told]:
        """What became of the first sequences of a request, as far as the core tells."""
        numbered = enumerate(trace.core_ids[:MAX_SEQUENCES])
        told = await asyncio.gather(*[self._of_prompt(trace, number, core_id, end_ns) for number, core_id in numbered])
        return list(itertools.islice(itertools.chain.from_iterable(told), MAX_SEQUENCES))

    async def _of_prompt(self, trace: RequestTrace, number: int, core_id: str, end_ns: int) -> list[Told]:
        """The lives of a prompt's sequences; none if the core does not tell."""
        asked_ns = trace.now_ns
        try:
            life = await self._ask(core_id)
        except RequestRejected:
            return []
        frame = Frame.of(life, asked_ns, trace.now_ns, trace.start_ns, end_ns)
        return [(number, sequence, frame) for sequence in life.sequences]


def _spans(told: Sequence[Told]) -> LifeSpans:
    parts = [spans_of([(prompt, life)], frame) for prompt, life, frame in told]
    events = sorted((event for part in parts for event in part.events), key=lambda event: event.at_ns)
    return LifeSpans(tuple(span for part in parts for span in part.spans), tuple(events))
