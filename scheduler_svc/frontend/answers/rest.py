"""How the rest of an answer is written, after the last event that its client has."""

from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.event_ids import Position, number_of
from scheduler_svc.frontend.answers.events import ChunkEvents, Events
from scheduler_svc.frontend.answers.formats import format_of
from scheduler_svc.frontend.answers.messages_api.events import MessageEvents


def rest_of(
    request_id: str, context: AnswerContext, num_prompt_tokens: int, last_event_id: str
) -> tuple[Position, Events]:
    """From where the pieces of an answer are made again, and what becomes of them.

    Args:
        last_event_id: empty for the whole stream.

    Raises:
        ApiError: (400) it is no id of an event of this request.
    """
    start = Position.start(context.num_choices)
    if context.kind == "message":
        after = number_of(last_event_id)
        return start, MessageEvents(request_id, context, num_prompt_tokens, has_ids=True, after=after)
    position = Position.after(last_event_id, context.num_choices) if last_event_id else start
    return position, ChunkEvents(format_of(request_id, context), position, has_ids=True)
