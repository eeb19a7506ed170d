"""What became of a request's sequences, as spans: marks in, plain descriptions out.

Each sequence is at any time in one of three phases: it waits (`baton.queue`), an executor computes what it has
(`baton.prefill`), or gives it tokens (`baton.decode`). A mark ends a phase and begins the next one. What befalls a
sequence in between, as when its executor is lost, is an event of the request's span.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from common import messages as m
from scheduler_svc.frontend.tracing import names

AttributeValue = str | int | float | bool | tuple[str, ...]
Attributes = dict[str, AttributeValue]

WAITS = ("queued", "restored", "preempted", "lost", "left")  # marks after which a sequence waits
MAX_AGE_S = 1e9  # of a mark; what is older, or never was, lies outside of every request
TOLD = ("restored", "first_token", "preempted", "lost", "left", "resumed")  # those that the request's span tells


@dataclass(frozen=True)
class SpanEvent:
    """A moment in a span."""

    name: str
    at_ns: int
    attributes: Attributes


@dataclass(frozen=True)
class ChildSpan:
    """A phase of a sequence. Times are Unix times in nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()


@dataclass(frozen=True)
class LifeSpans:
    """What a request's span gets: the phases of its sequences, and events of its own."""

    spans: tuple[ChildSpan, ...] = ()
    events: tuple[SpanEvent, ...] = ()


@dataclass(frozen=True)
class Frame:
    """Where the core's times lie among those of the request's span.

    Attributes:
        at: a moment in the core's time.
        at_ns: the same moment in Unix time, as far as that is known.
        start_ns, end_ns: of the request's span, in which all others lie.
    """

    at: float
    at_ns: int
    start_ns: int
    end_ns: int

    @classmethod
    def of(cls, life: m.Life, asked_ns: int, told_ns: int, start_ns: int, end_ns: int) -> "Frame":
        """The frame of an answer of the core, which was asked for and came at these Unix times.

        The core wrote it in between: in the middle, unless a sequence would then have ended after the request that
        waited for it.
        """
        ends = [one.marks[-1].at for one in life.sequences if one.marks and one.marks[-1].what == "ended"]
        latest = [end_ns + _nanoseconds(life.at - at) for at in ends]
        return cls(life.at, max(asked_ns, min([(asked_ns + told_ns) // 2, *latest])), start_ns, end_ns)

    def unix_ns(self, at: float) -> int:
        """A time of the core in Unix time; not cut to the request's span."""
        return self.at_ns - _nanoseconds(self.at - at)

    def cut(self, at_ns: int) -> int:
        """The nearest time in the request's span."""
        return max(self.start_ns, min(at_ns, self.end_ns))


def spans_of(lives: Iterable[tuple[int, m.SequenceLife]], frame: Frame) -> LifeSpans:
    """The phases and events of some sequences, each with the number of its prompt, within the request's span."""
    parts = [_Reader(prompt, life, frame).read() for prompt, life in lives]
    events = sorted((event for part in parts for event in part.events), key=lambda event: event.at_ns)
    return LifeSpans(tuple(span for part in parts for span in part.spans), tuple(events))


def _nanoseconds(seconds: float) -> int:
    return 0 if math.isnan(seconds) else round(1e9 * min(max(seconds, -MAX_AGE_S), MAX_AGE_S))


@dataclass
class _Phase:
    name: str
    start_ns: int
    attributes: Attributes
    events: list[SpanEvent] = field(default_factory=list)


class _Reader:
    """Reads one sequence's marks. Marks may be missing in the middle of a long life, so that each is taken for what it
    says, whatever came before."""

    def __init__(self, prompt: int, life: m.SequenceLife, frame: Frame) -> None:
        self._life = life
        self._frame = frame
        self._who: Attributes = {names.PROMPT: prompt, names.SEQUENCE: life.index}
        self._spans: list[ChildSpan] = []
        self._events: list[SpanEvent] = []
        self._phase: _Phase | None = None

    def read(self) -> LifeSpans:
        """All of them."""
        now_ns: int | None = None
        for mark in self._life.marks:
            at_ns = self._frame.unix_ns(mark.at)
            now_ns = at_ns if now_ns is None else max(now_ns, at_ns)
            self._take(mark, now_ns)
        self._close(self._frame.end_ns if now_ns is None else max(now_ns, self._frame.end_ns))
        return LifeSpans(tuple(self._spans), tuple(self._events))

    def _take(self, mark: m.Mark, at_ns: int) -> None:
        if mark.what in TOLD and self._frame.start_ns <= at_ns <= self._frame.end_ns:
            cause: Attributes = {names.CAUSE: mark.cause} if mark.cause else {}
            self._events.append(SpanEvent(f"baton.{mark.what}", at_ns, self._who | _where(mark) | cause))
        match mark.what:
            case "admitted":
                known: Attributes = {names.TOKENS: mark.tokens, names.CACHED: mark.cached}
                self._begin(names.PREFILL_SPAN, at_ns, _where(mark) | known)
            case "prefill":
                if self._phase is None or self._phase.name != names.PREFILL_SPAN:
                    self._begin(names.PREFILL_SPAN, at_ns, _where(mark))
                self._chunk(mark, at_ns)
            case "first_token" if self._waits:  # it was on its way when the sequence had to wait again
                pass
            case "first_token" | "resumed":
                self._begin(names.DECODE_SPAN, at_ns, self._where_now(mark))
            case "ended":
                self._ended(mark, at_ns)
            case what if what in WAITS:
                cause = {names.CAUSE: what}
                self._begin(names.QUEUE_SPAN, at_ns, cause | ({names.TOKENS: mark.tokens} if mark.tokens else {}))

    @property
    def _waits(self) -> bool:
        return self._phase is not None and self._phase.name == names.QUEUE_SPAN

    def _chunk(self, mark: m.Mark, at_ns: int) -> None:
        assert self._phase is not None
        if self._frame.start_ns <= at_ns <= self._frame.end_ns:
            self._phase.events.append(SpanEvent(names.CHUNK_EVENT, at_ns, {names.TOKENS: mark.tokens}))

    def _ended(self, mark: m.Mark, at_ns: int) -> None:
        if self._phase is not None:
            if mark.cause:
                self._phase.attributes[names.CAUSE] = mark.cause
            if self._phase.name == names.DECODE_SPAN:
                self._phase.attributes[names.TOKENS] = self._life.output
        self._close(at_ns)

    def _where_now(self, mark: m.Mark) -> Attributes:
        """Where it gets tokens: as the mark says, or where it was admitted."""
        if mark.executor or self._phase is None:
            return _where(mark)
        return {name: self._phase.attributes[name] for name in _WHERE if name in self._phase.attributes}

    def _begin(self, name: str, at_ns: int, attributes: Attributes) -> None:
        self._close(at_ns)
        self._phase = _Phase(name, at_ns, self._who | attributes)

    def _close(self, at_ns: int) -> None:
        """End the phase. One that lies outside of the request's span is left out."""
        phase, self._phase = self._phase, None
        frame = self._frame
        if phase is None or at_ns < frame.start_ns or phase.start_ns > frame.end_ns:
            return
        start_ns, end_ns = frame.cut(phase.start_ns), frame.cut(at_ns)
        self._spans.append(ChildSpan(phase.name, start_ns, end_ns, phase.attributes, tuple(phase.events)))


_WHERE = (names.EXECUTOR, names.EPOCH)


def _where(mark: m.Mark) -> Attributes:
    return {names.EXECUTOR: mark.executor, names.EPOCH: mark.epoch} if mark.executor else {}
