"""The traces of one process: when a request is over, the core is asked what became of it, and its span is exported."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Protocol

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.tracing.life_spans import Frame, LifeSpans, spans_of
from scheduler_svc.frontend.tracing.request_trace import MAX_SEQUENCES, RequestTrace, Spans

MAX_ASKED_FOR = 512  # requests at once; there are more only while the core is stuck


class ClosableSpans(Spans, Protocol):
    """Where spans come from, until it is closed."""

    def close(self) -> None:
        """Export what is left, if that does not take long."""


class Tracing:
    """Ends the spans of requests.

    Args:
        spans: where they come from.
        ask: has the core tell the life of its request with this id. Raises RequestRejected if there is no answer.
    """

    def __init__(self, spans: ClosableSpans, ask: Callable[[str], Awaitable[m.Life]]) -> None:
        self.spans = spans
        self._ask = ask
        self._ending: set[asyncio.Task[None]] = set()

    def end(self, trace: RequestTrace) -> None:
        """A request is over. This does not wait for the core."""
        end_ns = trace.now_ns
        trace.settle()
        if not trace.core_ids or not trace.is_recorded or len(self._ending) >= MAX_ASKED_FOR:
            trace.end(end_ns, LifeSpans())
            return
        task = asyncio.create_task(self._end(trace, end_ns))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all spans, and export what is left."""
        ending = list(self._ending)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self.spans.close()

    async def _end(self, trace: RequestTrace, end_ns: int) -> None:
        life = LifeSpans()
        try:
            life = await self._life(trace, end_ns)
        finally:
            trace.end(end_ns, life)

    async def _life(self, trace: RequestTrace, end_ns: int) -> LifeSpans:
        """What became of the first sequences of a request, as far as the core tells."""
        numbered = enumerate(trace.core_ids[:MAX_SEQUENCES])
        told = await asyncio.gather(*[self._of_prompt(trace, number, core_id, end_ns) for number, core_id in numbered])
        first = itertools.islice(((*one, frame) for lives, frame in told for one in lives), MAX_SEQUENCES)
        parts = [spans_of([(prompt, life)], frame) for prompt, life, frame in first]
        events = sorted((event for part in parts for event in part.events), key=lambda event: event.at_ns)
        return LifeSpans(tuple(span for part in parts for span in part.spans), tuple(events))

    async def _of_prompt(
        self, trace: RequestTrace, number: int, core_id: str, end_ns: int
    ) -> tuple[list[tuple[int, m.SequenceLife]], Frame]:
        """The lives of a prompt's sequences; none if the core does not tell."""
        asked_ns = trace.now_ns
        try:
            life = await self._ask(core_id)
        except RequestRejected:
            life = m.Life(query_id=0, at=0.0)
        frame = Frame.of(life, asked_ns, trace.now_ns, trace.start_ns, end_ns)
        return [(number, sequence) for sequence in life.sequences], frame
