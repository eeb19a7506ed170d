"""An answer as one of Anthropic's messages, whole or event by event."""

from collections.abc import Iterable, Iterator

from msgspec import UNSET, Struct

from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.generation import Generation
from scheduler_svc.frontend.answers.messages_api.blocks import MessageBlocks, WholeBlocks
from scheduler_svc.frontend.answers.messages_api.objects import (
    Message,
    MessageDelta,
    MessageEnd,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessageUsage,
    ThinkingDetails,
)
from scheduler_svc.frontend.answers.numbered_events import NumberedEvent, NumberedEvents
from scheduler_svc.frontend.answers.openai_objects import Usage, to_json
from scheduler_svc.frontend.errors import ApiError


class MessageEvents(NumberedEvents):
    """The events of a message. Their numbers are their ids.

    Args:
        answer_id: id of the message.
        num_prompt_tokens: with those that are in the prefix cache: the first event comes before anything is known of
            that, and the last but one has both numbers.
        has_ids: False leaves the ids out.
        after: number of the last event that the client has; -1 for none.
    """

    def __init__(
        self, answer_id: str, context: AnswerContext, num_prompt_tokens: int, *, has_ids: bool, after: int = -1
    ) -> None:
        super().__init__(after=after)
        self._context = context
        self._beginning = Message(answer_id, context.model, [], MessageUsage(num_prompt_tokens, 0))
        self._blocks = MessageBlocks(answer_id)
        self._end = MessageEnd("end_turn", None)
        self._has_ids = has_ids

    def failed(self, error: ApiError) -> bytes:
        """The event of a failure. It has no number: the answer may go on elsewhere, where it has none."""
        return self.begun() + b"".join(_written(name, data) for name, data in self._failing(error))

    def _opening(self) -> Iterator[NumberedEvent]:
        yield _named(MessageStart(self._beginning))

    def _of_piece(self, piece: Piece) -> Iterator[NumberedEvent]:
        yield from map(_named, self._blocks.add(piece))
        if piece.finish_reason is not None:
            yield from map(_named, self._blocks.end())
            self._end = _end_of(piece, self._context)

    def _ending(self, usage: Usage, computed_by: str) -> Iterator[NumberedEvent]:
        yield _named(MessageDelta(self._end, message_usage(usage)))
        yield _named(MessageStop())

    def _failing(self, error: ApiError) -> Iterable[NumberedEvent]:
        return [("error", error.message_answer())]

    def _write(self, name: str, data: Struct, number: int) -> bytes:
        return _written(name, data, b"id: %d\n" % number if self._has_ids else b"")


async def whole_message(generation: Generation) -> Message:
    """The message of a generation that has no more than one choice. Raises as `Generation.pieces` does."""
    spec = generation.spec
    blocks = MessageBlocks(spec.answer_id)
    whole = WholeBlocks()
    end = MessageEnd("end_turn", None)
    async for pieces in generation.pieces():
        for piece in pieces:
            whole.take(blocks.add(piece))
            if piece.finish_reason is not None:
                end = _end_of(piece, spec.context)
    whole.take(blocks.end())
    return Message(
        spec.answer_id,
        spec.context.model,
        whole.blocks(),
        message_usage(generation.usage),
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
    )


def message_usage(usage: Usage) -> MessageUsage:
    """The same numbers in Anthropic's names."""
    num_cached, details = usage.prompt_tokens_details.cached_tokens, usage.completion_tokens_details
    return MessageUsage(
        usage.prompt_tokens - num_cached,
        usage.completion_tokens,
        num_cached,
        output_tokens_details=UNSET if details is UNSET else ThinkingDetails(details.reasoning_tokens),
    )


def _end_of(piece: Piece, context: AnswerContext) -> MessageEnd:
    """Why a message ended with its last piece."""
    match piece.finish_reason:
        case "length":
            is_full = context.fills_window and not piece.has_cut_call
            return MessageEnd("model_context_window_exceeded" if is_full else "max_tokens", None)
        case "tool_calls":
            return MessageEnd("tool_use", None)
        case _ if piece.stop_string:
            return MessageEnd("stop_sequence", piece.stop_string)
        case _:
            return MessageEnd("end_turn", None)


def _named(event: MessageEvent) -> NumberedEvent:
    return str(event.__struct_config__.tag), event


def _written(name: str, data: Struct, id_line: bytes = b"") -> bytes:
    """An event, its id last: clients that know of none read no further than the data."""
    return b"event: %b\ndata: %b\n%b\n" % (name.encode(), to_json(data), id_line)
