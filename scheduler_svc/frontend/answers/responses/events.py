"""A response while it is written: pieces in, events out, and what becomes of them."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from scheduler_svc.frontend.answers.call_ids import call_id
from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.numbered_events import NumberedEvent, NumberedEvents
from scheduler_svc.frontend.answers.openai_objects import Usage, to_json
from scheduler_svc.frontend.answers.responses.called_tool import CalledTool
from scheduler_svc.frontend.answers.responses.items import OpenCall, OpenCustomCall, OpenItem, OpenMessage, OpenThought
from scheduler_svc.frontend.answers.responses.objects import (
    NO_ITEMS,
    NO_TAIL,
    IncompleteDetails,
    ItemStatus,
    OutputItem,
    ResponseData,
    ResponseError,
    ResponseStatus,
    ResponseTail,
    ResponseUsage,
    response_json,
)
from scheduler_svc.frontend.errors import ApiError

NEVER = 2**53  # more events than any response has
# Events of a response in the background before the first that its tokens make, and the status in each.
BEGINNING: tuple[tuple[str, ResponseStatus], ...] = (
    ("response.created", "queued"),
    ("response.queued", "queued"),
    ("response.in_progress", "in_progress"),
)
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{24})[io][0-9a-f]{1,8}", re.ASCII)
_ERROR_OF_STATUS = {400: "invalid_prompt", 422: "invalid_prompt", 429: "rate_limit_exceeded"}  # others are the server's


class ResponseSpec(Struct, frozen=True, array_like=True):
    """What a response's events depend on, beside its tokens.

    Attributes:
        response_id: `resp_` and 24 hexadecimal digits.
        head: JSON of its `ResponseHead`.
        in_summary: whether its thoughts stand in summaries.
        is_sealed: whether its thoughts have `encrypted_content`.
        is_background: whether it waits in the store first.
        tools: what calls of these names are, where they are no calls of a function of that name.
    """

    response_id: str
    head: bytes
    in_summary: bool
    is_sealed: bool
    is_background: bool
    tools: dict[str, CalledTool] = {}

    def with_head(self, head: bytes) -> "ResponseSpec":
        """The same with another head: it is stored once, and not in each thing that needs it."""
        return replace(self, head=head)


@dataclass(frozen=True)
class Outcome:
    """What a response has come to.

    Attributes:
        output: JSON of its items.
        tail: JSON of its `ResponseTail`.
    """

    status: ResponseStatus
    output: bytes = NO_ITEMS
    tail: bytes = NO_TAIL

    @classmethod
    def failed(cls, code: str, message: str) -> "Outcome":
        """Of a response that has no answer."""
        return cls("failed", tail=to_json(ResponseTail(error=ResponseError(code, message))))


class ResponseEvents(NumberedEvents):
    """Writes a response.

    Args:
        after: number of the last event that the client has; `NEVER` makes no events.
    """

    def __init__(self, spec: ResponseSpec, *, after: int = -1) -> None:
        super().__init__(after=after)
        self._spec = spec
        self._items: list[OutputItem] = []  # those that have ended
        self._open: OpenItem | None = None
        self._is_cut = False
        self._outcome: Outcome | None = None

    def outcome(self, usage: Usage) -> Outcome:
        """What a response has come to whose last piece was read. The first call settles it, and its time."""
        if self._outcome is None:
            status: ResponseStatus = "incomplete" if self._is_cut else "completed"
            details = IncompleteDetails("max_output_tokens") if self._is_cut else None
            self._outcome = self._came_to(status, usage, details=details)
        return self._outcome

    def failure(self, error: ApiError, usage: Usage | None = None) -> Outcome:
        """The same of one that failed, or was cancelled."""
        if self._outcome is None:
            if error.code == "cancelled":
                self._outcome = self._came_to("cancelled", usage)
            else:
                code = _ERROR_OF_STATUS.get(error.status, "server_error")
                self._outcome = self._came_to("failed", usage, error=ResponseError(code, error.message))
        return self._outcome

    def _came_to(
        self,
        status: ResponseStatus,
        usage: Usage | None,
        *,
        error: ResponseError | None = None,
        details: IncompleteDetails | None = None,
    ) -> Outcome:
        items = self._items if self._open is None else [*self._items, self._open.item("incomplete")]
        tail = ResponseTail(
            completed_at=int(time.time()) if status in ("completed", "incomplete") else None,
            error=error,
            incomplete_details=details,
            usage=None if usage is None else ResponseUsage.of(usage),
        )
        return Outcome(status, to_json(list(items)), to_json(tail))

    def _opening(self) -> Iterator[NumberedEvent]:
        begun = ResponseData(response_json(self._spec.head, "in_progress"))
        if self._spec.is_background:
            for name, status in BEGINNING:
                yield name, begun if status == "in_progress" else ResponseData(response_json(self._spec.head, status))
        else:
            yield "response.created", begun
            yield "response.in_progress", begun

    def _of_piece(self, piece: Piece) -> Iterator[NumberedEvent]:
        if piece.thought:
            thought = self._open if isinstance(self._open, OpenThought) else None
            if thought is None:
                in_summary, is_sealed = self._spec.in_summary, self._spec.is_sealed
                thought = OpenThought(*self._place("rs"), in_summary=in_summary, is_sealed=is_sealed)
                yield from self._begin(thought)
            yield from thought.grown(piece.thought)
        for part in piece.calls:
            if not part.name and self._open is not None:
                yield from self._open.grown(part.arguments)
        if piece.text:
            yield from self._said(piece)
        for part in piece.calls:
            if part.name:
                called = call_id(self._spec.response_id, piece.choice, part.number)
                tool = self._spec.tools.get(part.name) or CalledTool(part.name)
                prefix, kind = ("ctc", OpenCustomCall) if tool.is_custom else ("fc", OpenCall)
                begun = kind(*self._place(prefix), called, tool)
                yield from self._begin(begun)
                if part.arguments:
                    yield from begun.grown(part.arguments)
        if piece.finish_reason is not None:
            self._is_cut = piece.finish_reason == "length"
            if self._open is None and not self._items:
                yield from self._begin(OpenMessage(*self._place("msg")))
            yield from self._end("incomplete" if self._is_cut else "completed")

    def _said(self, piece: Piece) -> Iterator[NumberedEvent]:
        message = self._open if isinstance(self._open, OpenMessage) else None
        if message is None:
            message = OpenMessage(*self._place("msg"))
            yield from self._begin(message)
        yield from message.grown(piece.text, piece.logprobs)

    def _place(self, prefix: str) -> tuple[str, int]:
        """The id and the index of the next item."""
        index = len(self._items) + (self._open is not None)
        return item_id(prefix, self._spec.response_id, index), index

    def _begin(self, item: OpenItem) -> Iterator[NumberedEvent]:
        """The next item, after the end of the one before."""
        yield from self._end("completed")
        self._open = item
        yield from item.begun()

    def _end(self, status: ItemStatus) -> Iterator[NumberedEvent]:
        if self._open is None:
            return
        yield from self._open.ended(status)
        self._items.append(self._open.item(status))
        self._open = None

    def _ending(self, usage: Usage, computed_by: str) -> Iterator[NumberedEvent]:
        yield self._last(self.outcome(usage))

    def _failing(self, error: ApiError) -> Iterator[NumberedEvent]:
        yield self._last(self.failure(error))

    def _last(self, outcome: Outcome) -> NumberedEvent:
        data = ResponseData(response_json(self._spec.head, outcome.status, outcome.output, outcome.tail))
        return last_event(outcome.status), data

    def _write(self, name: str, data: Struct, number: int) -> bytes:
        fields = to_json(data)
        text = name.encode()
        return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b\n\n' % (text, text, number, fields[1:])


def last_event(status: ResponseStatus) -> str:
    """The name of the last event of a response that ends so."""
    return f"response.{status if status in ('completed', 'incomplete') else 'failed'}"


def event_around(name: str, number: int) -> tuple[bytes, bytes]:
    """What stands before and after a response's JSON in an event of the whole response."""
    text = name.encode()
    return b'event: %b\ndata: {"type":"%b","sequence_number":%d,"response":' % (text, text, number), b"}\n\n"


def item_id(prefix: str, response_id: str, index: int, *, is_input: bool = False) -> str:
    """The id of an item of a response, which says of which: a reference to it names nothing else."""
    return f"{prefix}_{response_id.removeprefix('resp_')}{'i' if is_input else 'o'}{index:x}"


def response_of_item(name: str) -> str | None:
    """The id of the response that an item's id names; None if it is not such an id."""
    match = _ITEM_ID.fullmatch(name)
    return None if match is None else "resp_" + match[1]
