"""Pieces of text as the objects of either endpoint: completion objects or chat objects."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, Raw, UnsetType

from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.call_ids import call_id
from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.generation import WholeChoice
from scheduler_svc.frontend.answers.logprobs import chat_logprobs, completion_logprobs
from scheduler_svc.frontend.answers.openai_objects import (
    AssistantMessage,
    Call,
    CallFunction,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Delta,
    Usage,
)
from scheduler_svc.frontend.parsing.message import CallPart

FINGERPRINT_CHARACTERS = 12


@dataclass(frozen=True)
class Format(ABC):
    """Makes the objects of one answer.

    Attributes:
        answer_id, created, model: in every object of the answer; `created` is in Unix seconds.
        include_usage: whether the stream ends with a chunk of usage; the other chunks then have `usage: null`.

    `computed_by` in the methods is `TokenDelta.model`: weights may be exchanged in the middle of an answer, and each
    object says which computed it.
    """

    answer_id: str
    created: int
    model: str
    include_usage: bool

    @abstractmethod
    def whole(self, choices: Sequence[WholeChoice], usage: Usage, computed_by: str) -> Completion | ChatCompletion:
        """The answer in one object."""

    @abstractmethod
    def opening(self, piece: Piece) -> Completion | ChatCompletion | None:
        """The chunk that comes before a choice's first piece, if the format has one."""

    @abstractmethod
    def chunk(self, piece: Piece) -> Completion | ChatCompletion:
        """A chunk of the stream."""

    @abstractmethod
    def ending(self, usage: Usage, computed_by: str) -> Completion | ChatCompletion:
        """The chunk that ends a stream for which usage was asked."""

    def chunk_usage(self, piece: Piece) -> Usage | UnsetType | None:
        """The `usage` of a chunk: null if only the last one has it, absent if none has it."""
        if piece.usage is not None:
            return piece.usage
        return None if self.include_usage else UNSET


class CompletionFormat(Format):
    """The objects of /v1/completions."""

    def whole(self, choices: Sequence[WholeChoice], usage: Usage, computed_by: str) -> Completion:
        """The answer in one object."""
        return self._object([CompletionChoice(*choice[:5]) for choice in choices], usage, computed_by)

    def opening(self, piece: Piece) -> None:
        """Completions have no opening chunk."""

    def chunk(self, piece: Piece) -> Completion:
        """A chunk of the stream."""
        choice = CompletionChoice(piece.choice, piece.text, piece.finish_reason, _completion_logprobs(piece))
        return self._object([choice], self.chunk_usage(piece), piece.model)

    def ending(self, usage: Usage, computed_by: str) -> Completion:
        """The chunk that ends a stream for which usage was asked."""
        return self._object([], usage, computed_by)

    def _object(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None, computed_by: str) -> Completion:
        fingerprint = _system_fingerprint(computed_by)
        return Completion(self.answer_id, "text_completion", self.created, self.model, choices, fingerprint, usage)


class ChatFormat(Format):
    """The objects of /v1/chat/completions."""

    def whole(self, choices: Sequence[WholeChoice], usage: Usage, computed_by: str) -> ChatCompletion:
        """The answer in one object."""
        answers = [
            ChatChoice(choice.choice, self._message(choice), choice.finish_reason, choice.logprobs)
            for choice in choices
        ]
        return self._object("chat.completion", answers, usage, computed_by, choices[0].prompt_logprobs)

    def opening(self, piece: Piece) -> ChatCompletion:
        """The chunk that names the role of the message: the assistant."""
        opening = ChatChunkChoice(piece.choice, Delta(role="assistant", content=""))
        return self._chunk([opening], self.chunk_usage(piece), piece.model)

    def chunk(self, piece: Piece) -> ChatCompletion:
        """A chunk of the stream."""
        delta = self._delta(piece)
        logprobs = None if piece.logprobs is None else chat_logprobs(piece.logprobs)
        choice = ChatChunkChoice(piece.choice, delta, piece.finish_reason, logprobs)
        return self._chunk([choice], self.chunk_usage(piece), piece.model)

    def ending(self, usage: Usage, computed_by: str) -> ChatCompletion:
        """The chunk that ends a stream for which usage was asked."""
        return self._chunk([], usage, computed_by)

    def _message(self, choice: WholeChoice) -> AssistantMessage:
        calls: list[Call] | UnsetType = UNSET
        if choice.calls:
            calls = [
                Call(UNSET, call_id(self.answer_id, choice.choice, number), "function", CallFunction(name, arguments))
                for number, name, arguments in choice.calls
            ]
        thought = choice.thought or UNSET
        text = None if choice.calls and not choice.text else choice.text
        return AssistantMessage(text, reasoning_content=thought, reasoning=thought, tool_calls=calls)

    def _delta(self, piece: Piece) -> Delta:
        text, thought = piece.text or UNSET, piece.thought or UNSET
        if not piece.calls:
            # Most chunks are made here, and each argument costs.
            return Delta(content=text) if thought is UNSET else Delta(UNSET, text, thought, thought)
        calls = [self._delta_call(piece.choice, part) for part in piece.calls]
        return Delta(content=text, reasoning_content=thought, reasoning=thought, tool_calls=calls)

    def _delta_call(self, choice: int, part: CallPart) -> Call:
        if not part.name:
            return Call(part.number, UNSET, UNSET, CallFunction(UNSET, part.arguments))
        function = CallFunction(part.name, part.arguments)
        return Call(part.number, call_id(self.answer_id, choice, part.number), "function", function)

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None, computed_by: str
    ) -> ChatCompletion:
        return self._object("chat.completion.chunk", choices, usage, computed_by)

    def _object(
        self,
        kind: str,
        choices: list[ChatChoice] | list[ChatChunkChoice],
        usage: Usage | UnsetType | None,
        computed_by: str,
        prompt_logprobs: Raw | UnsetType = UNSET,
    ) -> ChatCompletion:
        fingerprint = _system_fingerprint(computed_by)
        facts = self.answer_id, kind, self.created, self.model
        return ChatCompletion(*facts, choices, fingerprint, usage, prompt_logprobs)


def format_of(answer_id: str, context: AnswerContext) -> Format:
    """The format of a request's answer."""
    kind = ChatFormat if context.kind == "chat" else CompletionFormat
    return kind(answer_id, context.created, context.model, context.include_usage)


def _completion_logprobs(piece: Piece) -> CompletionLogprobs | Raw | None:
    if piece.logprobs is None:
        return None
    if piece.echoed is None:
        return completion_logprobs(piece.logprobs)
    whole = piece.echoed.copy()
    whole.add(piece.logprobs)
    return whole.json()


def _system_fingerprint(computed_by: str) -> str | None:
    """`bt-0123456789ab-float32` for `0123456789abcdef.../float32`; None where nothing has been computed."""
    fingerprint, _, dtype = computed_by.partition("/")
    return f"bt-{fingerprint[:FINGERPRINT_CHARACTERS]}-{dtype}" if computed_by else None
