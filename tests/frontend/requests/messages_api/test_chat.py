"""What a message may ask for, and the chat that it is."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import RequestRejected
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.body import Parsed, parse_noting
from scheduler_svc.frontend.requests.chat_style import ChatStyle, style_of
from scheduler_svc.frontend.requests.messages_api.chat import chat_request
from scheduler_svc.frontend.requests.messages_api.schemas import CountTokensRequest, MessageRequest
from scheduler_svc.frontend.requests.messages_api.tokenize import message_context, tokenize_message, tokenize_to_count
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest
from scheduler_svc.frontend.text.chat_template import ChatTemplate
from scheduler_svc.frontend_options import FrontendOptions
from tests.support.chat_templates import QWEN3_LIKE
from tests.support.chats import finished
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.effort import examples

USER = {"role": "user", "content": "x"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "u", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "u"}
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
THINKER = copy.copy(TOKENIZER)
THINKER.chat_template = ChatTemplate(QWEN3_LIKE, {})
THINKS = style_of(THINKER.chat_template, FrontendOptions())
PLAIN = ChatStyle(calls="hermes", shows_tools=True)


def read(options: FrontendOptions | None = None, **asked: object) -> Parsed[MessageRequest]:
    body = {"model": "m", "max_tokens": 10, "messages": [USER]} | asked
    return parse_noting(json.dumps(body).encode(), MessageRequest, options)


def tokenized(style: ChatStyle = THINKS, **asked: object) -> TokenizedRequest:
    return finished(tokenize_message(read(**asked).body, THINKER, 2048, style), THINKER)


def turns(*asked: tuple[str, object]) -> list[dict]:
    """The chat's messages, as templates get them."""
    messages = [{"role": role, "content": content} for role, content in asked]
    return [message.plain() for message in chat_request(read(messages=messages).body, "id", THINKS).messages]


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def test_neighbours_of_one_role_are_one_message():
    told = turns(("user", "a"), ("user", [text("b")]), ("system", "s"), ("assistant", "c"), ("assistant", [text("d")]))
    assert [(message["role"], message["content"]) for message in told] == [
        ("user", "a\nb"),
        ("system", "s"),
        ("assistant", "c\nd"),
    ]


def test_what_the_assistant_said_and_what_came_of_it():
    thoughts = [{"type": "thinking", "thinking": words, "signature": "any"} for words in ("t", "u")]
    said = [*thoughts, {"type": "redacted_thinking", "data": "d"}, text("a"), USE, USE | {"id": "v", "input": {}}]
    results = [RESULT | {"content": [text("r"), text("s")]}, RESULT | {"tool_use_id": "v"}, text("b"), text("c")]
    assert turns(("user", "x"), ("assistant", said), ("user", results)) == [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": "a",
            "reasoning_content": "t\nu",
            "tool_calls": [
                {"id": "u", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                {"id": "v", "type": "function", "function": {"name": "f", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_call_id": "u", "content": "r\ns"},
        {"role": "tool", "tool_call_id": "v", "content": ""},
        {"role": "user", "content": "b\nc"},
    ]


def test_a_call_that_failed_says_so():
    failed = [RESULT | {"content": "r", "is_error": True}, RESULT | {"is_error": True}, RESULT | {"is_error": False}]
    assert [turn["content"] for turn in turns(("user", failed))] == ["Error: r", "Error: ", ""]


def test_tools_are_shown_as_a_chat_shows_them():
    asked = TOOL | {"description": "d", "strict": False, "cache_control": {"type": "ephemeral"}, "type": "custom"}
    for tool in (asked, TOOL):
        [shown] = [tool.plain() for tool in chat_request(read(tools=[tool]).body, "id", THINKS).tools]
        said = {"description": "d"} if "description" in tool else {}
        assert shown == {"type": "function", "function": {"name": "f", **said, "parameters": {"type": "object"}}}
        assert list(shown["function"]) == ["name", *said, "parameters"]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [USE]}]}, "messages[0]"),
        ({"messages": [USER, {"role": "assistant", "content": [RESULT]}]}, "messages[1]"),
        ({"messages": [{"role": "assistant", "content": [{**USE, "input": "x"}]}]}, "messages[0].content[0].input"),
        ({"messages": [USER, {"role": "assistant", "content": [text("a"), USE]}]}, "messages"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"system": 5}, "system"),
        ({"temperature": 1.1}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL | {"name": "x" * 129}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto", "name": "f"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "thinking"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
        ({"output_format": FORMAT, "output_config": {"format": FORMAT}}, "output_format"),
        ({"container": "c"}, "container"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"speed": "fast"}, "speed"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"n": 1}, "n"),
        ({"request_id": "a/b"}, "request_id"),
    ],
)
def test_what_is_refused(asked: dict, param: str):
    with pytest.raises(ApiError) as caught:
        tokenized(**asked)
    assert (caught.value.status, caught.value.param) == (400, param), caught.value.message


@pytest.mark.parametrize(
    ("asked", "style", "param"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, PLAIN, "thinking.budget_tokens"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"x": "y" * 2**17}}}},
            THINKS,
            "output_config.format.schema",
        ),
        ({"messages": [{"role": "user", "content": "x " * 2048}]}, THINKS, "messages"),
    ],
)
def test_errors_of_chats_name_what_was_sent(asked: dict, style: ChatStyle, param: str):
    with pytest.raises(ApiError) as caught:
        tokenized(style, **asked)
    assert caught.value.param == param
    assert "thinking_token_budget" not in caught.value.message
    assert "response_format" not in caught.value.message


@pytest.mark.parametrize("asked", [{"output_format": FORMAT}, {"output_config": {"format": FORMAT}}])
def test_a_grammar_is_named_as_it_was_sent(asked: dict):
    grammar = tokenized(**asked).grammar
    assert grammar is not None
    assert grammar.spec.kind == "json"
    assert grammar.param == ("output_format.schema" if "output_format" in asked else "output_config.format.schema")


@pytest.mark.parametrize("said", [[USE], [USE, text("so")]])
def test_a_call_of_the_last_message_needs_its_result(said: list[dict]):
    """Also if the message comes in several turns."""
    together = [USER, {"role": "assistant", "content": said}]
    one_by_one = [USER, *({"role": "assistant", "content": [block]} for block in said)]
    for messages in (together, one_by_one):
        with pytest.raises(ApiError, match="calls a tool: send its result") as caught:
            tokenized(messages=messages)
        assert caught.value.param == "messages"


def test_tools_whose_schema_is_not_sent_are_refused_by_their_type():
    with pytest.raises(ApiError, match=r"only tools of the type 'custom'.* no 'bash_20250124'"):
        read(tools=[{"type": "bash_20250124", "name": "bash"}])


@pytest.mark.parametrize(("effort", "budget"), [("low", 1024), ("medium", 4096), ("high", None), ("max", None)])
def test_effort_is_that_of_a_thought_that_the_model_may_have(effort: str, budget: int | None):
    asked = {"output_config": {"effort": effort}}
    adaptive = tokenized(thinking={"type": "adaptive"}, **asked)
    assert (adaptive.grammar and adaptive.grammar.spec.thought_budget) == budget
    assert tokenized(PLAIN, thinking={"type": "adaptive"}, **asked).grammar is None
    assert tokenized(**asked).grammar is None


def test_template_variables_count_more():
    quiet, thinking = tokenized(), tokenized(chat_template_kwargs={"enable_thinking": True})
    assert len(quiet.prompts[0]) > len(thinking.prompts[0])


def test_what_is_said_of_the_answer():
    asked = {"stop_sequences": ["x"], "resumable": True, "request_id": "r", "stream": True, "seed": 5, "min_p": 0.5}
    request = tokenized(priority=3, cache_salt="s", timeout_s=2.5, temperature=0, **asked)
    assert (request.request_id, request.stop, request.stream, request.is_resumable) == ("r", ("x",), True, True)
    assert (request.priority, request.cache_salt, request.timeout_s) == (3, "s", 2.5)
    [params] = request.params
    assert (params.max_tokens, params.seed, params.min_p, params.temperature) == (10, 5, 0.5, 0)
    hides = {"thinking": {"type": "adaptive", "display": "omitted"}}
    context = message_context(request, read(**hides).body, "name")
    assert (context.kind, context.model, context.stop, context.is_resumable) == ("message", "name", ("x",), True)
    assert context.hides_thought
    assert tokenized().request_id.startswith("msg_")
    assert tokenized(seed=None).params[0].seed != tokenized(seed=None).params[0].seed


def test_unknown_fields_inside_are_ignored_and_told():
    deep = {"type": "text", "text": "x", "a": 1, "cache_control": {"type": "ephemeral"}}
    asked = {"messages": [{"role": "user", "content": [deep], "b": 1}], "system": [deep], "tools": [TOOL | {"c": 1}]}
    ignored = read(**asked).ignored
    assert set(ignored) == {"messages.content.a", "messages.b", "system.a", "tools.c"}
    with pytest.raises(ApiError, match="Unknown parameter: 'betas'"):
        read(betas=[])
    assert read(FrontendOptions(allow_unknown=True), betas=[]).ignored == ("betas",)


def test_there_may_be_more_tools_than_openai_allows():
    """Claude Code with several MCP servers sends 188."""
    tools = [{**TOOL, "name": f"mcp__server__tool_{number}"} for number in range(188)]
    assert len(chat_request(read(tools=tools).body, "id", THINKS).tools) == 188
    asked = {"type": "tool", "name": "mcp__server__tool_187"}
    steps = tokenize_message(read(tools=tools, tool_choice=asked).body, THINKER, 2**16, THINKS)
    grammar = json.loads(finished(steps, THINKER).grammar.spec.text)
    assert [tool["name"] for tool in grammar["tools"]] == ["mcp__server__tool_187"]


def test_images_that_a_tool_gave_become_a_line():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    result = {"role": "user", "content": [RESULT | {"content": [text("a"), image]}]}
    messages = [USER, {"role": "assistant", "content": [USE]}, result]
    parsed = read(messages=messages)
    assert [part.text for part in parsed.body.messages[2].content[0].content] == [
        "a",
        "[image left out: this model reads text only]",
    ]
    assert parsed.left_out == ("messages.content[image]",)
    with pytest.raises(ApiError, match="reads texts here, and no 'image'"):
        read(FrontendOptions(images="refuse"), messages=messages)
    kept = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    assert tokenized(context_management=kept).prompts == tokenized().prompts


def test_a_count_is_of_the_prompt_alone():
    schema = {"output_config": {"format": FORMAT}}
    body = {"model": "m", "messages": [USER]} | schema
    asked = parse_noting(json.dumps(body).encode(), CountTokensRequest).body
    counted = finished(tokenize_to_count(asked, THINKER, 1, THINKS), THINKER)
    assert counted.prompts == tokenized(**schema).prompts
    assert counted.grammar is None


def test_a_template_that_refuses():
    refusing = copy.copy(TOKENIZER)
    refusing.chat_template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(RequestRejected, match="roles must alternate"):
        finished(tokenize_message(read().body, refusing, 2048, PLAIN), refusing)


@pytest.mark.parametrize(("asked", "is_shortened"), [(10, False), (2000, False), (10**9, True)])
def test_an_answer_is_no_longer_than_the_window(asked: int, is_shortened: bool):
    request = tokenized(max_tokens=asked)
    left = 2048 - len(request.prompts[0])
    assert (request.params[0].max_tokens, request.may_shorten) == (min(asked, left), is_shortened)
    assert message_context(request, read().body, "m").fills_window == is_shortened
    before_any_executor = finished(tokenize_message(read(max_tokens=asked).body, THINKER, 0, THINKS), THINKER)
    assert (before_any_executor.params[0].max_tokens, before_any_executor.may_shorten) == (asked, False)


def test_a_prompt_that_is_too_long_says_so_in_words_that_agents_know():
    with pytest.raises(ApiError, match=r"^prompt is too long: ") as caught:
        tokenized(messages=[{"role": "user", "content": "x " * 2048}])
    assert caught.value.code == "context_length_exceeded"


ODD: st.SearchStrategy[object] = st.sampled_from(
    [None, True, 0, -1, 2**70, 1e400, "", "x", "\ud800", [], [None], {}, {"type": "text"}, [[]]]
)
BLOCKS = st.sampled_from([text("a"), USE, RESULT, RESULT | {"content": "r"}, {"type": "thinking", "thinking": "t"}])
TURNS = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": st.lists(BLOCKS)})
FIELDS = st.sampled_from([*MessageRequest.model_fields, "more"])


def with_odd_values(value: object, draw: st.DrawFn) -> object:
    """The same, with what nobody expects in some places."""
    if draw(st.integers(0, 30)) == 0:
        return draw(ODD)
    match value:
        case dict():
            return {name: with_odd_values(each, draw) for name, each in value.items()}
        case list():
            return [with_odd_values(each, draw) for each in value]
    return value


@st.composite
def bodies(draw: st.DrawFn) -> dict:
    """Requests that are right but in some places."""
    body = {"model": "m", "max_tokens": 5, "messages": draw(st.lists(TURNS, min_size=1, max_size=4))}
    asked = {
        "system": [text("s")],
        "tools": [TOOL | {"strict": True}],
        "tool_choice": {"type": draw(st.sampled_from(["auto", "any", "none"]))},
        "thinking": draw(st.sampled_from([{"type": "adaptive"}, {"type": "enabled", "budget_tokens": 5}])),
        "output_config": {"effort": "low", "format": FORMAT},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "stop_sequences": ["x"],
    }
    chosen = draw(st.lists(st.sampled_from(sorted(asked)), unique=True))
    whole = with_odd_values(body | {name: asked[name] for name in chosen}, draw)
    odd = draw(st.dictionaries(FIELDS, ODD, max_size=1))
    return whole | odd if isinstance(whole, dict) else odd


def outcome(body: dict, style: ChatStyle) -> TokenizedRequest | ApiError:
    try:
        asked = parse_noting(json.dumps(body).encode(), MessageRequest).body
        return finished(tokenize_message(asked, THINKER, 2048, style), THINKER)
    except ApiError as error:
        return error
    except RequestRejected as rejected:
        return ApiError.of_rejection(rejected)


@settings(max_examples=examples(1000))
@given(body=bodies(), style=st.sampled_from([THINKS, PLAIN]))
def test_whatever_is_sent_it_is_taken_or_refused(body: dict, style: ChatStyle):
    found = outcome(body, style)
    if isinstance(found, ApiError):
        assert 400 <= found.status < 500
        assert json.loads(found.body())["error"]["message"] == found.message_answer().error.message
    else:
        assert found.prompts[0]
        assert found.params[0].max_tokens >= 1
