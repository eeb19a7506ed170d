"""The messages of a conversation, as clients write them: leniently read, and plain for chat templates."""

import contextlib
import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError, from_json

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.body import count_values, loads
from scheduler_svc.frontend.requests.fields import FirstError, Instead, Only
from scheduler_svc.frontend.requests.strict import Lenient

TEXT_TYPES = ("text", "input_text", "output_text")


def _content_parts(value: Any) -> Any:
    """Text, or a list of parts -> a list of parts."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise PydanticCustomError("content_type", "it should be a string or a list of text parts")


def _is_text(kind: str) -> str:
    if kind not in TEXT_TYPES:
        raise PydanticCustomError(
            "unsupported_parameter", "this model reads texts, and no {kind}", {"kind": repr(kind[:50])}
        )
    return kind


class TextPart(Lenient):
    """A part of a message. There is no other kind: the models served here read text."""

    place: ClassVar[str] = "messages.content"
    type: Annotated[str, AfterValidator(_is_text)]
    text: str

    # Answers of Responses have these beside it, and no template shows them.
    annotations: Any = None
    logprobs: Any = None


class CalledFunction(Lenient):
    """The function that an assistant called, with its arguments as JSON or as the object."""

    place: ClassVar[str] = "messages.tool_calls.function"
    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(Lenient):
    """A call that an assistant made earlier in the conversation."""

    place: ClassVar[str] = "messages.tool_calls"
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Any = None  # chunks of streams have it


class ChatMessage(Lenient):
    """One message, as clients write it and as this API returned it."""

    place: ClassVar[str] = "messages"
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[FirstError[TextPart], BeforeValidator(_content_parts)] = []
    name: str | None = None
    tool_calls: FirstError[ToolCall] = []
    tool_call_id: str | None = None

    # Three names of one thing.
    reasoning_content: Any = None
    reasoning: Any = None
    thinking: Any = None

    # What answers of OpenAI's have beside that, and no template shows.
    refusal: Any = None
    annotations: Any = None
    audio: Annotated[Any, AfterValidator(Only())] = None
    function_call: Annotated[Any, AfterValidator(Instead("tool_calls"))] = None

    @property
    def text(self) -> str:
        """The content's parts as one text."""
        return "\n".join(part.text for part in self.content)

    def plain(self) -> dict[str, Any]:
        """A message as chat templates expect it: content is a string, arguments are objects, absent fields stay
        absent."""
        # "developer" is OpenAI's new name of the system message, unknown to models' templates.
        plain: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        thoughts = (self.reasoning_content, self.reasoning, self.thinking)
        thought = next((thought for thought in thoughts if isinstance(thought, str) and thought), None)
        said = {"name": self.name, "tool_call_id": self.tool_call_id, "reasoning_content": thought}
        plain |= {name: value for name, value in said.items() if value is not None}
        if self.tool_calls:
            plain["tool_calls"] = [_plain_call(call) for call in self.tool_calls]
        return plain


def _plain_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _object(call.function.arguments)}
    plain = {"type": call.type, "function": function}
    return plain if call.id is None else {"id": call.id, **plain}


def _object(arguments: str | dict[str, Any]) -> dict[str, Any]:
    """Read a call's arguments as an object, whatever was answered: some templates walk through it, others write it with
    `tojson`.

    Text that ends too early gives what had come of the object, nothing and null give an empty one, and any other value
    or text is the object's `arguments`.
    """
    if not isinstance(arguments, str):
        return arguments
    value: Any = arguments
    try:
        count_values(arguments.encode())  # in the body they were one string
        value = loads(arguments, strict=False) if arguments.strip() else None
    except json.JSONDecodeError:
        with contextlib.suppress(ValueError):
            cut = from_json(arguments, allow_partial="trailing-strings")
            value = cut if isinstance(cut, dict) else arguments
    except (ValueError, RecursionError, ApiError):
        pass
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"arguments": value}
