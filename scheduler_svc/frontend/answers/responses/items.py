"""The item of a response that is being written: a thought, a message or a call, and the events of its growth."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET

from scheduler_svc.frontend.answers.logprobs import Entry
from scheduler_svc.frontend.answers.numbered_events import NumberedEvent
from scheduler_svc.frontend.answers.openai_objects import TokenLogprob
from scheduler_svc.frontend.answers.responses.called_tool import CalledTool, CustomInput
from scheduler_svc.frontend.answers.responses.objects import (
    ArgumentsData,
    DeltaData,
    InputData,
    ItemData,
    ItemStatus,
    OutputCall,
    OutputCustomCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    PartData,
    ReasoningText,
    TextData,
)
from scheduler_svc.frontend.answers.responses.thoughts import sealed_thought
from scheduler_svc.frontend.parsing.json_value import is_object


class OpenItem(ABC):
    """An item from its first text to its last.

    Args:
        item_id: of the item.
        index: of the item in the response's output.
    """

    def __init__(self, item_id: str, index: int) -> None:
        self._id = item_id
        self._index = index
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """So far."""
        return "".join(self._texts)

    @abstractmethod
    def item(self, status: ItemStatus) -> OutputItem:
        """As it is now."""

    def begun(self) -> Iterator[NumberedEvent]:
        """The events of its beginning."""
        yield "response.output_item.added", ItemData(self._index, self.item("in_progress"))

    @abstractmethod
    def grown(self, text: str, logprobs: Sequence[Entry] | None = None) -> Iterator[NumberedEvent]:
        """The events of new text."""

    def ended(self, status: ItemStatus) -> Iterator[NumberedEvent]:
        """The events of its end."""
        yield "response.output_item.done", ItemData(self._index, self.item(status))


class OpenMessage(OpenItem):
    """What the model says."""

    def __init__(self, item_id: str, index: int) -> None:
        super().__init__(item_id, index)
        self._logprobs: list[TokenLogprob] = []

    def item(self, status: ItemStatus) -> OutputMessage:
        """As it is now; at its beginning it has no content."""
        return OutputMessage(self._id, status, [] if status == "in_progress" else [self._part()])

    def begun(self) -> Iterator[NumberedEvent]:
        """The item, and the part that has its text."""
        yield from super().begun()
        yield "response.content_part.added", PartData(self._id, self._index, OutputText(""), content_index=0)

    def grown(self, text: str, logprobs: Sequence[Entry] | None = None) -> Iterator[NumberedEvent]:
        """New text with its tokens."""
        new = [entry.logprob for entry in logprobs or ()]
        self._texts.append(text)
        self._logprobs += new
        yield "response.output_text.delta", DeltaData(self._id, self._index, text, content_index=0, logprobs=new)

    def ended(self, status: ItemStatus) -> Iterator[NumberedEvent]:
        """The whole text, the part, the item."""
        text = TextData(self._id, self._index, self.text, content_index=0, logprobs=self._logprobs)
        yield "response.output_text.done", text
        yield "response.content_part.done", PartData(self._id, self._index, self._part(), content_index=0)
        yield from super().ended(status)

    def _part(self) -> OutputText:
        return OutputText(self.text, logprobs=self._logprobs)


class OpenThought(OpenItem):
    """What the model thinks.

    Args:
        in_summary: whether its text stands in the item's summary, and not in its content.
        is_sealed: whether the item has `encrypted_content`.
    """

    def __init__(self, item_id: str, index: int, *, in_summary: bool, is_sealed: bool) -> None:
        super().__init__(item_id, index)
        self._in_summary = in_summary
        self._is_sealed = is_sealed
        self._name = "reasoning_summary_text" if in_summary else "reasoning_text"
        self._part_name = "reasoning_summary_part" if in_summary else "content_part"
        self._place: dict[str, Any] = {"summary_index" if in_summary else "content_index": 0}

    def item(self, status: ItemStatus) -> OutputReasoning:
        """As it is now; at its beginning it has no text."""
        parts = [] if status == "in_progress" else [self._part(self.text)]
        sealed = sealed_thought(self.text) if self._is_sealed and status != "in_progress" else None
        if self._in_summary:
            return OutputReasoning(self._id, status, summary=parts, encrypted_content=sealed)
        return OutputReasoning(self._id, status, content=parts, encrypted_content=sealed)

    def begun(self) -> Iterator[NumberedEvent]:
        """The item, and the part that has its text."""
        yield from super().begun()
        yield f"response.{self._part_name}.added", PartData(self._id, self._index, self._part(""), **self._place)

    def grown(self, text: str, logprobs: Sequence[Entry] | None = None) -> Iterator[NumberedEvent]:
        """New text."""
        self._texts.append(text)
        yield f"response.{self._name}.delta", DeltaData(self._id, self._index, text, **self._place)

    def ended(self, status: ItemStatus) -> Iterator[NumberedEvent]:
        """The whole text, the part, the item."""
        yield f"response.{self._name}.done", TextData(self._id, self._index, self.text, **self._place)
        yield f"response.{self._part_name}.done", PartData(self._id, self._index, self._part(self.text), **self._place)
        yield from super().ended(status)

    def _part(self, text: str) -> ReasoningText:
        return ReasoningText(text, "summary_text" if self._in_summary else "reasoning_text")


class OpenCall(OpenItem):
    """A call of a function that the model makes.

    Args:
        call_id: by which its output names it.
    """

    def __init__(self, item_id: str, index: int, call_id: str, tool: CalledTool) -> None:
        super().__init__(item_id, index)
        self._call_id = call_id
        self._tool = tool

    def item(self, status: ItemStatus) -> OutputItem:
        """As it is now. One whose arguments are not whole is not complete, also if more items follow."""
        tool = self._tool
        if status == "completed" and not is_object(self.text):
            status = "incomplete"
        return OutputCall(self._id, status, self._call_id, tool.name, self.text, tool.namespace or UNSET)

    def grown(self, text: str, logprobs: Sequence[Entry] | None = None) -> Iterator[NumberedEvent]:
        """New text of its arguments."""
        self._texts.append(text)
        yield "response.function_call_arguments.delta", DeltaData(self._id, self._index, text)

    def ended(self, status: ItemStatus) -> Iterator[NumberedEvent]:
        """The whole arguments, and the item."""
        whole = ArgumentsData(self._id, self._index, self.text, self._tool.name)
        yield "response.function_call_arguments.done", whole
        yield from super().ended(status)


class OpenCustomCall(OpenCall):
    """A call of a custom tool, whose text is its input."""

    def __init__(self, item_id: str, index: int, call_id: str, tool: CalledTool) -> None:
        super().__init__(item_id, index, call_id, tool)
        self._input = CustomInput()

    def item(self, status: ItemStatus) -> OutputItem:
        """As it is now. One whose input is not whole is not complete, as with other calls."""
        tool = self._tool
        if status == "completed" and not self._input.is_whole:
            status = "incomplete"
        return OutputCustomCall(self._id, status, self._call_id, tool.name, self.text, tool.namespace or UNSET)

    def grown(self, text: str, logprobs: Sequence[Entry] | None = None) -> Iterator[NumberedEvent]:
        """Give the events of what new text of the arguments adds to the input."""
        yield from self._added(self._input.feed(text))

    def ended(self, status: ItemStatus) -> Iterator[NumberedEvent]:
        """Give the events of the whole input, and of the item."""
        yield from self._added(self._input.end())
        yield "response.custom_tool_call_input.done", InputData(self._id, self._index, self.text)
        yield "response.output_item.done", ItemData(self._index, self.item(status))

    def _added(self, text: str) -> Iterator[NumberedEvent]:
        if text:
            self._texts.append(text)
            yield "response.custom_tool_call_input.delta", DeltaData(self._id, self._index, text)
