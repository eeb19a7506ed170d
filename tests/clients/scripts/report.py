"""What a client's script has in common with the others: prompts, tools, and how it tells what works.

A script is started with the service's URL (`http://HOST:PORT/v1`) and the model's name, in the environment of its
client. It writes a JSON line for each feature: `feature`, `ok` (null: does not apply) and `told`, which says why. The
line `{"kill": N}` asks for the executor to be killed and replaced when N more tokens have been generated; a line on
stdin answers.
"""

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.reciter.answers import ANSWERS

BY_WORD = {answer.word.strip(): answer for answer in ANSWERS}
HARBOR, LEDGER, LANTERN, ISLANDS, FERRY, CAPTAIN, WHALE, TELESCOPE, COMPASS, ANCHOR, *OF_CODEX = BY_WORD.values()
BEACON, CARGO, SAILOR = OF_CODEX
FILE = json.loads(LEDGER.tools.partition("<tool_call>\n")[2].partition("\n</tool_call>")[0])["arguments"]
WEATHER = {"city": "Oslo"}
PERSON_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
INSIDE_THE_CALL = 80
"""Tokens of `LEDGER`'s answer with tools: its call's arguments are half written then."""
ADA = {"name": "Ada", "age": 36}


def tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    """A function as OpenAI's API takes it; all its parameters are strings."""
    schema = {
        "type": "object",
        "properties": {key: {"type": "string", "description": told} for key, told in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool("get_weather", "Tell the weather.", city="Name of the city."),
    tool("write_file", "Write a text file.", path="Where.", content="What."),
]
FLAT_TOOLS = [{"type": "function", **each["function"]} for each in TOOLS]
"""The same as Responses take them."""
Feature = Callable[[], Any]
TELL = os.fdopen(os.dup(1), "w")
"""To the test; what clients print goes to stderr."""
os.dup2(2, 1)


class DoesNotApply(Exception):
    """The client has no such thing; the message says what it has."""


def url() -> str:
    """Of the API."""
    return sys.argv[1]


def model() -> str:
    """The served model's name."""
    return sys.argv[2]


def thought_of(text: str) -> str:
    """The thought at the beginning of a text."""
    return text.partition("<think>")[2].partition("</think>")[0].strip()


def said_in(text: str) -> str:
    """A text without the thought at its beginning."""
    return text.partition("</think>\n\n")[2] or text


def spelled(entries: list[Any]) -> str:
    """The text of an answer's log-probabilities, without the token that ends the answer."""
    fields = [entry if isinstance(entry, dict) else entry.model_dump() for entry in entries]
    return b"".join(bytes(entry["bytes"]) for entry in fields).decode().removesuffix("<|im_end|>")


def equal(found: Any, wanted: Any) -> None:
    """Complain if what was found is not what was wanted."""
    if found != wanted:
        raise AssertionError(f"found {found!r:.300}, wanted {wanted!r:.300}")


def refused(error: type[Exception], feature: Feature) -> None:
    """Complain if there is no such error."""
    try:
        feature()
    except error:
        return
    raise AssertionError(f"there was no {error.__name__}")


def kill_the_executor(num_tokens: int = 0) -> None:
    """Returns once the executor is gone that has running sequences, and another is on its way.

    Args:
        num_tokens: that are generated before it is killed.
    """
    print(json.dumps({"kill": num_tokens}), file=TELL, flush=True)
    if sys.stdin.readline() != "killed\n":
        raise RuntimeError("no executor was busy")


def while_killing(feature: Feature, num_tokens: int = INSIDE_THE_CALL) -> None:
    """Try a feature that asks `LEDGER`'s prompt, or another one, and have the executor killed in the middle of the
    call, after so many tokens."""
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(feature)
        kill_the_executor(num_tokens)
        done.result()


def report(*features: Feature, **by_other_names: Feature) -> None:
    """Try all features, in this order; those are called like their functions that have no other name."""
    named = {feature.__name__: feature for feature in features} | by_other_names
    wanted = set(sys.argv[3:]) or set(named)
    for name, feature in named.items():
        if name not in wanted:
            continue
        try:
            found = feature()
            if inspect.iscoroutine(found):
                asyncio.run(found)
            line = {"ok": True, "told": ""}
        except DoesNotApply as error:
            line = {"ok": None, "told": str(error)}
        except BaseException as error:
            traceback.print_exc()
            line = {"ok": False, "told": f"{type(error).__name__}: {error}"[:600]}
        print(json.dumps({"feature": name, **line}), file=TELL, flush=True)
