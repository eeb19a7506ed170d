"""What the messages of Anthropic's API consist of: leniently read, as those of chats are."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator
from pydantic_core import PydanticCustomError

from scheduler_svc.frontend.requests.fields import FirstError
from scheduler_svc.frontend.requests.strict import Lenient

NEEDS = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
"""What a block of each type has to have."""
TYPES_OF_ROLE = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}


def _known_type(kind: str) -> str:
    if kind not in NEEDS:
        raise PydanticCustomError(
            "unsupported_parameter",
            "this model reads texts, thoughts, calls of tools and their results, and no {kind}",
            {"kind": repr(kind[:50])},
        )
    return kind


def _is_text(kind: str) -> str:
    if kind != "text":
        raise PydanticCustomError(
            "unsupported_parameter", "this model reads texts here, and no {kind}", {"kind": repr(kind[:50])}
        )
    return kind


def text_blocks(value: Any) -> Any:
    """Text, or a list of blocks -> a list of blocks."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise PydanticCustomError("content_type", "it should be a string or a list of blocks")


class ResultText(Lenient):
    """A text of a tool's result."""

    place: ClassVar[str] = "messages.content"
    type: Annotated[str, AfterValidator(_is_text)]
    text: str

    # No token depends on it.
    cache_control: Any = None
    citations: Any = None


class SystemText(ResultText):
    """A text of the system prompt."""

    place: ClassVar[str] = "system"


class Block(Lenient):
    """A block of a message. Which fields it has to have depends on its type; a signature is not looked at."""

    place: ClassVar[str] = "messages.content"
    type: Annotated[str, AfterValidator(_known_type)]
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}
    tool_use_id: str = ""
    content: Annotated[FirstError[ResultText], BeforeValidator(text_blocks)] = []
    is_error: bool = False

    # No token depends on them.
    signature: Any = None
    data: Any = None
    cache_control: Any = None
    citations: Any = None
    caller: Any = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> "Block":
        for name in NEEDS[self.type]:
            if name not in self.model_fields_set:
                raise PydanticCustomError(
                    "missing", "a block of type '{type}' needs '{name}'", {"type": self.type, "name": name}
                )
        return self


class Turn(Lenient):
    """A message of the conversation."""

    place: ClassVar[str] = "messages"
    role: Literal["user", "assistant", "system"]
    content: Annotated[FirstError[Block], BeforeValidator(text_blocks)]

    @model_validator(mode="after")
    def _has_blocks_of_its_role(self) -> "Turn":
        for block in self.content:
            if block.type not in TYPES_OF_ROLE[self.role]:
                raise PydanticCustomError(
                    "block_type", "a message of the {role} has no '{type}'", {"role": self.role, "type": block.type}
                )
        return self
