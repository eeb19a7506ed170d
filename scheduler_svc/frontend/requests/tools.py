"""Tools of a chat, and which of them its answer may or must call."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NoReturn

import msgspec
from pydantic import BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.grammars.spec import ToolGrammar, ToolSchema
from scheduler_svc.frontend.parsing.message import CallFormat
from scheduler_svc.frontend.parsing.text_parameters import named_parameters
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.fields import FirstError
from scheduler_svc.frontend.requests.ignored import IgnoredNames
from scheduler_svc.frontend.requests.strict import Lenient
from scheduler_svc.frontend.requests.structured import AskedGrammar, asked

MAX_PARAMETER_CHARACTERS = 2**16  # of the names that are kept with the request, of all tools
TOOL_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"


class Function(Lenient):
    """What the model is told about a function. Its calls follow the schema if it is `strict`."""

    place: ClassVar[str] = "tools.function"
    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomFunction(Function):
    """A function that stands for another API's custom tool.

    Attributes:
        held_to: JSON schema of its arguments, of which the model is not told all.
    """

    held_to: dict[str, Any]


class Tool(Lenient):
    """A function that the model is told about."""

    place: ClassVar[str] = "tools"
    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """As chat templates show it: `strict` is for the server."""
        return self.model_dump(exclude_unset=True, exclude={"function": {"strict", "held_to"}})


def check_count(value: Any, info: ValidationInfo) -> Any:
    """Refuse more tools than the service allows. A chat that is made of another API's request has no such limit."""
    limit = info.context.options.max_tools if isinstance(info.context, IgnoredNames) else 0
    if limit and isinstance(value, list) and len(value) > limit:
        raise PydanticCustomError(
            "tools", "it has {number} tools, the limit is {limit}; the service's option --max-tools sets it",
            {"number": len(value), "limit": limit},
        )  # fmt: skip
    return value


ToolList = Annotated[FirstError[Tool], BeforeValidator(check_count)]


def different_names(tools: list[Tool]) -> list[Tool]:
    """The tools, if each has a name of its own."""
    check_different(tool.function.name for tool in tools)
    return tools


def check_different(names: Iterable[str]) -> None:
    """Refuse tools of which two have one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PydanticCustomError("tools", "two have the name {name}", {"name": repr(name)})
        seen.add(name)


@dataclass(frozen=True)
class ToolChoice:
    """Which tools an answer calls.

    Attributes:
        mode: none, as the model decides, or one at least.
        names: of tools that may be called; None for all.
        is_one: whether exactly one is called.
    """

    mode: Literal["none", "auto", "required"]
    names: tuple[str, ...] | None = None
    is_one: bool = False


def read_choice(value: Any) -> ToolChoice:
    """`tool_choice` in any of OpenAI's forms."""
    match value:
        case "none" | "auto" | "required":
            return ToolChoice(value)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("required", (name,), is_one=True)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)}}:
            names = tuple(said for tool in tools if (said := _name_of(tool)) is not None)
            if names and len(names) == len(tools):
                return ToolChoice(mode, names)
    raise PydanticCustomError(
        "tool_choice",
        "it should be 'none', 'auto', 'required', a function's name as {form}, or 'allowed_tools' with functions",
        {"form": '{"type": "function", "function": {"name": ...}}'},
    )


@dataclass(frozen=True)
class ToolUse:
    """What becomes of a request's tools.

    Attributes:
        shown: tools that the model is told about; None for none.
        calls: how calls are read in the answer.
        is_one_call: only the first call counts.
        parameters: as in `MessageRules`.
        grammar: which calls the answer may have; None without tools.
        is_strict: whether its calls have to be as the grammar says.
    """

    shown: list[dict[str, Any]] | None = None
    calls: CallFormat = "none"
    is_one_call: bool = False
    parameters: dict[str, dict[str, tuple[str, ...] | None]] = field(default_factory=dict)
    grammar: ToolGrammar | None = None
    is_strict: bool = False

    def grammar_beside(self, content: AskedGrammar | None) -> AskedGrammar | None:
        """The grammar of the whole answer.

        Args:
            content: of the answer's content, if the request says something of it.

        Raises:
            ApiError: (400) the two exclude each other.
        """
        if self.grammar is None:
            return content
        if content is None or self.grammar.is_required:  # an answer that is calls has no content
            return asked("tools", msgspec.to_builtins(self.grammar), "tools") if self.is_strict else None
        if content.spec.kind != "json":
            name = content.param.partition(".")[0]
            message = f"Beside 'tools' that the model may call, '{name}' can only be JSON."
            raise ApiError(400, message, code="unsupported_parameter", param=name)
        both = msgspec.structs.replace(self.grammar, is_required=True, content=json.loads(content.spec.text))
        return asked("tools", msgspec.to_builtins(both), content.param)


def tool_use(tools: Sequence[Tool], choice: ToolChoice | None, *, parallel: bool, style: ChatStyle) -> ToolUse:
    """What becomes of them. Raises ApiError (400) if the model's calls cannot be read, or cannot be what is asked."""
    choice = choice or ToolChoice("auto")
    names = {tool.function.name for tool in tools}
    if missing := [name for name in choice.names or () if name not in names]:
        _refuse(f"Invalid value for 'tool_choice': 'tools' has no {missing[0][:64]!r}.", "tool_choice")
    if not tools and choice.mode == "required":
        _refuse("Invalid value for 'tool_choice': it is 'required', and there are no 'tools'.", "tool_choice")
    if not tools or choice.mode == "none":
        return ToolUse()
    if style.calls == "none" or not style.shows_tools:
        why = "its calls cannot be told from text"
        if not style.shows_tools:
            why = "its chat template shows none"
        elif style.unread_calls:
            why = f"it writes calls after {style.unread_calls}, which is not read yet"
        message = f"'tools' are not supported with this model: {why}. With 'tool_choice': 'none' they are left out."
        raise ApiError(400, message, code="unsupported_parameter", param="tools")
    allowed = [tool for tool in tools if choice.names is None or tool.function.name in choice.names]
    is_one_call, is_required = choice.is_one or not parallel, choice.mode == "required"
    shown = tools if is_required else allowed  # where nothing is forced, the model calls what it is told about
    schemas = [ToolSchema(tool.function.name, _parameters(tool.function, is_required=is_required)) for tool in allowed]
    return ToolUse(
        shown=[tool.plain() for tool in shown],
        calls=style.calls,
        is_one_call=is_one_call,
        parameters=_named_parameters(shown) if style.calls == "qwen3_coder" else {},
        grammar=ToolGrammar(style.calls, schemas, is_required=is_required, is_one_call=is_one_call),
        is_strict=is_required or any(tool.function.strict for tool in allowed),
    )


def _parameters(function: Function, *, is_required: bool) -> dict[str, Any] | None:
    """The schema of arguments; None for any object.

    A schema that is not strict is there for the model to read, and may say what no grammar can: where a call is forced,
    as much of it holds as can.
    """
    if isinstance(function, CustomFunction):
        return function.held_to
    if not function.parameters or not (function.strict or is_required):
        return None
    if function.strict:
        return function.parameters
    options = function.parameters.get("x-guidance", {})
    return {**function.parameters, "x-guidance": {"lenient": True, **(options if isinstance(options, dict) else {})}}


def _named_parameters(tools: Sequence[Tool]) -> dict[str, dict[str, tuple[str, ...] | None]]:
    found = {tool.function.name: named_parameters(tool.function.parameters) for tool in tools}
    size = sum(len(name) + len("".join(kinds or ())) for names in found.values() for name, kinds in names.items())
    if size > MAX_PARAMETER_CHARACTERS:
        limit = f"the limit is {MAX_PARAMETER_CHARACTERS}"
        _refuse(f"Invalid value for 'tools': names and types of parameters have {size} characters, {limit}.", "tools")
    return found


def _name_of(tool: Any) -> str | None:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    return None


def _refuse(message: str, param: str) -> NoReturn:
    raise ApiError(400, message, code="invalid_value", param=param)
