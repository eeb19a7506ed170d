"""How the two endpoints say the same thing: pieces of text as completion objects or as chat objects."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from scheduler_svc.frontend.generation import Piece
from scheduler_svc.frontend.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    Delta,
    Usage,
)


@dataclass(frozen=True)
class Format(ABC):
    """Makes the objects of one answer.

    Attributes:
        answer_id, created, model: what every object of the answer carries; `created` is in Unix seconds.
        fingerprint: asked anew for each object, as weights may be exchanged while an answer goes on.
        include_usage: whether the stream ends with a chunk of usage; the others then carry a null for it.
    """

    answer_id: str
    created: int
    model: str
    fingerprint: Callable[[], str | None]
    include_usage: bool

    @abstractmethod
    def whole(self, pieces: Sequence[Piece], usage: Usage) -> Completion | ChatCompletion:
        """The answer in one object."""

    @abstractmethod
    def opening(self, choice: int) -> Completion | ChatCompletion | None:
        """The chunk that comes before a choice's first text, if the format has one."""

    @abstractmethod
    def chunk(self, piece: Piece) -> Completion | ChatCompletion:
        """A chunk of the stream."""

    @abstractmethod
    def ending(self, usage: Usage) -> Completion | ChatCompletion:
        """The chunk that ends a stream for which usage was asked."""

    @property
    def chunk_usage(self) -> UnsetType | None:
        """The `usage` of chunks that have none."""
        return None if self.include_usage else UNSET


class CompletionFormat(Format):
    """The objects of /v1/completions."""

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> Completion:
        """The answer in one object."""
        return self._object([CompletionChoice(p.choice, p.text, p.finish_reason) for p in pieces], usage)

    def opening(self, choice: int) -> None:
        """Completions have no opening chunk."""

    def chunk(self, piece: Piece) -> Completion:
        """A chunk of the stream."""
        return self._object([CompletionChoice(piece.choice, piece.text, piece.finish_reason)], self.chunk_usage)

    def ending(self, usage: Usage) -> Completion:
        """The chunk that ends a stream for which usage was asked."""
        return self._object([], usage)

    def _object(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        fingerprint = self.fingerprint()
        return Completion(self.answer_id, "text_completion", self.created, self.model, choices, fingerprint, usage)


class ChatFormat(Format):
    """The objects of /v1/chat/completions."""

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> ChatCompletion:
        """The answer in one object."""
        choices = [ChatChoice(p.choice, AssistantMessage(p.text), p.finish_reason) for p in pieces]
        return self._object("chat.completion", choices, usage)

    def opening(self, choice: int) -> ChatCompletion:
        """Says that the assistant speaks."""
        return self._chunk([ChatChunkChoice(choice, Delta(role="assistant", content=""))], self.chunk_usage)

    def chunk(self, piece: Piece) -> ChatCompletion:
        """A chunk of the stream."""
        delta = Delta(content=piece.text) if piece.text else Delta()
        return self._chunk([ChatChunkChoice(piece.choice, delta, piece.finish_reason)], self.chunk_usage)

    def ending(self, usage: Usage) -> ChatCompletion:
        """The chunk that ends a stream for which usage was asked."""
        return self._chunk([], usage)

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatCompletion:
        return self._object("chat.completion.chunk", choices, usage)

    def _object(
        self, kind: str, choices: list[ChatChoice] | list[ChatChunkChoice], usage: Usage | UnsetType | None
    ) -> ChatCompletion:
        return ChatCompletion(self.answer_id, kind, self.created, self.model, choices, self.fingerprint(), usage)
