"""Answers as models write them, and a parser that is fed with their pieces."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from pydantic_core import from_json

from scheduler_svc.frontend.parsing.message import MessageParser, MessagePart, MessageRules
from scheduler_svc.frontend.parsing.text_parameters import named_parameters

HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": "x", "b": [1, {"c": "}"}]}}\n</tool_call>'
HERMES_ARGUMENTS = '{"a": "x", "b": [1, {"c": "}"}]}'
_PARAMETERS = "<parameter=a>\nx\n</parameter>\n<parameter=b>\n[1, 2]\n</parameter>\n"
CODER = f"<tool_call>\n<function=f>\n{_PARAMETERS}</function>\n</tool_call>"
CODER_ARGUMENTS = '{"a": "x", "b": [1, 2]}'
JSON = '{"name": "f", "parameters": {"a": "x"}}'
PARAMETERS = {"f": {"a": (), "b": None}}
ARGUMENTS = {"hermes": HERMES_ARGUMENTS, "qwen3_coder": CODER_ARGUMENTS, "json": '{"a": "x"}'}
CALLS = {"hermes": HERMES, "qwen3_coder": CODER, "json": JSON}


class Message(NamedTuple):
    """A message's parts, joined.

    Attributes:
        calls: name and arguments of each.
    """

    thought: str
    content: str
    calls: list[tuple[str, str]]


def parsed(rules: MessageRules, pieces: Iterable[str]) -> Message:
    """The message that these pieces are. Checks that calls are numbered, and each is named once, when it begins; and
    that the parser says that a call was cut just where arguments are no JSON, but the beginning of some."""
    parser = MessageParser(rules)
    message = joined([*map(parser.feed, pieces), parser.flush()])
    assert parser.has_cut_call == (not all(is_object(arguments) for _, arguments in message.calls)), message.calls
    for _, arguments in message.calls:
        from_json(arguments, allow_partial="trailing-strings")
    return message


def is_object(text: str) -> bool:
    """Whether a text is the JSON of an object, for any client."""
    try:
        said = json.loads(text, parse_constant=lambda name: 1 / 0)
        json.dumps(said, ensure_ascii=False).encode()  # half a surrogate pair is none of Unicode's characters
    except (ValueError, RecursionError, ZeroDivisionError):
        return False
    return isinstance(said, dict)


def joined(parts: Iterable[MessagePart]) -> Message:
    """One message of its parts."""
    parts = list(parts)
    names: list[str] = []
    arguments: list[list[str]] = []
    for call in (call for part in parts for call in part.calls):
        assert bool(call.name) == (call.number == len(names)), call
        assert call.name or call.number == len(names) - 1, call
        if call.name:
            names.append(call.name)
            arguments.append([])
        assert call.name or call.arguments, "a part that says nothing"
        arguments[call.number].append(call.arguments)
    return Message(
        "".join(part.thought for part in parts),
        "".join(part.content for part in parts),
        list(zip(names, map("".join, arguments), strict=True)),
    )


def rules(calls: Any = "none", thought: Any = "none", *, is_one_call: bool = False) -> MessageRules:
    """As a request has them."""
    return MessageRules(
        calls=calls,
        thought=thought,
        is_one_call=is_one_call,
        parameters=PARAMETERS,
        stop_in_thought=thought == "none",
        calls_in_thought="none" not in (calls, thought),
    )


def rules_of(
    schemas: dict[str, dict[str, Any] | None], thought: Any = "none", calls: Any = "qwen3_coder"
) -> MessageRules:
    """The rules for calls of tools with these schemas, as a request makes them."""
    return MessageRules(
        thought=thought,
        calls=calls,
        stop_in_thought=thought == "none",
        calls_in_thought="none" not in (calls, thought),
        parameters={name: named_parameters(schema) for name, schema in schemas.items()},
    )
