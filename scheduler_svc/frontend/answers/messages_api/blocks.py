"""The blocks of a message, built up from the pieces of an answer: one after the other, each of one kind."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Raw

from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.messages_api.objects import (
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    ContentBlock,
    Delta,
    InputJsonDelta,
    InvalidJson,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.parsing.json_value import is_object
from scheduler_svc.frontend.parsing.message import CallPart

NO_INPUT = Raw(b"{}")


class MessageBlocks:
    """Takes the pieces of one answer, and gives the events that begin, continue and end its blocks.

    Args:
        answer_id: ids of calls and signatures follow from it, as another frontend may go on with a stream.
    """

    def __init__(self, answer_id: str) -> None:
        self._answer_id = answer_id
        self._index = -1
        self._open: Literal["text", "thinking", "tool_use"] | None = None

    def add(self, piece: Piece) -> Iterator[BlockEvent]:
        """What a piece adds. A token that ends one part and begins the next is a part of both: the thought comes first,
        then the rest of a call, the text, and what begins new calls."""
        if piece.thought:
            yield from self._text("thinking", ThinkingBlock("", ""), ThinkingDelta(piece.thought))
        going_on = [call for call in piece.calls if not call.name]
        for call in going_on:
            yield self._more(InputJsonDelta(call.arguments))
        if piece.text:
            yield from self._text("text", TextBlock(""), TextDelta(piece.text))
        for call in piece.calls:
            if call.name:
                yield from self._begin("tool_use", ToolUseBlock(self._id("toolu_", call), call.name, NO_INPUT))
                if call.arguments:
                    yield self._more(InputJsonDelta(call.arguments))

    def end(self) -> Iterator[BlockEvent]:
        """The end of the last block, if there is one."""
        if self._open == "thinking":
            yield self._more(SignatureDelta(self._id("", None)))
        if self._open is not None:
            yield BlockStop(self._index)
        self._open = None

    def _text(self, kind: Literal["text", "thinking"], empty: ContentBlock, delta: Delta) -> Iterator[BlockEvent]:
        if self._open != kind:
            yield from self._begin(kind, empty)
        yield self._more(delta)

    def _begin(self, kind: Literal["text", "thinking", "tool_use"], block: ContentBlock) -> Iterator[BlockEvent]:
        yield from self.end()
        self._open = kind
        self._index += 1
        yield BlockStart(self._index, block)

    def _more(self, delta: Delta) -> BlockEvent:
        return BlockDelta(self._index, delta)

    def _id(self, prefix: str, call: CallPart | None) -> str:
        """Of a call, or of the block that is open."""
        name = f"{self._answer_id}/{f'thought/{self._index}' if call is None else call.number}"
        return prefix + hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


class WholeBlocks:
    """Builds the blocks up from these events, a few at a time: an answer may have tens of thousands."""

    def __init__(self) -> None:
        self._begun: list[ContentBlock] = []
        self._texts: list[list[str]] = []

    def take(self, events: Iterable[BlockEvent]) -> None:
        """What comes next."""
        for event in events:
            match event:
                case BlockStart(content_block=block):
                    self._begun.append(block)
                    self._texts.append([])
                case BlockDelta(delta=SignatureDelta(signature=signature)):
                    self._begun[-1] = ThinkingBlock("", signature)
                case BlockDelta(delta=TextDelta(text=text) | ThinkingDelta(thinking=text)):
                    self._texts[-1].append(text)
                case BlockDelta(delta=InputJsonDelta(partial_json=text)):
                    self._texts[-1].append(text)

    def blocks(self) -> list[ContentBlock]:
        """All of them."""
        return [_whole(block, "".join(texts)) for block, texts in zip(self._begun, self._texts, strict=True)]


def _whole(block: ContentBlock, text: str) -> ContentBlock:
    match block:
        case ThinkingBlock(signature=signature):
            return ThinkingBlock(text, signature)
        case ToolUseBlock(id=call_id, name=name):
            return ToolUseBlock(call_id, name, tool_input(text))
        case _:
            return TextBlock(text)


def tool_input(arguments: str) -> Raw:
    """A call's arguments as they were written. Where they are no object, since the call was cut, what there is of them
    stands in one, under the name that Anthropic's documentation has for that: so no client takes them for arguments."""
    return Raw(arguments.encode() if is_object(arguments) else to_json(InvalidJson(arguments)))
