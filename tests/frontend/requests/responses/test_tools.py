"""Tools of Responses that chats do not have: namespaces, custom tools, those of servers; and what Codex sends."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from scheduler_svc.frontend.answers.responses.called_tool import CalledTool, CustomInput
from scheduler_svc.frontend.answers.responses.events import ResponseSpec
from tests.frontend import thinker
from tests.frontend.grammars.apply_patch import APPLY_PATCH, PATCH
from tests.support.effort import examples
from tests.support.fake_core import FakeCore
from tests.support.frontend_process import MODEL, Frontend, assert_openai_shape, running_frontend

CODEX = json.loads((Path(__file__).parent / "codex.json").read_text())
"""First requests of a session of Codex 0.171.0, by the model's name, with shorter texts and fewer functions."""
EVENT = TypeAdapter(ResponseStreamEvent)
LARK = {"type": "grammar", "syntax": "lark", "definition": APPLY_PATCH}
PATCHES = {"type": "custom", "name": "apply_patch", "description": "Edit files.", "format": LARK}
NOTES = {"type": "custom", "name": "note"}
CLOSE = {"type": "function", "name": "close", "parameters": {"type": "object"}}
SPACE = {"type": "namespace", "name": "agents", "description": "Of agents.", "tools": [CLOSE, NOTES]}


@pytest.fixture(scope="module")
def shared_frontend(tmp_path_factory) -> Iterator[Frontend]:
    folder = tmp_path_factory.mktemp("store")
    with running_frontend("--store", str(folder), "--reasoning-parser", "qwen3") as frontend:
        yield frontend


@pytest.fixture
def says(core: FakeCore):
    """Has the model write a call, or any text."""

    def script(text: str, **arguments: object) -> None:
        if arguments:
            written = json.dumps({"name": text, "arguments": arguments}, ensure_ascii=False)
            text = f"<tool_call>\n{written}\n</tool_call>"
        thinker.answering(core, text)

    return script


def prompt_of(core: FakeCore) -> str:
    return thinker.prompt_of(core.submits[-1])


def ask(frontend: Frontend, **asked: object) -> httpx.Response:
    return frontend.post("/v1/responses", {"model": MODEL, "input": "Hi", "max_output_tokens": 200, **asked})


def output_of(answer: httpx.Response) -> list[dict]:
    """Its items, which openai's package knows, too."""
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json())
    return answer.json()["output"]


def events_of(answer: httpx.Response) -> list[dict]:
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    for event in events:
        EVENT.validate_python(event)
    return events


def test_a_custom_tool_is_a_function_of_one_text_for_the_model(frontend, core, says):
    says("apply_patch", input=PATCH)
    [item] = output_of(ask(frontend, tools=[PATCHES]))
    assert {name: item[name] for name in ("type", "name", "input", "status")} == {
        "type": "custom_tool_call", "name": "apply_patch", "input": PATCH, "status": "completed"
    }  # fmt: skip
    prompt = prompt_of(core)
    assert '"name": "apply_patch"' in prompt
    assert "begin_patch hunk+ end_patch" in prompt, "the model is shown the grammar"
    assert '"pattern"' not in prompt, "and not what becomes of it"
    constraints = core.submits[-1].params.constraints
    assert "End" in constraints.grammar, "its calls are held to the grammar"


def test_a_custom_call_streams_its_input(frontend, says):
    says("apply_patch", input=PATCH)
    events = events_of(ask(frontend, tools=[PATCHES], stream=True))
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if event["type"].endswith("custom_tool_call_input.delta")]
    assert len(deltas) > 5
    assert "".join(deltas) == PATCH
    assert [kind for kind in kinds if "delta" not in kind] == [
        *("created", "in_progress", "output_item.added", "custom_tool_call_input.done", "output_item.done", "completed")
    ]
    done = events[kinds.index("custom_tool_call_input.done")]
    assert (done["input"], events[-1]["response"]["output"][0]["input"]) == (PATCH, PATCH)
    assert events[kinds.index("output_item.added")]["item"]["input"] == ""


def test_a_free_text_is_held_to_nothing(frontend, core, says):
    says("note", input='a "b"')
    [item] = output_of(ask(frontend, tools=[NOTES]))
    assert item["input"] == 'a "b"'
    assert core.submits[-1].params.constraints is None


def test_functions_of_a_namespace_are_called_by_both_names(frontend, core, says):
    says("agents.close", target="x")
    [call] = output_of(ask(frontend, tools=[SPACE, CLOSE]))
    assert (call["type"], call["name"], call["namespace"]) == ("function_call", "close", "agents")
    assert prompt_of(core).count("Of agents.") == 1
    says("close", target="x")
    [call] = output_of(ask(frontend, tools=[SPACE, CLOSE]))
    assert (call["name"], "namespace" in call) == ("close", False)
    says("agents.note", input="x")
    [custom] = output_of(ask(frontend, tools=[SPACE]))
    assert (custom["type"], custom["name"], custom["namespace"]) == ("custom_tool_call", "note", "agents")


@pytest.mark.parametrize("is_stored", [True, False])
def test_calls_go_back_with_their_results(frontend, core, says, is_stored):
    says("agents.note", input="x\n")
    first = ask(frontend, tools=[SPACE, PATCHES]).json()
    result = {"type": "custom_tool_call_output", "call_id": first["output"][0]["call_id"], "output": "noted"}
    asked = {"input": [result], "previous_response_id": first["id"]}
    if not is_stored:
        asked = {"input": [{"role": "user", "content": "Hi"}, *first["output"], result]}
    says("So it is.")
    second = ask(frontend, tools=[SPACE, PATCHES], **asked)
    assert output_of(second)[0]["content"][0]["text"] == "So it is."
    prompt = prompt_of(core)
    called = prompt.index('"name": "agents.note", "arguments": {"input": "x\\n"}')
    assert called < prompt.index("noted")
    items = frontend.client().responses.input_items.list(second.json()["id"], order="asc").data
    assert [item.type for item in items][-1] == "custom_tool_call_output"


def test_tools_that_an_item_adds_count_as_if_they_stood_in_tools(frontend, core, says):
    added = {"type": "additional_tools", "role": "developer", "tools": [SPACE, {"type": "web_search"}]}
    says("agents.close", target="x")
    first = ask(frontend, input=[added, {"role": "user", "content": "Hi"}])
    assert output_of(first)[0]["namespace"] == "agents"
    assert first.headers["x-baton-left-out"] == "tools[web_search]"
    again = ask(frontend, input="And again.", previous_response_id=first.json()["id"])
    assert output_of(again)[0]["namespace"] == "agents", "they were stored"


def test_tools_of_a_server_are_left_out_and_the_answer_says_so(frontend, core, says):
    says("Yes.")
    answer = ask(frontend, tools=[{"type": "web_search", "filters": {}}, CLOSE, {"type": "tool_search"}])
    assert answer.headers["x-baton-left-out"] == "tools[web_search], tools[tool_search]"
    assert [tool["type"] for tool in answer.json()["tools"]] == ["function"]
    assert "field=tools[tool_search]" in frontend.log
    assert "x-baton-left-out" not in ask(frontend, tools=[CLOSE]).headers
    some = [{"type": "web_search"}, {"type": "function", "name": "close"}]
    for choice in ({"type": "web_search"}, {"type": "allowed_tools", "mode": "auto", "tools": some}):
        error = assert_openai_shape(ask(frontend, tools=[{"type": "web_search"}, CLOSE], tool_choice=choice), 400)
        assert (error["param"], "this server runs no tools of its own" in error["message"]) == ("tool_choice", True)


@pytest.mark.parametrize(
    ("choice", "echoed"),
    [
        ({"type": "custom", "name": "apply_patch"}, {"type": "custom", "name": "apply_patch"}),
        ({"type": "function", "name": "close"}, {"type": "function", "name": "close"}),
        ({"type": "function", "name": "close", "namespace": "agents"}, {"type": "function", "name": "agents.close"}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]},
         {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]}),
    ],
)  # fmt: skip
def test_a_choice_names_a_tool_of_any_kind(frontend, core, says, choice, echoed):
    says("x")
    answer = ask(frontend, tools=[PATCHES, SPACE], tool_choice=choice)
    assert answer.status_code == 200, answer.text
    assert answer.json()["tool_choice"] == echoed
    grammar = core.submits[-1].params.constraints.grammar
    assert ("agents.close" in grammar, "apply_patch" in grammar) == ("close" in str(choice), "patch" in str(choice))


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"tools": [PATCHES | {"format": LARK | {"definition": 'start: "a" start?'}}]}, "'apply_patch' cannot be held"),
        ({"tools": [PATCHES | {"format": {"type": "grammar"}}]}, "needs 'syntax' and 'definition'"),
        ({"tools": [PATCHES | {"format": LARK | {"syntax": "regex", "definition": "("}}]}, "tools"),
        ({"tools": [SPACE, SPACE]}, "two have the name 'agents.close'"),
        ({"tools": [SPACE | {"tools": [SPACE]}]}, "tools[0].tools[0]"),
        ({"tools": [{"type": "no_such"}]}, "of the type 'no_such' are not known here"),
        ({"tools": [CLOSE | {"name": f"f{number}"} for number in range(129)]}, "the limit is 128"),
    ],
)  # fmt: skip
def test_tools_that_are_refused(frontend, asked, text):
    assert text in assert_openai_shape(ask(frontend, **asked), 400)["message"]


@pytest.mark.parametrize("name", CODEX)
def test_what_codex_sends_is_taken(frontend, core, says, name):
    says("Hello.")
    events = events_of(ask(frontend, **{**CODEX[name], "model": MODEL}))
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello."
    assert "You are a coding agent" in prompt_of(core) or name != "unknown"
    tools = {"unknown": "multi_agent_v1.close_agent", "gpt-5.5": "apply_patch", "gpt-6.2-sol": "functions.exec"}
    assert f'"name": "{tools[name]}"' in prompt_of(core)


# --- the input of a custom tool, out of its arguments ---


def read(arguments: str, sizes: list[int]) -> tuple[list[str], str]:
    """What comes while the arguments come, cut so, and what comes at their end."""
    reader, place = CustomInput(), 0
    found: list[str] = []
    while place < len(arguments):
        size = sizes[len(found) % len(sizes)]
        found.append(reader.feed(arguments[place : place + size]))
        place += size
    return found, reader.end()


@settings(max_examples=examples(200))
@given(st.text(max_size=30), st.booleans(), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_an_input_is_the_same_however_its_arguments_are_cut(text, is_ascii, sizes):
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii)
    found, rest = read(arguments, sizes)
    assert "".join(found) == text
    assert rest == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"patch": "x"}', "x"),
        ('"x"', "x"),
        ("{}", ""),
        ("", ""),
        ('{"a": 1, "b": "x"}', '{"a": 1, "b": "x"}'),
        ('{"input": 5}', '{"input": 5}'),
        ('{"input": "x", "more": 1}', "x"),
        ('{"input": "cut \\', "cut "),
        ('{"in', '{"in'),
        ("no JSON", "no JSON"),
        ("[" * 99999, "[" * 99999),
        (" " * 300 + '{"input": "late"}', "late"),
    ],
)
def test_arguments_that_are_not_as_they_should_be(arguments, text):
    for sizes in ([1], [7], [10**6]):
        found, rest = read(arguments, sizes)
        assert "".join(found) + rest == text


def test_work_that_was_stored_before_there_were_such_tools_is_read():
    spec = ResponseSpec("resp_0", b"{}", False, False, True, {"n.f": CalledTool("f", "n")})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=ResponseSpec) == spec
    before = msgspec.to_builtins(spec)[:5]
    assert msgspec.convert(before, ResponseSpec).tools == {}
