"""What a response says of its request."""

from collections.abc import Mapping
from typing import Any

from common import messages as m
from scheduler_svc.frontend.answers.responses.objects import ResponseHead
from scheduler_svc.frontend.requests.responses.schemas import ResponseRequest
from scheduler_svc.frontend.requests.responses.stored import json_of
from scheduler_svc.frontend.requests.tools import ToolChoice


def head_json(body: ResponseRequest, params: m.SamplingParams, *, response_id: str, model: str, created: int) -> bytes:
    """JSON of the `ResponseHead`.

    Args:
        params: with which tokens are drawn.
        model: its name in answers.
        created: in Unix seconds.

    Raises:
        ApiError: (400) it has half a character.
    """
    reasoning = body.reasoning
    head = ResponseHead(
        id=response_id,
        created_at=created,
        model=model,
        background=body.background,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata,
        parallel_tool_calls=body.parallel_tool_calls,
        previous_response_id=body.previous_response_id,
        reasoning={
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary or reasoning.generate_summary,
        },
        service_tier="default",
        store=body.store,
        temperature=params.temperature,
        text={"format": _format(body), "verbosity": (body.text and body.text.verbosity) or "medium"},
        tool_choice=_choice(body.tool_choice, {tool.name: tool.type for tool in body.tools}),
        tools=[tool.model_dump() for tool in body.tools],
        top_logprobs=body.top_logprobs,
        top_p=params.top_p,
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
    )
    return json_of(head)


def _format(body: ResponseRequest) -> dict[str, Any]:
    form = body.text and body.text.format
    return {"type": "text"} if not form else form.model_dump(by_alias=True, exclude_none=True)


def _choice(choice: ToolChoice | None, types: Mapping[str, str]) -> Any:
    """`tool_choice` as clients write it.

    Args:
        types: of tools, by their names.
    """
    if choice is None:
        return "auto"
    if choice.names is None:
        return choice.mode
    if choice.is_one:
        return {"type": types.get(choice.names[0], "function"), "name": choice.names[0]}
    tools = [{"type": types.get(name, "function"), "name": name} for name in choice.names]
    return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}
