"""What a frontend must know of a request to write its answer. The core keeps it for the frontend that continues."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.parsing.message import MessageRules

AnswerKind = Literal["completion", "chat", "message", "response"]


class AnswerContext(msgspec.Struct, frozen=True, array_like=True, kw_only=True, forbid_unknown_fields=True):
    """How a request is to be answered. It holds neither prompts nor their lengths: the core knows those.

    Attributes:
        version: of this struct; any change must raise it, as requests outlive frontends. A new field stands at the end,
            with a default that says what contexts without it meant: they are read as they are.
        kind: which endpoint the request came to; since version 5 also Messages and Responses.
        created: when the request came, in Unix seconds.
        model: name that the client uses for the model.
        num_prompts, n: number of prompts, and of sequences for each.
        stop: stop strings.
        include_usage: whether the stream ends with a chunk of usage; true also where a whole answer was asked for.
        is_resumable: whether the request continues for a while when its client's connection breaks.
        logprobs: of the request's `SamplingParams`; since version 2, as what follows.
        min_tokens: stop strings do not end a text before so many tokens.
        include_stop_str_in_output: whether texts end with their stop string or stop token.
        skip_special_tokens: whether special tokens have no text.
        echo: whether each text begins with its prompt's; since version 3, as what follows. The prompt's
            log-probabilities then come with it, as many as `logprobs` says.
        prompt_logprobs: log-probabilities of each prompt token that a whole answer lists: as in `SamplingParams`, but
            without those that `echo` needs.
        is_prompt_only: whether no generated token is shown, though the core had to be asked for one.
        message: how a chat's text is taken apart; since version 4, as what follows. Its last three fields came with
            version 7.
        has_chunk_usage: whether every chunk of the stream carries the usage so far.
        hides_thought: whether the answer is without its thought.
        fills_window: whether it may have as many tokens as the model's positions leave, which are fewer than the client
            asked for; since version 5, as the kinds.
        traceparent: W3C's name of the span of the request, if it is traced; since version 6.
    """

    version: Literal[1, 2, 3, 4, 5, 6, 7] = 7
    kind: AnswerKind
    created: int
    model: str
    num_prompts: Annotated[int, Meta(ge=1)]
    n: Annotated[int, Meta(ge=1)]
    stop: tuple[str, ...]
    include_usage: bool
    is_resumable: bool
    logprobs: Annotated[int, Meta(ge=0, le=m.MAX_LOGPROBS)] = 0
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    echo: bool = False
    prompt_logprobs: Annotated[int, Meta(ge=0, le=m.MAX_LOGPROBS)] = 0
    is_prompt_only: bool = False
    message: MessageRules = MessageRules()
    has_chunk_usage: bool = False
    hides_thought: bool = False
    fills_window: bool = False
    traceparent: Annotated[str, Meta(max_length=55)] = ""

    @property
    def num_prompt_logprobs(self) -> int:
        """`SamplingParams.prompt_logprobs` of the request: enough for all that is shown."""
        return max(self.logprobs if self.echo else 0, self.prompt_logprobs)

    @property
    def num_choices(self) -> int:
        """Sequences in the answer."""
        return self.num_prompts * self.n

    @property
    def is_numbered(self) -> bool:
        """Whether its events have numbers (`numbered_events.py`)."""
        return self.kind in ("message", "response")

    def encode(self) -> bytes:
        """The bytes for `Submit.context`."""
        return _encoder.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "AnswerContext":
        """The reverse of `encode`. Raises RequestRejected if this version of Baton did not write `data`."""
        try:
            return _decoder.decode(data)
        except msgspec.MsgspecError as error:
            message = f"this version of Baton cannot go on with a request that another one accepted: {error}"
            raise RequestRejected(message, "internal_error") from error


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnswerContext)
