"""What a response in the background leaves behind beside its outcome: its tokens, from which its stream is written
again, event for event."""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from common import messages as m
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.delta_parts import parts_of
from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.responses.events import ResponseEvents, ResponseSpec
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
    def decode(cls, data: bytes) -> "TokenRecord":
        """The reverse. Raises msgspec.MsgspecError for what is not one."""
        return _decoder.decode(data)


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


def written(deltas: Sequence[m.TokenDelta], generation: Generation, events: ResponseEvents) -> Iterator[list[bytes]]:
    """The events of tokens that came before, in steps that keep no other stream waiting; none of a failure, and none
    after it.

    Args:
        generation: reads them; of `follow`.
    """
    for part in parts_of([(0, delta) for delta in deltas], 0, are_parsed=True):
        pieces, failure = generation.read(part)
        yield [*events.of(pieces)]
        if failure is not None:
            return
