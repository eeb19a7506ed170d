"""A request of Anthropic's API as the chat that it is."""

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import Any

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.messages import CalledFunction, ChatMessage, TextPart, ToolCall
from scheduler_svc.frontend.requests.messages_api.blocks import Block, ResultText, Turn
from scheduler_svc.frontend.requests.messages_api.schemas import MessageRequest, MessageTool, MessageToolChoice
from scheduler_svc.frontend.requests.schemas import ChatRequest
from scheduler_svc.frontend.requests.structured import JsonSchemaFormat, ResponseFormat
from scheduler_svc.frontend.requests.tools import Function, Tool, ToolChoice

ERROR = "Error: "  # chat templates have no other way to say that a call failed


def chat_request(body: MessageRequest, request_id: str, style: ChatStyle) -> ChatRequest:
    """The chat. Raises ApiError (400) for a conversation that cannot be continued.

    Args:
        request_id: of the answer, if the client names none.
        style: of the model's chats.
    """
    choice = body.tool_choice
    return ChatRequest.model_construct(  # all of it has been checked
        model=body.model,
        messages=[*_system(body.system), *_conversation(body.messages)],
        continue_final_message=_continues(body.messages),
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        stream=body.stream,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        tools=[_tool(tool) for tool in body.tools],
        tool_choice=None if choice is None else _choice(choice),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        response_format=_format(body),
        cache_salt=body.cache_salt,
        priority=body.priority,
        timeout_s=body.timeout_s,
        request_id=body.request_id or request_id,
        resumable=body.resumable,
        **_thinking(body, style),
    )


def _system(texts: Sequence[ResultText]) -> list[ChatMessage]:
    return [ChatMessage.model_construct(role="system", content=_parts(texts))] if texts else []


def _continues(turns: Sequence[Turn]) -> bool:
    """Whether the answer goes on with the last message, which may consist of several turns."""
    last = list(takewhile(lambda turn: turn.role == "assistant", reversed(turns)))
    if any(block.type == "tool_use" for turn in last for block in turn.content):
        message = "The last message calls a tool: send its result behind that, in a message of the user."
        raise ApiError(400, message, code="invalid_value", param="messages")
    return bool(last)


def _conversation(turns: Sequence[Turn]) -> Iterator[ChatMessage]:
    """Neighbours of one role are one message."""
    for role, some in groupby(turns, key=lambda turn: turn.role):
        blocks = [block for turn in some for block in turn.content]
        match role:
            case "assistant":
                yield _said(blocks)
            case "user":
                yield from _asked(blocks)
            case "system":
                yield ChatMessage.model_construct(role="system", content=_parts(blocks))


def _said(blocks: Sequence[Block]) -> ChatMessage:
    """What the assistant thought, said and called."""
    thought = "\n".join(block.thinking for block in blocks if block.type == "thinking" and block.thinking)
    calls = [
        ToolCall.model_construct(
            id=block.id, function=CalledFunction.model_construct(name=block.name, arguments=block.input)
        )
        for block in blocks
        if block.type == "tool_use"
    ]
    texts = [block for block in blocks if block.type == "text"]
    return ChatMessage.model_construct(
        role="assistant", content=_parts(texts), tool_calls=calls, reasoning_content=thought or None
    )


def _asked(blocks: Sequence[Block]) -> Iterator[ChatMessage]:
    """Results of tools, a message for each, and what the user says between them."""
    for is_text, some in groupby(blocks, key=lambda block: block.type == "text"):
        if is_text:
            yield ChatMessage.model_construct(role="user", content=_parts(list(some)))
        else:
            yield from map(_result, some)


def _result(block: Block) -> ChatMessage:
    parts = _parts(block.content)
    if block.is_error:
        text = ERROR + "\n".join(part.text for part in parts)
        parts = [TextPart.model_construct(type="text", text=text)]
    return ChatMessage.model_construct(role="tool", tool_call_id=block.tool_use_id, content=parts)


def _parts(blocks: Sequence[Block | ResultText]) -> list[TextPart]:
    return [TextPart.model_construct(type="text", text=block.text) for block in blocks]


def _tool(tool: MessageTool) -> Tool:
    # Templates show what was said, in the order of these.
    said: dict[str, Any] = {} if tool.description is None else {"description": tool.description}
    function = Function.model_construct(name=tool.name, **said, parameters=tool.input_schema, strict=tool.strict)
    return Tool.model_construct(type="function", function=function)


def _choice(choice: MessageToolChoice) -> ToolChoice:
    match choice.type:
        case "tool":
            assert choice.name is not None
            return ToolChoice("required", (choice.name,), is_one=True)
        case "any":
            return ToolChoice("required")
        case "auto" | "none" as mode:
            return ToolChoice(mode)


def _format(body: MessageRequest) -> ResponseFormat | None:
    if body.format is None:
        return None
    schema = JsonSchemaFormat.model_construct(name="output", json_schema=body.format.json_schema)
    return ResponseFormat.model_construct(type="json_schema", json_schema=schema)


def _thinking(body: MessageRequest, style: ChatStyle) -> dict[str, Any]:
    """Parameters of the chat that say how much the model thinks. Unless it is asked to, it does not, if its chat
    template can say so: answers that begin with a thought surprise clients of this API that did not ask for one."""
    thinking = body.thinking
    variables = {"enable_thinking": thinking is not None and thinking.type != "disabled"}
    asked: dict[str, Any] = {"chat_template_kwargs": variables | body.chat_template_kwargs}
    if thinking is None:
        return asked
    asked["include_reasoning"] = thinking.display != "omitted"
    match thinking.type:
        case "enabled":
            asked["thinking_token_budget"] = thinking.budget_tokens
        case "disabled":
            asked["reasoning_effort"] = "none"
        case "adaptive":  # a model without thoughts decides never to think
            effort = body.output_config and body.output_config.effort
            if effort and style.thinks:
                asked["reasoning_effort"] = "xhigh" if effort == "max" else effort
    return asked
