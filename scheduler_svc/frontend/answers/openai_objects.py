"""OpenAI's answer objects. msgspec encodes these structs an order of magnitude faster than pydantic would."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType


class PromptTokensDetails(Struct, frozen=True):
    """How much of the prompts was in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(Struct, frozen=True):
    """How much of the answer was thought, with its tags."""

    reasoning_tokens: int


class Usage(Struct, frozen=True):
    """Tokens that were read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class TopLogprob(Struct, frozen=True, gc=False):
    """A token that could have stood in a place, and how likely it was; `bytes` is null for an id that no token has."""

    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprob(Struct, frozen=True, gc=False):
    """A token of an answer, and the likeliest ones in its place, in descending order."""

    token: str
    bytes: list[int] | None
    logprob: float
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    """Log-probabilities in /v1/chat/completions."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(Struct, frozen=True):
    """Log-probabilities in /v1/completions: lists with an entry for each token. The prompt's first token has None."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(Struct, frozen=True, gc=False):
    """How likely a token was in a place of the prompt. `rank` is 1 for the likeliest token of the vocabulary; null for
    what a journal of an earlier release has."""

    logprob: float
    rank: int | None
    decoded_token: str


class CompletionChoice(Struct, frozen=True):
    """A text, or a piece of one. Its `prompt_logprobs` are those of its prompt, as vLLM has them."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: CompletionLogprobs | Raw | None = None
    prompt_logprobs: Raw | UnsetType = UNSET


class Completion(Struct, frozen=True):
    """Answer of /v1/completions, and each chunk of its stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str | None
    usage: Usage | UnsetType | None = UNSET


class CallFunction(Struct, frozen=True):
    """A function that is called; a chunk has its name only where the call begins, and new text of its arguments."""

    name: str | UnsetType
    arguments: str


class Call(Struct, frozen=True):
    """A call of a tool; chunks have all but the index only where it begins, and only they have the index."""

    index: int | UnsetType
    id: str | UnsetType
    type: str | UnsetType
    function: CallFunction


class AssistantMessage(Struct, frozen=True):
    """What the model said. The thought has two names, as clients ask for either."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    """One answer of several."""

    index: int
    message: AssistantMessage
    finish_reason: str | None
    logprobs: ChatLogprobs | Raw | None = None


class Delta(Struct, frozen=True):
    """What a chunk adds to a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True):
    """One choice's part of a chunk."""

    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


class ChatCompletion(Struct, frozen=True):
    """Answer of /v1/chat/completions, and each chunk of its stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice] | list[ChatChunkChoice]
    system_fingerprint: str | None
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: Raw | UnsetType = UNSET


_encoder = msgspec.json.Encoder()  # stateless between calls


def to_json(value: Struct | list[Any] | None) -> bytes:
    """The JSON of an answer, or of a part of one."""
    return _encoder.encode(value)
