"""Anthropic's requests, tokenized: as chats, whose errors name the parameters that the client sent."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.chat_steps import ChatSteps
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.messages_api.chat import chat_request
from scheduler_svc.frontend.requests.messages_api.schemas import MessageRequest
from scheduler_svc.frontend.requests.renaming import tokenized_in_words_of
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest
from scheduler_svc.frontend.text.tokenizer import Tokenizer


def tokenize_message(
    body: MessageRequest, tokenizer: Tokenizer, max_model_len: int, style: ChatStyle
) -> ChatSteps[TokenizedRequest]:
    """A /v1/messages request, tokenized; arguments and errors as for `tokenize_chat`. An answer may be as long as the
    model's positions allow where the client asks for more: clients have to name a limit, and name a large one."""
    chat = chat_request(body, f"msg_{secrets.token_hex(12)}", style)
    if max_model_len:
        chat = chat.model_copy(update={"max_tokens": None})
    try:
        steps = tokenize_chat(chat, tokenizer, max_model_len, style)
        tokenized = yield from tokenized_in_words_of(_names(body), steps)
    except ApiError as error:
        if error.code != "context_length_exceeded":
            raise
        # By these words agents know that they have to sum up.
        message = f"prompt is too long: {error.message}"
        raise ApiError(error.status, message, code=error.code, param=error.param) from error
    [params] = tokenized.params
    if body.max_tokens > params.max_tokens:
        return tokenized
    params = msgspec.structs.replace(params, max_tokens=body.max_tokens)
    return replace(tokenized, params=[params], may_shorten=False)


def tokenize_to_count(
    body: MessageRequest,
    tokenizer: Tokenizer,
    max_model_len: int,
    style: ChatStyle,
) -> ChatSteps[TokenizedRequest]:
    """The same, for its prompt alone: that may be too long to be answered, and no grammar is compiled."""
    only_prompt = body.model_copy(update={"max_tokens": 1})
    tokenized = yield from tokenize_message(only_prompt, tokenizer, 0, style)
    return replace(tokenized, grammar=None)


def message_context(tokenized: TokenizedRequest, body: MessageRequest, model: str) -> AnswerContext:
    """How a new request is to be answered.

    Args:
        model: its name in the answer.
    """
    return AnswerContext(
        kind="message",
        created=int(time.time()),
        model=model,
        num_prompts=1,
        n=1,
        stop=tokenized.stop,
        include_usage=True,
        is_resumable=tokenized.is_resumable,
        message=tokenized.message,
        hides_thought=body.thinking is not None and body.thinking.display == "omitted",
        fills_window=tokenized.may_shorten,
    )


def _names(body: MessageRequest) -> Mapping[str, str]:
    """A chat's parameters that have other names in this request."""
    form = "output_format" if body.output_format is not None else "output_config.format"
    return {
        "thinking_token_budget": "thinking.budget_tokens",
        "reasoning_effort": "thinking",
        "response_format": form,
        "response_format.json_schema.schema": f"{form}.schema",
    }
