"""Anthropic's objects: messages, what they consist of, and the events that build one up."""

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    """What the model says."""

    text: str


class ThinkingBlock(Struct, frozen=True, tag_field="type", tag="thinking"):
    """What it thought before. The signature says nothing: clients want one, and send it back."""

    thinking: str
    signature: str


class ToolUseBlock(Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool; `input` is an object."""

    id: str
    name: str
    input: Raw


class InvalidJson(Struct, frozen=True):
    """The input of a call that was cut, with what there is of its JSON."""

    INVALID_JSON: str


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingDetails(Struct, frozen=True):
    """How much of the answer was thought, with its tags."""

    thinking_tokens: int


class MessageUsage(Struct, frozen=True):
    """Tokens that were read and written. Those of the prompt that were in the prefix cache are apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens_details: ThinkingDetails | UnsetType = UNSET


class Message(Struct, frozen=True, tag_field="type", tag="message"):
    """Answer of /v1/messages. In the event that begins one, it has no content, and did not stop."""

    id: str
    model: str
    content: list[ContentBlock]
    usage: MessageUsage
    role: Literal["assistant"] = "assistant"
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


class MessageTokens(Struct, frozen=True):
    """Answer of /v1/messages/count_tokens."""

    input_tokens: int


class TextDelta(Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingDelta(Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class SignatureDelta(Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """A thought's signature, at its end."""

    signature: str


class InputJsonDelta(Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of the JSON of a call's input."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class MessageStart(Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event."""

    message: Message


class BlockStart(Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, and is empty."""

    index: int
    content_block: ContentBlock


class BlockDelta(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """What is new of the last block."""

    index: int
    delta: Delta


class BlockStop(Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """The last block is whole."""

    index: int


BlockEvent = BlockStart | BlockDelta | BlockStop


class MessageEnd(Struct, frozen=True):
    """Why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The event behind the last block. Its usage is that of the whole answer."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


MessageEvent = MessageStart | BlockEvent | MessageDelta | MessageStop
