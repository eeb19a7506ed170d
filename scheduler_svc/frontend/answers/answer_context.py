"""What a frontend has to know of a request to write its answer. The core keeps it for whichever frontend goes on."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.errors import RequestRejected


class AnswerContext(msgspec.Struct, frozen=True, array_like=True, kw_only=True, forbid_unknown_fields=True):
    """How a request is to be answered. Prompts and their lengths are not in it: the core knows those.

    Attributes:
        version: of this struct; to be raised with any change, as requests outlive frontends.
        kind: which endpoint it came to.
        created: when, in Unix seconds.
        model: what the client calls it.
        num_prompts, n: prompts, and sequences for each.
        stop: stop strings.
        include_usage: whether the stream ends with a chunk of usage; so it does where a whole answer was asked for.
        is_resumable: whether it goes on for a while when its client's connection breaks.
    """

    version: Literal[1] = 1
    kind: Literal["completion", "chat"]
    created: int
    model: str
    num_prompts: Annotated[int, Meta(ge=1)]
    n: Annotated[int, Meta(ge=1)]
    stop: tuple[str, ...]
    include_usage: bool
    is_resumable: bool

    @property
    def num_choices(self) -> int:
        """Sequences in the answer."""
        return self.num_prompts * self.n

    def encode(self) -> bytes:
        """As it travels in `Submit.context`."""
        return _encoder.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "AnswerContext":
        """The reverse. Raises RequestRejected if another version of Baton wrote it, or none did."""
        try:
            return _decoder.decode(data)
        except msgspec.MsgspecError as error:
            message = f"this version of Baton cannot go on with a request that another one accepted: {error}"
            raise RequestRejected(message, "internal_error") from error


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnswerContext)
