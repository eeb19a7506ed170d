"""How much a model thinks before it answers: what a request says of that, and where the thought begins."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.parsing.detect import thought_start
from scheduler_svc.frontend.parsing.message import ThoughtStart
from scheduler_svc.frontend.parsing.thought import BEGIN, END
from scheduler_svc.frontend.requests.chat_style import ChatStyle

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
EFFORTS: tuple[str, ...] = get_args(Effort)
BUDGETS: Mapping[str, int] = {"none": 0, "minimal": 256, "low": 1024, "medium": 4096}  # tokens; others have no limit
PROMPT_END_CHARACTERS = 256  # where a prompt says whether it begins a thought


@dataclass(frozen=True)
class Thinking:
    """What a request says of the thought before its answer.

    Attributes:
        variables: of the chat template.
        budget: tokens that the thought may have, None for no limit.
        param: the parameter that says so; errors name it.
    """

    variables: dict[str, Any] = field(default_factory=dict)
    budget: int | None = None
    param: str = "reasoning_effort"


def asked_thinking(effort: str | None, budget: int | None, variables: Mapping[str, Any], style: ChatStyle) -> Thinking:
    """What a request says. Raises ApiError (400) if it asks a model to think that does not.

    Args:
        effort, budget: `reasoning_effort` and `thinking_token_budget`.
        variables: `chat_template_kwargs`, which count more than the effort.
    """
    if not style.thinks:
        if effort not in (None, "none"):
            raise _does_not_think("reasoning_effort", 'null or "none"')
        if budget is not None:
            raise _does_not_think("thinking_token_budget", "null")
    asked: dict[str, Any] = {}
    if effort is not None:
        asked = {"enable_thinking": effort != "none", "reasoning_effort": effort}
    asked = {name: value for name, value in asked.items() if name in style.variables} | dict(variables)
    if budget is not None:
        return Thinking(asked, budget, "thinking_token_budget")
    return Thinking(asked, None if effort is None else BUDGETS.get(effort))


def thought_of(prompt: str, style: ChatStyle) -> ThoughtStart:
    """Where the thought of an answer to this prompt begins."""
    return thought_start(prompt[-PROMPT_END_CHARACTERS:]) if style.thinks else "none"


def continued_thought(text: str, style: ChatStyle) -> ThoughtStart:
    """The same where the answer goes on with this text of the assistant's."""
    return "open" if style.thinks and text.rfind(BEGIN) > text.rfind(END) else "none"


def _does_not_think(param: str, allowed: str) -> ApiError:
    message = f"Invalid value for '{param}': this model's answers have no thought, so only {allowed} is supported."
    return ApiError(400, message, code="unsupported_parameter", param=param)
