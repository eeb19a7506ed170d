"""The conversation that a request of the Responses API stands for, as a chat."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from scheduler_svc.frontend.answers.responses.called_tool import INPUT, CalledTool
from scheduler_svc.frontend.answers.responses.thoughts import opened_thought
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.messages import TextPart
from scheduler_svc.frontend.requests.responses.items import (
    AdditionalToolsItem,
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    Item,
    ItemReference,
    MessageItem,
    ReasoningItem,
)
from scheduler_svc.frontend.requests.responses.schemas import ResponseRequest
from scheduler_svc.frontend.requests.responses.tools import flat_choice, flat_name, flat_tools
from scheduler_svc.frontend.requests.sampling import SamplingFields
from scheduler_svc.frontend.requests.schemas import ChatRequest
from scheduler_svc.frontend.requests.thinking import ThinkingFields
from scheduler_svc.frontend.requests.validation import describe_validation

NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
}
"""A chat's parameters that have other names here."""


class ResponseChat(NamedTuple):
    """The chat that generates what a response is made of.

    Attributes:
        called: what its calls are on Responses, by the names that the model knows.
    """

    request: ChatRequest
    called: Mapping[str, CalledTool]


def chat_of(body: ResponseRequest, items: Sequence[Item]) -> ResponseChat:
    """Make the chat of a request. Raises ApiError (400) for what no chat can be.

    Args:
        items: of the whole conversation, without references.
    """
    messages = _messages(items)
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    if not messages:
        raise ApiError(400, "The conversation is empty.", code="invalid_value", param="input")
    content: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "stream": body.stream,
        "max_completion_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls,
        "chat_template_kwargs": body.chat_template_kwargs,
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        "response_format": _response_format(body),
        "logprobs": body.has_logprobs,
        "top_logprobs": body.top_logprobs,
    }
    same = (*SamplingFields.model_fields, *ThinkingFields.model_fields)
    said = {name: getattr(body, name) for name in same if name in body.model_fields_set}
    thinking = said.pop("thinking", None)
    said.pop("logit_bias", None)
    try:
        chat = ChatRequest.model_validate(content := content | said)
    except ValidationError as error:
        raise describe_validation(error, ChatRequest, content) from error
    tools = flat_tools(body.tools, (t for item in items if isinstance(item, AdditionalToolsItem) for t in item.tools))
    checked = {  # what is not written as a chat has it
        "tools": list(tools.functions.values()),
        "tool_choice": flat_choice(body.tool_choice, tools),
        "logit_bias": body.logit_bias,
        "thinking": thinking,
    }
    return ResponseChat(chat.model_copy(update=checked), tools.called)


def _response_format(body: ResponseRequest) -> dict[str, Any] | None:
    form = body.text and body.text.format
    if not form or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": form.name, "schema": form.json_schema}}


def _messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Items as messages: a thought, a text and calls that follow each other are one message of the assistant's."""
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None  # the assistant's that more may come to
    for item in items:
        match item:
            case ReasoningItem():
                if turn is None or "content" in turn or "tool_calls" in turn:
                    turn = {"role": "assistant"}
                    messages.append(turn)
                turn.setdefault("reasoning_content", []).append(_thought(item))
            case MessageItem(role="assistant"):
                if turn is None or "content" in turn or "tool_calls" in turn:
                    turn = {"role": "assistant"}
                    messages.append(turn)
                turn["content"] = _content(item.content)
            case FunctionCallItem() | CustomCallItem():
                if turn is None:
                    turn = {"role": "assistant"}
                    messages.append(turn)
                function = {"name": flat_name(item.name, item.namespace), "arguments": _arguments(item)}
                turn.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
            case CallOutputItem():
                turn = None
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)})
            case MessageItem():
                turn = None
                messages.append({"role": item.role, "content": _content(item.content)})
            case AdditionalToolsItem():
                pass
            case ItemReference():
                raise AssertionError("references were to be replaced")
    for message in messages:
        if "reasoning_content" in message:
            message["reasoning_content"] = "".join(message["reasoning_content"])
    return messages


def _arguments(item: FunctionCallItem | CustomCallItem) -> str:
    if isinstance(item, FunctionCallItem):
        return item.arguments
    return json.dumps({INPUT: item.input}, ensure_ascii=False)


def _content(parts: Sequence[TextPart]) -> list[dict[str, str]]:
    return [{"type": "text", "text": part.text} for part in parts]


def _thought(item: ReasoningItem) -> str:
    """What is there of the thought: its text, or what this API wrote as `encrypted_content`, or the summary."""
    if item.content:
        return "".join(part.text for part in item.content)
    sealed = None if item.encrypted_content is None else opened_thought(item.encrypted_content)
    return "".join(part.text for part in item.summary) if sealed is None else sealed
