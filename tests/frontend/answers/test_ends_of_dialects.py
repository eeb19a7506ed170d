"""Where thoughts and answers end, in all dialects: stop strings, calls that end a thought, calls that are required."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.frontend.thinker import CALL, CITY
from tests.frontend.thinker import answering as thinker_says
from tests.support.chat_templates import QWEN3_LIKE, model_with_template
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.fake_core import FakeCore
from tests.support.frontend_process import Frontend, running_frontend

THOUGHT = "<think>\nIs 9.8 more than 9.11?"
DIALECTS = ["chat", "messages", "responses"]
EVERY_WAY = list(itertools.product(DIALECTS, [False, True]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with Qwen3's habits, whose files name another end than its template."""
    folder = model_with_template(tmp_path_factory.mktemp("thinker"), QWEN3_LIKE)
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": 5}))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": None}))
    return folder


@pytest.fixture(scope="module")
def thinker(folder: Path) -> Iterator[Frontend]:
    with running_frontend("--model", str(folder), "--served-model-name", "m") as frontend:
        yield frontend


def tool_of(dialect: str, schema: Any, **more: Any) -> dict[str, Any]:
    if dialect == "messages":
        return {"name": "weather", "input_schema": schema, **more}
    function = {"name": "weather", "parameters": schema, **more}
    return {"type": "function", **(function if dialect == "responses" else {"function": function})}


REQUIRED = {"chat": "required", "messages": {"type": "any"}, "responses": "required"}
NAMED = {
    "chat": {"type": "function", "function": {"name": "weather"}},
    "messages": {"type": "tool", "name": "weather"},
    "responses": {"type": "function", "name": "weather"},
}


def post(frontend: Frontend, dialect: str, **asked: Any) -> httpx.Response:
    body: dict[str, Any] = {"model": "m", **asked}
    if dialect == "responses":
        return frontend.post("/v1/responses", {"input": "Rain?", "store": False, **body})
    body["messages"] = [{"role": "user", "content": "Rain?"}]
    if dialect == "chat":
        return frontend.post("/v1/chat/completions", body)
    body["stop_sequences"] = body.pop("stop", [])
    return frontend.post("/v1/messages", {"max_tokens": 900, "thinking": {"type": "adaptive"}, **body})


def answers(frontend: Frontend, dialect: str, is_streamed: bool, **asked: Any) -> list[dict[str, Any]]:
    """The thought, the content, the names of calls, and why it ended, of each choice."""
    response = post(frontend, dialect, stream=is_streamed, **asked)
    assert response.status_code == 200, response.text
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    if dialect == "chat":
        choices: dict[int, dict[str, Any]] = {}
        for choice in (choice for each in (events if is_streamed else [response.json()]) for choice in each["choices"]):
            said = choice["delta" if is_streamed else "message"]
            found = choices.setdefault(choice["index"], {"thought": "", "content": "", "calls": [], "end": None})
            found["thought"] += said.get("reasoning_content") or ""
            found["content"] += said.get("content") or ""
            found["calls"] += [call["function"]["name"] for call in said.get("tool_calls") or [] if call.get("id")]
            found["end"] = choice["finish_reason"] or found["end"]
        return list(choices.values())
    if dialect == "messages":
        if is_streamed:
            blocks = [dict(event["content_block"]) for event in events if event["type"] == "content_block_start"]
            for event in events:
                if event["type"] == "content_block_delta":
                    for key in ("thinking", "text"):
                        blocks[event["index"]][key] = blocks[event["index"]].get(key, "") + event["delta"].get(key, "")
            end = events[-2]["delta"]["stop_reason"]
        else:
            blocks, end = response.json()["content"], response.json()["stop_reason"]
        texts = {key: "".join(b[key] for b in blocks if b["type"] == key) for key in ("thinking", "text")}
        calls = [block["name"] for block in blocks if block["type"] == "tool_use"]
        return [{"thought": texts["thinking"], "content": texts["text"], "calls": calls, "end": end}]
    items = (events[-1]["response"] if is_streamed else response.json())["output"]
    of_kind = {
        kind: [part["text"] for item in items if item["type"] == kind for part in item["content"]]
        for kind in ("reasoning", "message")
    }
    calls = [item["name"] for item in items if item["type"] == "function_call"]
    return [{"thought": "".join(of_kind["reasoning"]), "content": "".join(of_kind["message"]), "calls": calls,
             "end": "stop"}]  # fmt: skip


def answering(frontend: Frontend, text: str) -> FakeCore:
    frontend.core.forget()
    thinker_says(frontend.core, text)
    return frontend.core


@pytest.mark.parametrize(("dialect", "is_streamed"), EVERY_WAY)
def test_a_stop_string_does_not_end_a_thought(thinker: Frontend, dialect: str, is_streamed: bool):
    more = {"n": 2} if dialect == "chat" else {}
    answering(thinker, f"{THOUGHT}\n</think>\n\nYes, 9.8 is.")
    for found in (all_found := answers(thinker, dialect, is_streamed, stop=["9.8"], **more)):
        assert (found["thought"], found["content"]) == ("Is 9.8 more than 9.11?", "Yes, ")
        assert found["end"] == {"messages": "stop_sequence"}.get(dialect, "stop")
    assert len(all_found) == (2 if more else 1)


def test_an_option_has_stop_strings_end_thoughts_too(folder: Path):
    with running_frontend("--model", str(folder), "--served-model-name", "m", "--stop-in-thoughts") as frontend:
        answering(frontend, f"{THOUGHT}\n</think>\n\nYes, 9.8 is.")
        for dialect in DIALECTS:
            [found] = answers(frontend, dialect, False, stop=["9.8"])
            assert (found["thought"].strip(), found["content"]) == ("Is", "")


@pytest.mark.parametrize(("dialect", "is_streamed"), EVERY_WAY)
def test_a_call_ends_a_thought_that_has_no_end(thinker: Frontend, dialect: str, is_streamed: bool):
    tools = [tool_of(dialect, CITY)]
    answering(thinker, f"{THOUGHT}\n{CALL}")
    [found] = answers(thinker, dialect, is_streamed, tools=tools)
    assert (found["thought"], found["content"], found["calls"]) == ("Is 9.8 more than 9.11?", "", ["weather"])
    assert found["end"] == {"messages": "tool_use", "chat": "tool_calls"}.get(dialect, "stop")
    answering(thinker, f"{THOUGHT}\n{CALL}\n</think>\n\nNo.")
    [found] = answers(thinker, dialect, is_streamed, tools=tools)
    assert (found["thought"], found["content"], found["calls"]) == (f"Is 9.8 more than 9.11?\n{CALL}", "No.", [])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("choice", [REQUIRED, NAMED])
def test_a_call_can_be_required_whatever_the_schema(thinker: Frontend, dialect: str, choice: dict[str, Any]):
    said = {"city": {"type": "any"}, "mail": {"type": "string", "pattern": "^(?!x).*$"}, "to": {"$ref": "#/$defs/gone"}}
    answering(thinker, CALL)
    for schema in (
        {"type": "object", "properties": said, "required": ["city"]},
        {"type": "object", "properties": None},
    ):
        more = {} if dialect != "responses" else {"strict": False}
        [found] = answers(
            thinker, dialect, False, tools=[tool_of(dialect, schema, **more)], tool_choice=choice[dialect]
        )
        assert found["calls"] == ["weather"]
    strict = tool_of(dialect, {**CITY, "properties": {"city": {"const": 2**64}}}, strict=True)
    refused = post(thinker, dialect, tools=[strict], tool_choice=choice[dialect])
    assert refused.status_code == 400
    assert "tool 'weather': #/properties/city/const is 18446744073709551616" in refused.text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_chat_ends_where_the_template_ends_an_answer(thinker: Frontend, dialect: str):
    core = answering(thinker, "Yes.")
    assert post(thinker, dialect).status_code == 200
    assert core.submits[0].params.stop_token_ids == (5, TOKENIZER.special_tokens["<|im_end|>"])
    thinker.post("/v1/completions", {"model": "m", "prompt": "x"})
    assert core.submits[1].params.stop_token_ids == (5,)
