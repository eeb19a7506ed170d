"""How much a model thinks before it answers: what a request says of that, and where the thought begins."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.parsing.detect import thought_start
from scheduler_svc.frontend.parsing.message import ThoughtStart
from scheduler_svc.frontend.parsing.thought import BEGIN, END
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.fields import INT32_MAX
from scheduler_svc.frontend.requests.strict import Strict

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
EFFORTS: tuple[str, ...] = get_args(Effort)
BUDGETS: Mapping[str, int] = {"none": 0, "minimal": 256, "low": 1024, "medium": 4096}  # tokens; others have no limit
PROMPT_END_CHARACTERS = 256  # where a prompt says whether it begins a thought


def _effort(value: Any) -> Any:
    if value not in EFFORTS:
        allowed = ", ".join(EFFORTS)
        raise PydanticCustomError("reasoning_effort", "it should be one of {allowed}", {"allowed": allowed})
    return value


def _switch(value: Any) -> Any:
    return value if isinstance(value, bool) else _effort(value)


AskedEffort = Annotated[Any, AfterValidator(_effort)]
Budget = Annotated[int, Field(ge=0, le=INT32_MAX)]


class ThinkingSwitch(Strict):
    """`thinking` of a chat, as GLM, Kimi and DeepSeek have it."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Budget | None = None


class ChatReasoning(Strict):
    """`reasoning` of a chat, as OpenRouter has it."""

    effort: AskedEffort = None
    max_tokens: Budget | None = None
    enabled: bool | None = None
    exclude: bool = False
    summary: Any = None  # there is none: the whole thought is shown


class ThinkingFields(Strict):
    """How much a model is to think: our name for a budget, and the names that other servers have."""

    enable_thinking: bool | None = None  # vLLM's and SGLang's clients, and Qwen's own API
    thinking_budget: Budget | None = None
    think: Annotated[Any, AfterValidator(_switch)] = None  # Ollama's
    thinking: bool | ThinkingSwitch | None = None
    thinking_token_budget: Budget | None = None


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


def asked_thinking(said: "SaidOfThinking", style: ChatStyle) -> Thinking:
    """Return what a request says. Raise ApiError (400) if it asks a model to think that does not."""
    effort, budget, variables = said.effort, said.budget, said.variables
    if not style.thinks:
        if effort not in (None, "none"):
            raise _does_not_think(said.effort_name, 'null or "none"')
        if budget:
            raise _does_not_think(said.budget_name, "null or 0")
        budget = None
    asked: dict[str, Any] = {}
    if effort is not None:
        asked = {"enable_thinking": effort != "none", "reasoning_effort": effort}
    asked = {name: value for name, value in asked.items() if name in style.variables} | dict(variables)
    if budget is not None:
        return Thinking(asked, budget, said.budget_name)
    return Thinking(asked, None if effort is None else BUDGETS.get(effort), said.effort_name)


class SaidOfThinking(NamedTuple):
    """Hold what all names of a request together say.

    Attributes:
        effort, budget: `reasoning_effort` and `thinking_token_budget`.
        variables: `chat_template_kwargs`, which count more than the effort.
        effort_name, budget_name: the parameters that say so; errors name them.
    """

    effort: str | None
    budget: int | None
    variables: Mapping[str, Any]
    effort_name: str
    budget_name: str


def said_of_thinking(
    fields: ThinkingFields, reasoning: ChatReasoning | None, effort: str | None, variables: Mapping[str, Any]
) -> SaidOfThinking:
    """Bring all names of a request together.

    Args:
        effort: `reasoning_effort`.
        variables: `chat_template_kwargs`.

    Raises:
        ApiError: (400) two names say different things.
    """
    thinking, think, reasoning = fields.thinking, fields.think, reasoning or ChatReasoning()
    budget_name, budget = _agreed(
        {
            "thinking_token_budget": fields.thinking_token_budget,
            "thinking_budget": fields.thinking_budget,
            "thinking.budget_tokens": thinking.budget_tokens if isinstance(thinking, ThinkingSwitch) else None,
            "reasoning.max_tokens": reasoning.max_tokens,
        }
    )
    switches = {
        "enable_thinking": fields.enable_thinking,
        "thinking": _is_on(thinking),
        "think": think if isinstance(think, bool) else None,
        "reasoning.enabled": reasoning.enabled,
    }
    _, is_on = _agreed(switches | {"chat_template_kwargs": variables.get("enable_thinking")})
    efforts = {
        "reasoning_effort": effort,
        "reasoning.effort": reasoning.effort,
        "think": None if isinstance(think, bool) else think,
    }
    off = {name: "none" for name, value in switches.items() if value is False}
    effort_name, asked = _agreed({name: value for name, value in efforts.items() if value is not None} | off)
    if (on := [name for name, value in switches.items() if value]) and asked == "none":
        raise _differ(on[0], effort_name)
    variables = {"enable_thinking": is_on, **variables} if on else variables
    return SaidOfThinking(asked, budget, variables, effort_name or "reasoning_effort", budget_name)


def _is_on(thinking: bool | ThinkingSwitch | None) -> bool | None:
    if isinstance(thinking, ThinkingSwitch):
        return {"enabled": True, "disabled": False}.get(thinking.type)  # the others leave it to the model
    return thinking


def _agreed(said: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the first name that says a value, and the value of all that say one; None if none does."""
    values = {name: value for name, value in said.items() if value is not None}
    first = next(iter(values), "")
    for name, value in values.items():
        if value != values[first]:
            raise _differ(first, name)
    return first, values.get(first)


def _differ(first: str, second: str) -> ApiError:
    message = f"'{first}' and '{second}' say different things of how much the model thinks: send one of them."
    return ApiError(400, message, code="invalid_value", param=second)


def thought_of(prompt: str, style: ChatStyle) -> ThoughtStart:
    """Where the thought of an answer to this prompt begins."""
    return thought_start(prompt[-PROMPT_END_CHARACTERS:]) if style.thinks else "none"


def continued_thought(text: str, style: ChatStyle) -> ThoughtStart:
    """The same where the answer goes on with this text of the assistant's."""
    return "open" if style.thinks and text.rfind(BEGIN) > text.rfind(END) else "none"


def _does_not_think(param: str, allowed: str) -> ApiError:
    message = f"Invalid value for '{param}': this model's answers have no thought, so only {allowed} is supported."
    return ApiError(400, message, code="unsupported_parameter", param=param)
