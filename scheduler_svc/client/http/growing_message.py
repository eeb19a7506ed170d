"""A chat answer that streams, put together from its deltas; pure."""

import json
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass
class Call:
    """A call of a tool, as far as it has come.

    Attributes:
        arguments: JSON, as the model wrote it.
    """

    id: str = ""
    name: str = ""
    arguments: str = ""

    def json(self) -> Json:
        """As messages have it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    def __str__(self) -> str:
        """For people: `get_weather(city="Paris", days=3)`."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            return f"{self.name}({self.arguments})"
        shown = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
        return f"{self.name}({', '.join(shown)})"


class GrowingMessage:
    """Takes the deltas of one choice in order."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, Call] = {}

    @property
    def content(self) -> str:
        """The answer's text so far."""
        return self._text("content")

    @property
    def thought(self) -> str:
        """What the model has thought so far."""
        return self._text("reasoning_content") or self._text("reasoning")

    @property
    def calls(self) -> list[Call]:
        """Calls of tools so far; the last one may be incomplete."""
        return [self._calls[number] for number in sorted(self._calls)]

    def add(self, delta: Json) -> None:
        """The next delta. Texts go on where those before them ended, and so do arguments of calls."""
        for name, value in delta.items():
            if name == "tool_calls":
                for part in value or ():
                    self._add_call(part)
            elif isinstance(value, str) and name != "role":
                self._texts.setdefault(name, []).append(value)

    def json(self) -> Json:
        """The message, as an answer that does not stream has it."""
        message: Json = {"content": self.content, "role": "assistant", "refusal": None}
        message |= {name: "".join(pieces) for name, pieces in self._texts.items()}
        if self._calls:
            message["content"] = self.content or None
            message["tool_calls"] = [call.json() for call in self.calls]
        return message

    def _add_call(self, part: Json) -> None:
        call = self._calls.setdefault(int(part.get("index") or 0), Call())
        function = part.get("function") or {}
        call.id = call.id or part.get("id") or ""
        call.name = call.name or function.get("name") or ""
        call.arguments += function.get("arguments") or ""

    def _text(self, name: str) -> str:
        return "".join(self._texts.get(name, ()))


def thought_of(delta: Json) -> str:
    """What a delta adds to the thought. Servers call it one or the other, or send both names."""
    return delta.get("reasoning_content") or delta.get("reasoning") or ""
