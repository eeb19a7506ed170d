"""Texts and conversations to token ids and back, as clients ask for it beside any generation; vLLM's shapes."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from pydantic import BeforeValidator, Field, SkipValidation, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.chat_steps import ChatSteps
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.fields import FirstError, TemplateVariables
from scheduler_svc.frontend.requests.limits import MAX_ECHOED_BYTES, check_characters, check_token_ids
from scheduler_svc.frontend.requests.messages import ChatMessage
from scheduler_svc.frontend.requests.old_media import without_old_media
from scheduler_svc.frontend.requests.schemas import ChatRequest
from scheduler_svc.frontend.requests.strict import Strict
from scheduler_svc.frontend.requests.tools import ToolList
from scheduler_svc.frontend.text.tokenizer import Tokenizer

TOKENS_AT_ONCE = 4096  # that become text in one call: a ms


def _token_ids(value: Any) -> Any:
    if isinstance(value, list) and all(type(item) is int for item in value):
        return value
    raise PydanticCustomError("tokens_type", "it should be a list of token ids")


class TokenizeRequest(Strict):
    """POST /tokenize: a text, or a conversation as the chat template writes it."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[FirstError[ChatMessage], BeforeValidator(without_old_media)] = Field(default_factory=list)
    tools: ToolList = Field(default_factory=list)
    chat_template_kwargs: TemplateVariables = Field(default_factory=dict)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False

    @field_validator("messages")
    @classmethod
    def _is_no_prompt(cls, messages: list[ChatMessage], info: ValidationInfo) -> list[ChatMessage]:
        if info.data.get("prompt") is not None:
            raise PydanticCustomError("either", "it is not allowed with 'prompt'")
        return messages


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[SkipValidation[list[int]], BeforeValidator(_token_ids)]


class Tokenized(Struct, frozen=True):
    """Answer of /tokenize. `token_strs` are the tokens as text, if asked for: U+FFFD for what is no whole character."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(Struct, frozen=True):
    """Answer of /detokenize; special tokens have their text."""

    prompt: str


def tokenize(body: TokenizeRequest, tokenizer: Tokenizer, style: ChatStyle, max_model_len: int) -> ChatSteps[Tokenized]:
    """Token ids of a prompt or a conversation. Raises ApiError or RequestRejected as a request to generate would,
    but for what its answer would need."""
    limit = max_model_len or tokenizer.max_positions
    if body.prompt is None:
        if not body.messages:
            raise ApiError(
                400, "One of 'prompt' and 'messages' is needed.", code="missing_required_parameter", param="prompt"
            )
        chat = ChatRequest.model_construct(
            model="",
            max_tokens=1,
            messages=body.messages,
            tools=body.tools,
            chat_template_kwargs=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
        [tokens] = (yield from tokenize_chat(chat, tokenizer, 0, style)).prompts
    else:
        check_characters(len(body.prompt), tokenizer, limit, "prompt")
        [tokens] = tokenizer.encode([body.prompt], add_special_tokens=body.add_special_tokens is not False)
    return Tokenized(len(tokens), limit, tokens, _strings(tokens, tokenizer) if body.return_token_strs else UNSET)


def detokenize(
    body: DetokenizeRequest,
    tokenizer: Tokenizer,
    *,
    tokens_at_once: int = TOKENS_AT_ONCE,
    max_bytes: int = MAX_ECHOED_BYTES,
) -> Detokenized:
    """Their text. Raises ApiError for a token that the model does not have, and for a text of more than
    `max_bytes`."""
    check_token_ids("tokens", body.tokens, tokenizer.vocab_size)
    size = int(tokenizer.token_lengths[np.asarray(body.tokens, np.int64)].sum(dtype=np.int64))
    if size > max_bytes:
        message = f"The text of these tokens has {size} bytes; {max_bytes} are allowed: ask for fewer at once."
        raise ApiError(400, message, code="invalid_value", param="tokens")
    detokenizer = tokenizer.whole_text()
    # In pieces: to decode megabytes in one call would let no other thread have a turn.
    starts = range(0, len(body.tokens), tokens_at_once)
    texts = [detokenizer.feed(body.tokens[start : start + tokens_at_once]) for start in starts]
    return Detokenized("".join(texts) + detokenizer.flush())


def _strings(tokens: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.token_texts.of(token).text for token in tokens]
