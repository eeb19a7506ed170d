"""What a response in the background leaves behind beside its outcome: its tokens, from which its stream is written
again, event for event."""

from collections.abc import AsyncIterator, Callable

import msgspec
from msgspec.structs import replace

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.responses.events import Outcome, ResponseEvents, ResponseSpec
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.text.tokenizer import Tokenizer


class TokenRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All tokens of a response.

    Attributes:
        version: of this struct.
        context: an `AnswerContext`, encoded.
        deltas: with the tokens in their order; neighbours of one model are joined.
    """

    version: int
    spec: ResponseSpec
    context: bytes
    num_prompt_tokens: int
    deltas: list[m.TokenDelta]

    def encode(self) -> bytes:
        """The bytes for the store, without the head."""
        return _encoder.encode(replace(self, spec=self.spec.with_head(b"")))

    @classmethod
    def decode(cls, data: bytes, head: bytes) -> "TokenRecord":
        """The reverse. Raises msgspec.MsgspecError for what is not one."""
        record = _decoder.decode(data)
        return replace(record, spec=record.spec.with_head(head))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TokenRecord)
RECORD_VERSION = 1


def follow(
    spec: ResponseSpec,
    context: bytes,
    num_prompt_tokens: int,
    tokenizer: Tokenizer,
    *,
    tell: Callable[[m.Cancel | m.Detach], None] = lambda _: None,
) -> tuple[DeltaQueue, Generation]:
    """A reader of a response that others read, too. The caller puts the deltas into the queue.

    Args:
        tell: hears what the reader has to say to the core.
    """
    decoded = AnswerContext.decode(context)
    queue = DeltaQueue(tell, lambda _: None, is_streamed=False, is_resumable=True)
    queue.add(spec.response_id, 0, 1)
    answer = AnswerSpec(spec.response_id, decoded, num_prompt_tokens, Position.start(1))
    return queue, Generation(queue, tokenizer, answer)


async def replay(record: TokenRecord, outcome: Outcome, tokenizer: Tokenizer, after: int) -> AsyncIterator[bytes]:
    """The stream of a response that has ended, after the event with this number.

    Args:
        outcome: what it has come to.
    """
    queue, generation = follow(record.spec, record.context, record.num_prompt_tokens, tokenizer)
    events = ResponseEvents(record.spec, after=after)
    events.settle(outcome)
    failed = outcome.status in ("failed", "cancelled")
    for delta in record.deltas:
        finish_reason = None if failed else delta.finish_reason
        queue.put(replace(delta, index=0, finish_reason=finish_reason))
    if failed:
        queue.put(m.TokenDelta(request_id=record.spec.response_id, index=0, token_ids=b"", finish_reason="cancelled"))
    try:
        async for pieces in generation.pieces():
            for part in events.of(pieces):
                yield part
        yield events.ended(generation.usage, generation.model)
    except RequestRejected as rejected:
        yield events.failed(ApiError.of_rejection(rejected))  # as it was settled
