"""The items of a conversation, as clients send them and as this API returned them: leniently read."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, TypeAdapter
from pydantic_core import PydanticCustomError

from scheduler_svc.frontend.requests.fields import FirstError
from scheduler_svc.frontend.requests.messages import TextPart
from scheduler_svc.frontend.requests.responses.tools import ToolList
from scheduler_svc.frontend.requests.strict import Lenient

ITEM_TYPES = (
    *("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    *("reasoning", "additional_tools", "item_reference"),
)
MAX_ITEM_ID_CHARACTERS = 128

ItemId = Annotated[str, Field(max_length=MAX_ITEM_ID_CHARACTERS)]


def _parts(value: Any) -> Any:
    """Text, or a list of parts -> a list of parts. A refusal is a text that is called otherwise."""
    if isinstance(value, str):
        return [{"type": "input_text", "text": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("content_type", "it should be a string or a list of text parts")
    return [
        {"type": "output_text", "text": part.get("refusal", "")}
        if isinstance(part, dict) and part.get("type") == "refusal"
        else part
        for part in value
    ]


Parts = Annotated[FirstError[TextPart], BeforeValidator(_parts)]


class MessageItem(Lenient):
    """What somebody said."""

    place: ClassVar[str] = "input"
    type: Literal["message"] = "message"
    id: ItemId | None = None
    role: Literal["user", "system", "developer", "assistant"]
    content: Parts
    status: Any = None
    phase: Any = None


class FunctionCallItem(Lenient):
    """A call that the model made."""

    place: ClassVar[str] = "input"
    type: Literal["function_call"]
    id: ItemId | None = None
    call_id: ItemId
    name: str
    namespace: str | None = None
    arguments: str = ""
    status: Any = None


class CustomCallItem(Lenient):
    """A call of a custom tool that the model made."""

    place: ClassVar[str] = "input"
    type: Literal["custom_tool_call"]
    id: ItemId | None = None
    call_id: ItemId
    name: str
    namespace: str | None = None
    input: str
    status: Any = None


class CallOutputItem(Lenient):
    """What a call gave."""

    place: ClassVar[str] = "input"
    type: Literal["function_call_output", "custom_tool_call_output"]
    id: ItemId | None = None
    call_id: ItemId
    output: Parts
    name: Any = None
    status: Any = None


class AdditionalToolsItem(Lenient):
    """Tools that the model may call from here on: they count as if they stood in `tools`."""

    place: ClassVar[str] = "input"
    type: Literal["additional_tools"]
    id: ItemId | None = None
    role: Any = None
    tools: ToolList


class ThoughtText(Lenient):
    """A part of a thought."""

    place: ClassVar[str] = "input.content"
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Lenient):
    """What the model thought. `encrypted_content` is what this API wrote there (`sealed_thought`)."""

    place: ClassVar[str] = "input"
    type: Literal["reasoning"]
    id: ItemId | None = None
    summary: FirstError[ThoughtText] = []
    content: FirstError[ThoughtText] = []
    encrypted_content: str | None = None
    status: Any = None


class ItemReference(Lenient):
    """An item of a stored response."""

    place: ClassVar[str] = "input"
    type: Literal["item_reference"]
    id: ItemId


Item = Annotated[
    MessageItem
    | FunctionCallItem
    | CustomCallItem
    | CallOutputItem
    | ReasoningItem
    | AdditionalToolsItem
    | ItemReference,
    Field(discriminator="type"),
]


def _typed(value: Any) -> Any:
    """An item; messages need not say that they are."""
    if not isinstance(value, dict):
        raise PydanticCustomError("item_type", "it should be an object")
    kind = value.get("type")
    if kind is None and "id" in value and "role" not in value:
        return {**value, "type": "item_reference"}
    kind = "message" if kind is None else kind
    if kind not in ITEM_TYPES:
        known = ", ".join(ITEM_TYPES)
        raise PydanticCustomError(
            "unsupported_parameter", "items of the type {kind} are not supported, only {known}",
            {"kind": repr(str(kind)[:50]), "known": known},
        )  # fmt: skip
    return {**value, "type": kind}


InputItem = Annotated[Item, BeforeValidator(_typed)]


def input_list(value: Any) -> Any:
    """A text, or a list of items -> a list of items."""
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


StoredItems: TypeAdapter[list[Item]] = TypeAdapter(list[InputItem])
"""Reads the items of stored responses."""
