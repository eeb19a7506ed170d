"""One request while it is traced: what is noted of it, and the span and the line of the log that it becomes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from scheduler_svc.frontend.tracing import names
from scheduler_svc.frontend.tracing.life_spans import Attributes, LifeSpans

MAX_SEQUENCES = 8  # of a request, whose lives are told
TRACE = "baton.trace"  # in a request's ASGI scope: its RequestTrace, if it is traced


@dataclass(frozen=True)
class Parent:
    """W3C's headers that name the span above a request's, both empty if there is none."""

    traceparent: str = ""
    tracestate: str = ""


@dataclass(frozen=True)
class Ending:
    """A span's end.

    Attributes:
        error: what failed; empty if nothing did that is the server's fault.
        life: what it has below and in it.
    """

    end_ns: int
    attributes: Attributes
    error: str = ""
    life: LifeSpans = field(default_factory=LifeSpans)


class OpenSpan(Protocol):
    """A span that has begun.

    Attributes:
        traceparent: W3C's header that names it.
        is_recorded: whether it was sampled. Of one that was not, nothing need be found out.
    """

    traceparent: str
    is_recorded: bool

    def end(self, ending: Ending) -> None:
        """Export it."""


class Spans(Protocol):
    """Where spans come from."""

    def begin(
        self, name: str, start_ns: int, attributes: Attributes, parents: Sequence[Parent], *, is_request: bool
    ) -> OpenSpan:
        """Begin a span below the first of `parents` that names one; it has links to the others.

        Args:
            is_request: of a client that waits; False for work that was left for later.
        """


class NoSpan:
    """A span where none are exported."""

    traceparent = ""
    is_recorded = False

    def end(self, ending: Ending) -> None:
        """Do nothing."""


class NoSpans:
    """Where spans come from if none are exported."""

    def begin(
        self, name: str, start_ns: int, attributes: Attributes, parents: Sequence[Parent], *, is_request: bool
    ) -> NoSpan:
        """Begin none."""
        return NoSpan()

    def close(self) -> None:
        """Do nothing."""


@dataclass
class RequestTrace:
    """A request that came just now.

    Its span begins only when it is known what is asked, with the time at which the request came: what a sampler sees,
    and which span stands above, may be known no sooner.

    Attributes:
        operation: of the GenAI conventions.
        parent: that the client named.
        attributes: all that is known so far.
        answer: tells at the end what the answer has come to; None if the core never got the request.
        core_ids: the core's ids of its prompts.
        has_token: whether the client's answer has a token by now.
    """

    spans: Spans
    operation: str
    parent: Parent
    attributes: Attributes
    is_request: bool = True
    answer: Callable[[], Attributes] | None = None
    core_ids: tuple[str, ...] = ()
    has_token: Callable[[], bool] | None = None
    start_ns: int = field(default_factory=time.time_ns)
    _began_at_ns: int = field(default_factory=time.monotonic_ns)
    _span: OpenSpan | None = None
    _error: str = ""

    @property
    def now_ns(self) -> int:
        """Unix time in nanoseconds. It does not jump when the machine's clock is set."""
        return self.start_ns + time.monotonic_ns() - self._began_at_ns

    @property
    def is_recorded(self) -> bool:
        """Whether there is more to be found out of it."""
        return self._begun().is_recorded

    @property
    def trace_id(self) -> str:
        """Of the trace that its span is in; empty without one. It begins, if it had not."""
        return self._begun().traceparent[3:35]

    def begin(self, attributes: Attributes, origin: str = "") -> str:
        """It is known what is asked.

        Args:
            origin: `traceparent` of an earlier request for the same answer; empty if this is the first one.

        Returns:
            The `traceparent` of this one.
        """
        self.attributes |= attributes
        return self._begun(origin).traceparent

    def failed(self, error_type: str, *, is_ours: bool) -> None:
        """It has ended by an error; `is_ours` if that is the server's fault."""
        self.attributes[names.ERROR_TYPE] = error_type
        self._error = error_type if is_ours else ""

    def sent(self) -> None:
        """A part of the answer was sent."""
        if self.has_token is not None and self.has_token():
            self.has_token = None
            if self.attributes.get(names.REQUEST_STREAM):
                self.attributes[names.TIME_TO_FIRST_CHUNK] = (self.now_ns - self.start_ns) / 1e9

    def note_answer(self) -> None:
        """Note what the answer has come to."""
        if self.answer is not None:
            self.attributes |= self.answer()

    def end(self, end_ns: int, life: LifeSpans) -> None:
        """Export it, and let go of the answer."""
        self.answer = self.has_token = None
        self._begun().end(Ending(end_ns, self.attributes, self._error, life))

    def _begun(self, origin: str = "") -> OpenSpan:
        if self._span is None:
            model = self.attributes.get(names.REQUEST_MODEL)
            name = f"{self.operation} {model}" if model else self.operation
            parents = (self.parent, Parent(origin)) if origin else (self.parent,)
            attributes: Attributes = {names.OPERATION: self.operation, names.PROVIDER: "baton", **self.attributes}
            self._span = self.spans.begin(name, self.start_ns, attributes, parents, is_request=self.is_request)
            if self.trace_id:  # from now on in each line that this task logs, and those that it starts
                structlog.contextvars.bind_contextvars(trace_id=self.trace_id)
        return self._span
