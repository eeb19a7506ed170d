"""What the acts of `baton demo` ask: a completion, and through the openai package a tool call and a document."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scheduler_svc.client.http.api import Api

if TYPE_CHECKING:
    from openai import OpenAI

_PATH = "/v1/completions"
_SPEAKERS = ["ROMEO", "JULIET", "NURSE", "MERCUTIO"]
_COMPACT = {"whitespace_flexible": False}  # llguidance's: the demo model was not trained on JSON, and would draw spaces
_LETTER = {
    "type": "object",
    "properties": {"to": {"enum": _SPEAKERS}, "text": {"type": "string", "minLength": 160, "maxLength": 240}},
    "required": ["to", "text"],
    "additionalProperties": False,
    "x-guidance": _COMPACT,
}
_SCENE = {
    "type": "object",
    "properties": {
        "act": {"type": "integer", "minimum": 1, "maximum": 5},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "speaker": {"enum": _SPEAKERS},
                    "line": {"type": "string", "minLength": 20, "maxLength": 70},
                },
                "required": ["speaker", "line"],
                "additionalProperties": False,
            },
            "minItems": 3,
            "maxItems": 3,
        },
    },
    "required": ["act", "lines"],
    "additionalProperties": False,
    "x-guidance": _COMPACT,
}


class Question(ABC):
    """Something that is asked twice, once undisturbed.

    Attributes:
        num_tokens: of the last answer that was streamed to its end.
    """

    def __init__(self) -> None:
        self.num_tokens = 0

    @abstractmethod
    def stream(self, salt: str) -> Iterator[str]:
        """The answer, piece by piece. The salt keeps its prefix cache apart, so that everything is computed."""

    def answer(self, salt: str) -> str:
        """The whole answer."""
        return "".join(self.stream(salt))


class Completion(Question):
    """A text that goes on.

    Args:
        body: of the request, without its salt.
    """

    def __init__(self, api: Api, body: dict[str, Any]) -> None:
        super().__init__()
        self._api = api
        self._body = body

    def stream(self, salt: str) -> Iterator[str]:
        """The text, as `Api` reads it."""
        for event in self._api.stream(_PATH, {**self._body, "cache_salt": salt}):
            if event.get("usage"):
                self.num_tokens = event["usage"]["completion_tokens"]
            if event["choices"] and event["choices"][0]["text"]:
                yield event["choices"][0]["text"]


class _Chat(Question):
    """One chat through the openai package, which knows nothing of Baton."""

    def __init__(self, client: "OpenAI", model: str, prompt: str, seed: int, **options: Any) -> None:
        super().__init__()
        self._client = client
        self._request = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "seed": seed,
            "temperature": 0.8,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }

    def stream(self, salt: str) -> Iterator[str]:
        """What each chunk adds."""
        for chunk in self._client.chat.completions.create(**self._request, extra_body={"cache_salt": salt}):
            if chunk.usage is not None:
                self.num_tokens = chunk.usage.completion_tokens
            if chunk.choices and (piece := self._piece(chunk.choices[0].delta)):
                yield piece

    @abstractmethod
    def check(self, answer: str) -> None:
        """Raise ValueError if the answer is not what was asked for."""

    @abstractmethod
    def _piece(self, delta: Any) -> str:
        """The text of a `ChoiceDelta`."""


class ToolCall(_Chat):
    """A call that the model has to make; its arguments are shown as they come."""

    def __init__(self, client: "OpenAI", model: str, seed: int) -> None:
        function = {"name": "send_letter", "description": "Send a letter.", "parameters": _LETTER, "strict": True}
        tools = [{"type": "function", "function": function}]
        options = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
        super().__init__(client, model, "Write a letter from Verona.", seed, **options)

    def check(self, answer: str) -> None:
        """The name once, then arguments with every key."""
        name, _, arguments = answer.partition(" ")
        _need(name == "send_letter" and json.loads(arguments).keys() == {"to", "text"}, answer)

    def _piece(self, delta: Any) -> str:
        calls = [call.function for call in delta.tool_calls or []]
        return "".join((f"{call.name} " if call.name else "") + (call.arguments or "") for call in calls)


class Document(_Chat):
    """JSON by a schema."""

    def __init__(self, client: "OpenAI", model: str, seed: int) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "scene", "schema": _SCENE, "strict": True}}
        super().__init__(client, model, "Write a scene.", seed, response_format=form)

    def check(self, answer: str) -> None:
        """The object with every key, and all lines."""
        scene = json.loads(answer)
        _need(scene.keys() == {"act", "lines"} and len(scene["lines"]) == 3, answer)

    def _piece(self, delta: Any) -> str:
        return delta.content or ""


def _need(is_right: bool, answer: str) -> None:
    if not is_right:
        raise ValueError(f"not what was asked for: {answer}")
