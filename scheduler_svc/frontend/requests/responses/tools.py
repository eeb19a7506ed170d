"""Tools of the Responses API, and the functions of a chat that the model is shown for them.

A function in a namespace becomes one whose name begins with the namespace's. A custom tool, whose input is a text,
becomes a function of one argument; the answer gives its calls back as what they were (`answers/responses/items.py`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from scheduler_svc.frontend.answers.responses.called_tool import INPUT, CalledTool
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.grammars.lark_pattern import lark_pattern
from scheduler_svc.frontend.requests.fields import FirstError
from scheduler_svc.frontend.requests.ignored import IgnoredNames
from scheduler_svc.frontend.requests.strict import Lenient
from scheduler_svc.frontend.requests.tools import (
    TOOL_NAME,
    CustomFunction,
    Function,
    Tool,
    ToolChoice,
    check_count,
    read_choice,
)

HOSTED = (
    *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11", "file_search"),
    *("code_interpreter", "image_generation", "mcp", "computer", "computer_use_preview", "local_shell", "shell"),
    *("apply_patch", "tool_search", "programmatic_tool_calling"),
)
"""Types of tools that OpenAI's servers run, or that its models alone know how to call."""

ToolName = Annotated[str, Field(pattern=TOOL_NAME)]


class FunctionTool(Lenient):
    """A function that the model is told about."""

    place: ClassVar[str] = "tools"
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class InputFormat(Lenient):
    """Say what the input of a custom tool may be."""

    place: ClassVar[str] = "tools.format"
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: Annotated[str, Field(max_length=2**16)] | None = None


class CustomTool(Lenient):
    """A tool whose input is a text."""

    place: ClassVar[str] = "tools"
    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: InputFormat | None = None


OwnTool = Annotated[FunctionTool | CustomTool, Field(discriminator="type")]


class NamespaceTool(Lenient):
    """Tools with one name before their own."""

    place: ClassVar[str] = "tools"
    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: FirstError[OwnTool]


ResponseTool = Annotated[FunctionTool | CustomTool | NamespaceTool, Field(discriminator="type")]


def _without_hosted(tools: Any, info: ValidationInfo) -> Any:
    """Leave out tools that the client does not run, and note them: the model does without them."""
    if not isinstance(tools, list):
        return tools
    return [tool for tool in tools if not _is_left_out(tool, info.context)]


def _is_left_out(tool: Any, noted: Any) -> bool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str) or kind in ("function", "custom", "namespace"):
        return False
    if kind in HOSTED:
        if isinstance(noted, IgnoredNames):
            noted.leave_out("tools", kind)
        return True
    raise PydanticCustomError(
        "unsupported_parameter",
        "tools of the type {kind} are not known here, only 'function', 'custom' and 'namespace'; left out are {hosted}",
        {"kind": repr(kind[:50]), "hosted": ", ".join(HOSTED)},
    )


ToolList = Annotated[FirstError[ResponseTool], BeforeValidator(_without_hosted), BeforeValidator(check_count)]


class FlatTools(NamedTuple):
    """Tools as a chat has them.

    Attributes:
        functions: what the model is shown, by name.
        called: what calls of those are, that are not what they seem.
    """

    functions: Mapping[str, Tool]
    called: Mapping[str, CalledTool]


def flat_tools(tools: Sequence[ResponseTool], later: Iterable[ResponseTool]) -> FlatTools:
    """Make a request's tools those of a chat.

    Args:
        later: those that items of its conversation add; one of these takes the place of one before it with its name.

    Raises:
        ApiError: (400) two of `tools` have one name, or a custom tool has a grammar that no call can follow.
    """
    counts = Counter(name for name, _, _ in _each(tools))
    if twice := [name for name, count in counts.items() if count > 1]:
        raise _refused(f"Invalid value for 'tools': two have the name {twice[0]!r}.")
    functions: dict[str, Tool] = {}
    called: dict[str, CalledTool] = {}
    for name, tool, space in chain(_each(tools), _each(later)):
        functions[name] = _tool(name, tool, space)
        called[name] = CalledTool(tool.name, "" if space is None else space.name, isinstance(tool, CustomTool))
    return FlatTools(functions, {name: tool for name, tool in called.items() if tool != CalledTool(name)})


def flat_name(name: str, namespace: str | None) -> str:
    """Return the name by which the model calls a tool."""
    return f"{namespace}.{name}" if namespace else name


def flat_choice(choice: ToolChoice | None, tools: FlatTools) -> ToolChoice | None:
    """Name the chosen tools as the model knows them: one in a namespace may be named without it, if it is the only one
    of this name."""
    if choice is None or choice.names is None:
        return choice
    short: dict[str, list[str]] = {}
    for name, tool in tools.called.items():
        short.setdefault(tool.name, []).append(name)

    def resolved(name: str) -> str:
        found = short.get(name, [])
        return found[0] if name not in tools.functions and len(found) == 1 else name

    return ToolChoice(choice.mode, tuple(map(resolved, choice.names)), choice.is_one)


def choice_of(value: Any) -> ToolChoice:
    """Read `tool_choice` in the forms that Responses has: those of chats, without a level of nesting."""
    match value:
        case {"type": "function" | "custom", "name": str()}:
            return read_choice(_nested(value))
        case {"type": "allowed_tools", "mode": mode, "tools": list(tools)}:
            for tool in tools:
                _check_is_not_hosted(tool)
            return read_choice(
                {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(map(_nested, tools))}}
            )
        case str():
            return read_choice(value)
    _check_is_not_hosted(value)
    raise PydanticCustomError(
        "tool_choice",
        "it should be 'none', 'auto', 'required', a tool as {form}, or 'allowed_tools' with tools",
        {"form": '{"type": "function", "name": ...}'},
    )


def _nested(tool: Any) -> Any:
    match tool:
        case {"type": "function" | "custom", "name": str(name)}:
            space = tool.get("namespace")
            named = flat_name(name, space if isinstance(space, str) else None)
            return {"type": "function", "function": {"name": named}}
    return tool


def _check_is_not_hosted(tool: Any) -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind in HOSTED:
        raise PydanticCustomError(
            "unsupported_parameter",
            "it asks for {kind}, and this server runs no tools of its own: name one of the client's",
            {"kind": repr(kind)},
        )


def _each(tools: Iterable[ResponseTool]) -> Iterator[tuple[str, FunctionTool | CustomTool, NamespaceTool | None]]:
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            for inner in tool.tools:
                yield flat_name(inner.name, tool.name), inner, tool
        else:
            yield tool.name, tool, None


def _tool(name: str, tool: FunctionTool | CustomTool, space: NamespaceTool | None) -> Tool:
    # Templates show what was said, in the order of these.
    description = tool.description
    if space is not None and space.description and tool is space.tools[0]:
        description = f"{space.name}: {space.description}\n{description or ''}".rstrip()
    said: dict[str, Any] = {} if description is None else {"description": description}
    if isinstance(tool, CustomTool):
        said |= _custom_parameters(name, tool.format)
        return Tool.model_construct(type="function", function=CustomFunction.model_construct(name=name, **said))
    said |= {} if tool.parameters is None else {"parameters": tool.parameters}
    said |= {} if tool.strict is None else {"strict": tool.strict}
    return Tool.model_construct(type="function", function=Function.model_construct(name=name, **said))


def _custom_parameters(name: str, form: InputFormat | None) -> dict[str, Any]:
    """Describe the one argument of a custom tool, as the model is shown it and as its calls have to be."""
    has_grammar = form is not None and form.type == "grammar"
    words = "The whole input, as plain text."
    free: dict[str, Any] = {"type": "string"}
    held = free
    if has_grammar:
        assert form is not None
        held = {"type": "string", "pattern": _pattern(name, form)}
        words = f"The whole input, as plain text. It follows this {form.syntax} grammar:\n{form.definition}"
    return {
        "parameters": _object_of({**free, "description": words}),
        "strict": has_grammar,
        "held_to": _object_of(held),
    }


def _object_of(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {INPUT: value}, "required": [INPUT], "additionalProperties": False}


def _pattern(name: str, form: InputFormat) -> str:
    """Write the grammar as a regular expression. Raises ApiError (400) if it is none."""
    if form.syntax is None or form.definition is None:
        raise _refused(f"The format of the custom tool {name!r} needs 'syntax' and 'definition'.")
    if form.syntax == "regex":
        return f"^(?:{form.definition})$"
    try:
        return f"^(?:{lark_pattern(form.definition)})$"
    except ValueError as error:
        message = f"The grammar of the custom tool {name!r} cannot be held to: {error}. Without 'format' it is taken."
        raise _refused(message) from error


def _refused(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param="tools")
