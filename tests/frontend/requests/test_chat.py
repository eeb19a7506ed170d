"""What a chat may ask for: tools, thinking, continued messages, and what clients send that has no meaning here."""

import copy
import json

import pytest
from structlog.testing import capture_logs

from common.errors import RequestRejected
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.parsing.message import MessageRules
from scheduler_svc.frontend.requests.body import MAX_STRINGS, Parsed, parse_noting
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.chat_style import ChatStyle, style_of
from scheduler_svc.frontend.requests.ignored import MAX_KNOWN, MAX_NAMES, PLACES, IgnoredFields, place_of
from scheduler_svc.frontend.requests.messages import CalledFunction, ChatMessage, TextPart, ToolCall
from scheduler_svc.frontend.requests.messages_api.blocks import SystemText
from scheduler_svc.frontend.requests.messages_api.schemas import ContextEdit
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest
from scheduler_svc.frontend.requests.tokenized_request import TokenizedRequest, tokenize_completion
from scheduler_svc.frontend.requests.tools import Function, Tool
from scheduler_svc.frontend.text.chat_template import ChatTemplate
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend_options import FrontendOptions
from tests.support.chat_templates import QWEN3_LIKE
from tests.support.chats import finished
from tests.support.demo_tokenizer import TOKENIZER, decoded


def with_template(source: str) -> Tokenizer:
    """The tokenizer of a model with another chat template."""
    tokenizer = copy.copy(TOKENIZER)
    tokenizer.chat_template = ChatTemplate(source, {})
    vars(tokenizer).pop("chat_eos_token_ids", None)  # of the other template
    return tokenizer


THINKER = with_template(QWEN3_LIKE)
SILENT = with_template("{% for m in messages %}{{ m.content }}{% endfor %}")
WALKER = with_template("x{% for k, v in messages[0].tool_calls[0].function.arguments|items %};{{ k }}{% endfor %}")
USER = {"role": "user", "content": "x"}


def read(options: FrontendOptions | None = None, **asked: object) -> Parsed[ChatRequest]:
    body = {"model": "m", "messages": [USER]} | asked
    return parse_noting(json.dumps(body).encode(), ChatRequest, options)


def chat(tokenizer: Tokenizer = TOKENIZER, style: ChatStyle | None = None, **asked: object) -> TokenizedRequest:
    return finished(tokenize_chat(read(**asked).body, tokenizer, 2048, style), tokenizer)


def prompt_of(request: TokenizedRequest) -> str:
    return decoded(request.prompts[0])


def tool(name: str = "f", **more: object) -> dict:
    return {"type": "function", "function": {"name": name, **more}}


def refusal(**asked: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**asked)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("name", ["messages", "tools", "eos_token", "add_generation_prompt"])
def test_template_variables_cannot_replace_what_the_server_sets(name: str):
    error = refusal(chat_template_kwargs={name: "x", "other": 1})
    assert error.param == "chat_template_kwargs"
    assert f"cannot set {name}" in error.message


# --- tools ---

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STRICT = tool("s", parameters=SCHEMA, strict=True)
LOOSE = tool("l", parameters=SCHEMA)


def test_tools_are_shown_and_their_calls_read():
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": None}):
        request = chat(tools=[tool(description="d", strict=False, other=1)], **choice)
        assert '{"type": "function", "function": {"name": "f", "description": "d"}}\n' in prompt_of(request)
        assert request.message == MessageRules(calls="hermes")
        assert request.grammar is None


@pytest.mark.parametrize("asked", [{"tools": [LOOSE], "tool_choice": "none"}, {"tools": []}, {"tools": None}, {}])
def test_without_tools_nothing_is_read(asked: dict):
    request = chat(**asked)
    assert prompt_of(request) == prompt_of(chat())
    assert (request.message, request.grammar) == (MessageRules(), None)


@pytest.mark.parametrize(
    ("asked", "is_required", "is_one_call", "names"),
    [
        ({"tool_choice": "required"}, True, False, ["s", "l"]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, True, True, ["s", "l"]),
        ({"tool_choice": {"type": "function", "function": {"name": "l"}}}, True, True, ["l"]),
        ({"tool_choice": "auto"}, False, False, ["s", "l"]),
        ({"parallel_tool_calls": False}, False, True, ["s", "l"]),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("s")]}}},
            False,
            False,
            ["s"],
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("l")]}}},
            True,
            False,
            ["l"],
        ),
    ],
)
def test_which_calls_there_may_be(asked: dict, is_required: bool, is_one_call: bool, names: list[str]):
    request = chat(tools=[STRICT, LOOSE], **asked)
    assert request.grammar is not None
    assert (request.grammar.spec.kind, request.grammar.param) == ("tools", "tools")
    grammar = json.loads(request.grammar.spec.text)
    assert (grammar["format"], grammar["is_required"], grammar["is_one_call"]) == ("hermes", is_required, is_one_call)
    parameters = {each["name"]: each["parameters"] for each in grammar["tools"]}
    assert list(parameters) == names
    loose = SCHEMA | {"x-guidance": {"lenient": True}} if is_required else None
    assert parameters == {name: value for name, value in {"s": SCHEMA, "l": loose}.items() if name in names}
    assert request.message == MessageRules(calls="hermes", is_one_call=is_one_call)


def test_calls_or_a_document():
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    asked = chat(tools=[STRICT, LOOSE], response_format=form).grammar
    assert (asked.spec.kind, asked.param) == ("tools", "response_format.json_schema.schema")
    grammar = json.loads(asked.spec.text)
    assert (grammar["content"], grammar["is_required"]) == (SCHEMA, True)
    assert [each["parameters"] for each in grammar["tools"]] == [SCHEMA, None]
    forced = chat(tools=[LOOSE], tool_choice="required", response_format=form).grammar
    assert (json.loads(forced.spec.text)["content"], forced.param) == (None, "tools")
    unshown = chat(tools=[LOOSE], tool_choice="none", response_format=form).grammar
    assert unshown.spec.kind == "json"
    error = refusal(tools=[LOOSE], structured_outputs={"regex": "a"})
    assert (error.param, error.code) == ("structured_outputs", "unsupported_parameter")


def test_the_model_is_told_what_it_may_call():
    """Where a call is forced, a grammar sees to it; where none is, the model has to choose from what it sees."""
    named = {"type": "function", "function": {"name": "l"}}
    assert '"name": "s"' in prompt_of(chat(tools=[STRICT, LOOSE], tool_choice=named))
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("l")]}}
    request = chat(tools=[STRICT, LOOSE], tool_choice=allowed)
    assert '"name": "s"' not in prompt_of(request)
    assert request.grammar is None


@pytest.mark.parametrize(
    ("asked", "param", "text"),
    [
        ({"tool_choice": "required"}, "tool_choice", "there are no 'tools'"),
        ({"tools": [LOOSE], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "no 'x'"),
        ({"tools": [LOOSE], "tool_choice": "any"}, "tool_choice", "should be 'none'"),
        ({"tools": [LOOSE], "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "should be 'none'"),
        ({"tools": [LOOSE, LOOSE]}, "tools", "two have the name 'l'"),
        (
            {"tools": [tool(f"t{number}") for number in range(129)]},
            "tools",
            "129 tools, the limit is 128",
        ),
        ({"tools": [tool("ü")]}, "tools[0].function.name", "pattern"),
        ({"tools": [tool("x" * 65)]}, "tools[0].function.name", "pattern"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "'function'"),
        ({"tools": [tool(parameters="x")]}, "tools[0].function.parameters", "dictionary"),
        ({"functions": [{"name": "f"}]}, "functions", "send 'tools' instead"),
        ({"function_call": "auto"}, "function_call", "send 'tool_choice' instead"),
    ],
)
def test_tools_that_cannot_be(asked: dict, param: str, text: str):
    error = refusal(**asked)
    assert error.param == param
    assert text in error.message


def test_an_option_says_how_many_tools_a_chat_may_have():
    tools = [tool(f"t{number}") for number in range(188)]
    for limit in (188, 0):
        assert len(read(FrontendOptions(max_tools=limit), tools=tools).body.tools) == 188
    with pytest.raises(ApiError, match="has 188 tools, the limit is 187"):
        read(FrontendOptions(max_tools=187), tools=tools)


def test_a_grammar_of_many_tools_is_too_long():
    body = read(tools=[tool(parameters={"a": "x" * 2**16}, strict=True)]).body
    with pytest.raises(ApiError, match="bytes, the limit is 65536") as caught:
        finished(tokenize_chat(body, TOKENIZER, 10**6), TOKENIZER)
    assert caught.value.param == "tools"


def test_tools_are_never_dropped_silently():
    error = refusal(tokenizer=SILENT, tools=[LOOSE])
    assert (error.param, error.code) == ("tools", "unsupported_parameter")
    assert "its chat template shows none" in error.message
    silent = style_of(TOKENIZER.chat_template, FrontendOptions(tool_parser="none"))
    for choice in ("auto", "required"):
        assert "cannot be told from text" in refusal(style=silent, tools=[LOOSE], tool_choice=choice).message
    assert chat(style=silent, tools=[LOOSE], tool_choice="none").message == MessageRules()


def test_parameters_that_are_texts():
    """One format writes texts without quotes."""
    kinds = {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"type": ["string", "null"]},
        "d": {"enum": ["x", "y"]},
        "e": {"enum": ["x", 1]},
        "f": {"const": "x"},
        "g": {},
        "h": True,
    }
    style = style_of(TOKENIZER.chat_template, FrontendOptions(tool_parser="qwen3_coder"))
    request = chat(style=style, tools=[tool(parameters={"properties": kinds}), tool("g"), tool("h", parameters={})])
    named = {"a": (), "b": None, "c": ("null",), "d": (), "e": ("integer",), "f": (), "g": None, "h": None}
    assert request.message.parameters == {"f": named, "g": {}, "h": {}}
    many = {"x" * 700 + str(number): {"type": "string"} for number in range(100)}
    assert refusal(style=style, tools=[tool(parameters={"properties": many})]).param == "tools"


# --- thoughts ---


@pytest.mark.parametrize(
    ("asked", "thought", "budget", "param"),
    [
        ({}, "may_open", None, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "none", None, None),
        ({"reasoning_effort": "none"}, "none", None, None),
        ({"reasoning_effort": "minimal"}, "may_open", 256, "reasoning_effort"),
        ({"reasoning_effort": "low"}, "may_open", 1024, "reasoning_effort"),
        ({"reasoning_effort": "medium"}, "may_open", 4096, "reasoning_effort"),
        ({"reasoning_effort": "high"}, "may_open", None, None),
        ({"reasoning_effort": "xhigh"}, "may_open", None, None),
        ({"thinking_token_budget": 7}, "may_open", 7, "thinking_token_budget"),
        ({"thinking_token_budget": 7, "reasoning_effort": "low"}, "may_open", 7, "thinking_token_budget"),
        ({"thinking_token_budget": 7, "reasoning_effort": "none"}, "none", None, None),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, "none", None, None),
    ],
)
def test_how_much_is_thought(asked: dict, thought: str, budget: int | None, param: str | None):
    request = chat(THINKER, **asked)
    assert request.message.thought == thought
    assert (thought == "none") == prompt_of(request).endswith("<think>\n\n</think>\n\n")
    if budget is None:
        assert request.grammar is None
        return
    assert request.grammar is not None
    spec = request.grammar.spec
    assert (spec.kind, spec.thought, spec.thought_budget, request.grammar.param) == ("any", thought, budget, param)


@pytest.mark.parametrize(
    ("end", "thought", "budget"), [("<think>\n", "open", 0), ("<think>\n\n</think>\n\n", "none", None)]
)
def test_prompts_that_begin_or_end_the_thought(end: str, thought: str, budget: int | None):
    """A template without a switch for it: where the model is to think nothing, the thought ends at once."""
    request = chat(with_template("{{ messages[0].content }}" + end), reasoning_effort="none")
    assert request.message.thought == thought
    assert (request.grammar and request.grammar.spec.thought_budget) == budget


def test_a_grammar_begins_after_the_thought():
    form = {"type": "json_object"}
    for thought, asked in (("may_open", {}), ("none", {"reasoning_effort": "none"})):
        spec = chat(THINKER, response_format=form, **asked).grammar.spec
        assert (spec.kind, spec.thought, spec.thought_budget) == ("json", thought, None)
    spec = chat(THINKER, response_format=form, reasoning_effort="low").grammar.spec
    assert (spec.kind, spec.thought, spec.thought_budget) == ("json", "may_open", 1024)
    spec = chat(THINKER, tools=[LOOSE], tool_choice="required").grammar.spec
    assert (spec.kind, spec.thought) == ("tools", "may_open")
    assert chat(response_format=form).grammar.spec.thought == "none"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"think": "high"}, "think"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
    ],
)
def test_a_model_without_thoughts(asked: dict, param: str):
    assert refusal(**asked).param == param
    for nothing in ({"reasoning_effort": "none"}, {"thinking_token_budget": 0}, {"think": False}):
        assert chat(**nothing).message == MessageRules()
    hidden = style_of(THINKER.chat_template, FrontendOptions(reasoning_parser="none"))
    assert chat(THINKER, hidden).message.thought == "none"
    assert prompt_of(chat(THINKER, hidden, reasoning_effort="none")).endswith("<think>\n\n</think>\n\n")


# --- how the prompt ends ---


def test_the_last_message_is_continued():
    messages = [USER, {"role": "assistant", "content": "One <b> "}]
    prompt = prompt_of(chat(messages=messages, continue_final_message=True, add_generation_prompt=False))
    assert prompt.endswith("<|im_start|>assistant\nOne <b> ")
    assert prompt == prompt_of(chat(messages=messages, continue_final_message=True))
    assert prompt_of(chat(messages=messages)).endswith("One <b> <|im_end|>\n<|im_start|>assistant\n")
    assert prompt_of(chat(messages=messages, add_generation_prompt=False)).endswith("One <b> <|im_end|>\n")


@pytest.mark.parametrize(("text", "thought"), [("One", "none"), ("<think>\nOne", "open"), ("", "none")])
def test_a_thought_is_continued(text: str, thought: str):
    messages = [USER, {"role": "assistant", "content": text}]
    tokenizer = with_template("{% for m in messages %}{{ m.content }}<think>{% endfor %}")
    request = chat(tokenizer, messages=messages, continue_final_message=True)
    assert prompt_of(request) == "x<think>" + text
    assert request.message.thought == thought


def test_what_cannot_be_continued():
    assert refusal(continue_final_message=True).param == "continue_final_message"
    messages = [USER, {"role": "assistant", "content": "One"}]
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert refusal(messages=messages, **both).param == "continue_final_message"
    first = with_template("{{ messages[0].content }}")
    with pytest.raises(RequestRejected, match="leaves out the message"):
        chat(first, messages=messages, continue_final_message=True)


# --- what is read leniently ---


def test_messages_of_real_clients():
    call = {
        "id": "c",
        "type": "function",
        "index": 0,
        "function": {"name": "f", "arguments": '{"a": 1}', "parsed_arguments": {}},
    }
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call],
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "reasoning": "hm",
            "provider_specific_fields": {"refusal": None},
        },
        {"role": "tool", "tool_call_id": "c", "name": "f", "content": [{"type": "text", "text": "ok"}]},
    ]
    parsed = read(messages=messages)
    assert parsed.ignored == (
        "messages.content.cache_control",
        "messages.provider_specific_fields",
        "messages.tool_calls.function.parsed_arguments",
    )
    assert [message.plain() for message in parsed.body.messages] == [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "ok", "name": "f", "tool_call_id": "c"},
    ]


DEEP = "[" * 20_000
MANY = json.dumps([""] * (MAX_STRINGS + 1))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ('{"a": "one\ntwo"}', {"a": "one\ntwo"}),
        ('{"a": "\\ud83d"}', {"a": "\ud83d"}),
        ("", {}),
        (" \n", {}),
        (None, {}),
        ("null", {}),
        ('{"a": ', {}),
        ('{"a": {"b": [1, "tw', {"a": {"b": [1, "tw"]}}),
        ("[]", {"arguments": []}),
        ('"x"', {"arguments": "x"}),
        ("[1, 2", {"arguments": "[1, 2"}),
        ("no JSON", {"arguments": "no JSON"}),
        ("9" * 300, {"arguments": "9" * 300}),
        (DEEP, {"arguments": DEEP}),
        ('{"a": ' + DEEP, {"arguments": '{"a": ' + DEEP}),
        (MANY, {"arguments": MANY}),
    ],
)
def test_arguments_are_an_object_for_every_template_whatever_was_answered(arguments: object, expected: dict):
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    [plain] = [message.plain() for message in read(messages=[message]).body.messages]
    assert plain["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": expected}}]
    assert prompt_of(chat(WALKER, messages=[message])) == ";".join(["x", *expected])


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_names_of_a_thought(name: str):
    message = {"role": "assistant", "content": "x", name: "hm"}
    assert read(messages=[message]).body.messages[0].plain()["reasoning_content"] == "hm"
    strange = {"role": "assistant", "content": "x", name: {"effort": "low"}}
    assert "reasoning_content" not in read(messages=[strange]).body.messages[0].plain()


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_parts_that_are_no_texts(kind: str):
    error = refusal(messages=[{"role": "user", "content": [{"type": kind, kind: {}}]}])
    assert (error.param, error.code) == ("messages[0].content[0].type", "unsupported_parameter")
    assert f"reads texts, and no '{kind}'" in error.message
    assert "Also wrong" not in error.message


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
LINE = {"type": "text", "text": "[image left out: this model reads text only]"}


def test_media_in_old_turns_become_a_line_that_says_so():
    """All but those of the last message, if that is the user's: who sent them just now learns why they are refused."""
    before = [
        {"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": [IMAGE]},  # it was refused, and stays in the client's history
    ]
    after = {"role": "user", "content": "and now?"}
    parsed = read(messages=[*before, after])
    texts = [[part.text for part in message.content] for message in parsed.body.messages]
    assert texts == [["see", LINE["text"]], ["I see."], [LINE["text"]], ["and now?"]]
    assert parsed.left_out == ("messages.content[image_url]",)
    assert place_of(*parsed.left_out) == "messages.content"
    assert refusal(messages=[*before, after | {"content": [IMAGE]}]).param == "messages[3].content[0].type"
    sound = {"role": "tool", "tool_call_id": "c", "content": [{"type": "input_audio", "input_audio": {}}]}
    gave = read(messages=[USER, sound])
    assert gave.body.messages[1].text == "[sound left out: this model reads text only]", "what a tool gave is old"
    with pytest.raises(ApiError, match="reads texts, and no 'image_url'"):
        read(FrontendOptions(images="refuse"), messages=[*before, after])


@pytest.mark.parametrize(
    ("asked", "same_as"),
    [
        ({"enable_thinking": False}, {"reasoning_effort": "none"}),
        ({"think": False}, {"reasoning_effort": "none"}),
        ({"think": "low"}, {"reasoning_effort": "low"}),
        ({"thinking": False}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        ({"reasoning": {"enabled": False}}, {"reasoning_effort": "none"}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"max_tokens": 7}}, {"thinking_token_budget": 7}),
        ({"thinking_budget": 7}, {"thinking_token_budget": 7}),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}},
         {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 7}),
        ({"enable_thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"think": True}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"thinking": {"type": "auto"}}, {}),
    ],
)  # fmt: skip
def test_thinking_by_the_names_of_other_servers(asked: dict, same_as: dict):
    one, other = (chat(THINKER, seed=1, **each) for each in (asked, same_as))
    assert same(one, other)
    spec, other_spec = (each.grammar and each.grammar.spec for each in (one, other))
    assert spec == other_spec


def test_a_thought_may_be_left_out_by_two_names():
    assert not read(reasoning={"exclude": True}).body.shows_thought
    assert not read(include_reasoning=False).body.shows_thought
    assert read(reasoning={"effort": "low"}).body.shows_thought


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"enable_thinking": True, "think": False}, "think"),
        ({"enable_thinking": True, "reasoning_effort": "none"}, "reasoning_effort"),
        ({"enable_thinking": False, "reasoning_effort": "high"}, "enable_thinking"),
        ({"think": "low", "reasoning": {"effort": "high"}}, "think"),
        ({"thinking_budget": 1, "thinking_token_budget": 2}, "thinking_budget"),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
    ],
)
def test_names_of_thinking_that_contradict_each_other(asked: dict, param: str):
    with pytest.raises(ApiError, match="say different things of how much the model thinks") as caught:
        chat(THINKER, **asked)
    assert caught.value.param == param


def test_unknown_parameters_are_refused_unless_that_is_allowed():
    error = refusal(no_such=1)
    assert (error.param, error.code) == ("no_such", "unknown_parameter")
    parsed = read(FrontendOptions(allow_unknown=True), no_such=1, other=None)
    assert parsed.ignored == ("no_such",)
    assert parsed.body == read().body
    with pytest.raises(ApiError, match="temperature"):
        read(FrontendOptions(allow_unknown=True), no_such=1, temperature="hot")


def test_names_that_are_noted_are_bounded():
    names = read(messages=[USER | {f"{number}" * 100: 1} for number in range(10, 99)]).ignored
    assert len(names) == MAX_NAMES
    assert all(len(name) < 80 for name in names)


def test_each_field_is_logged_once_for_a_client():
    fields = IgnoredFields()
    with capture_logs() as logged:
        for client in ("a", "b", "a"):
            fields.log(client, ("x", "y"))
        fields.log("a", ())
        assert [(line["client"], line["field"]) for line in logged] == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
        for number in range(MAX_KNOWN + 10):
            fields.log("c", (str(number),))
        assert len(logged) == MAX_KNOWN


def test_a_field_counts_by_its_place_whatever_its_name_is():
    names = ["messages.x", "messages.content.a.b", "messages.tool_calls.function.x", "tools.function.y", "tools.z", "x"]
    places = ["messages", "messages.content", "messages.tool_calls.function", "tools.function", "tools", "request"]
    assert [place_of(name) for name in names] == places
    models = (ChatMessage, TextPart, ToolCall, CalledFunction, Tool, Function, SystemText, ContextEdit)
    assert {model.place for model in models} == set(PLACES)


# --- values that turn something off ---

OFF: dict[str, object] = {
    "n": None,
    "stop": None,
    "max_tokens": None,
    "logit_bias": None,
    "stream_options": {"include_usage": False, "continuous_usage_stats": False},
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "length_penalty": 1.0,
    "use_beam_search": False,
    "early_stopping": False,
    "best_of": 1,
    "truncate_prompt_tokens": None,
    "detokenize": True,
    "return_tokens_as_token_ids": False,
    "return_token_ids": False,
    "spaces_between_special_tokens": True,
    "skip_special_tokens": True,
    "vllm_xargs": {},
    "logits_processors": [],
    "guided_decoding_backend": "xgrammar",
    "lora_path": None,
    "echo": False,
    "prompt_cache_retention": "24h",
}
OFF_CHAT: dict[str, object] = {
    "tools": None,
    "tool_choice": None,
    "parallel_tool_calls": False,
    "functions": None,
    "modalities": ["text"],
    "verbosity": "low",
    "cache_prompt": True,
    "keep_alive": "5m",
    "add_generation_prompt": True,
    "continue_final_message": False,
    "add_special_tokens": False,
    "reasoning_effort": None,
    "thinking_token_budget": None,
    "include_reasoning": True,
    "documents": [],
    "logprobs": False,
    "top_logprobs": 0,
}


def same(request: TokenizedRequest, other: TokenizedRequest) -> bool:
    return (request.prompts, request.params, request.message) == (other.prompts, other.params, other.message)


def test_what_is_off_changes_nothing():
    assert same(chat(seed=1, **OFF, **OFF_CHAT), chat(seed=1))
    prompt = {"model": "m", "prompt": "x", "seed": 1}
    off = {"suffix": "", "add_special_tokens": True, "logprobs": None, "prompt_logprobs": None}
    bodies = [json.dumps(prompt | more).encode() for more in (OFF | off, {})]
    requests = [tokenize_completion(parse_noting(body, CompletionRequest).body, TOKENIZER, 2048) for body in bodies]
    assert same(*requests)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("use_beam_search", True),
        ("length_penalty", 0.5),
        ("best_of", 2),
        ("truncate_prompt_tokens", 5),
        ("detokenize", False),
        ("return_tokens_as_token_ids", True),
        ("echo", True),
        ("add_special_tokens", True),
        ("modalities", ["audio"]),
        ("chat_template", "x"),
        ("documents", [{}]),
        ("guided_whitespace_pattern", " "),
        ("prompt", "x"),
    ],
)
def test_what_is_not_built_is_refused_by_name(param: str, value: object):
    error = refusal(**{param: value})
    assert error.param == param
    assert error.code == ("unknown_parameter" if param == "prompt" else "unsupported_parameter")


def test_usage_in_chunks_needs_a_stream():
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    body = read(stream=True, **options).body
    assert (body.has_usage, body.has_chunk_usage) == (True, True)
    assert refusal(**options).param == "stream_options"
    assert refusal(stream_options={"continuous_usage_stats": True}).param == "stream_options"
    alone = read(stream=True, stream_options={"continuous_usage_stats": True}).body
    assert (alone.has_usage, alone.has_chunk_usage) == (False, True)


@pytest.mark.parametrize(
    ("asked", "kind", "text"),
    [
        ({"guided_json": {"type": "object"}}, "json", '{"type": "object"}'),
        ({"guided_json": '{"type": "object"}'}, "json", '{"type": "object"}'),
        ({"guided_regex": "a"}, "regex", "a"),
        ({"guided_choice": ["a"]}, "choice", '["a"]'),
        ({"guided_grammar": "start: /a/", "guided_decoding_backend": "x"}, "grammar", "start: /a/"),
    ],
)
def test_the_older_way_to_say_a_grammar(asked: dict, kind: str, text: str):
    [param] = [name for name in asked if name != "guided_decoding_backend"]
    grammar = chat(**asked).grammar
    assert (grammar.spec.kind, grammar.spec.text, grammar.param) == (kind, text, param)
    assert refusal(response_format={"type": "json_object"}, **asked).param == param
    assert refusal(**({"guided_regex": "b", "guided_choice": ["b"]} | asked)).code == "invalid_value"


def test_a_format_without_a_schema_is_any_object():
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": False}}
    assert chat(response_format=form).grammar.spec.text == '{"type": "object"}'


def test_chats_end_where_the_template_ends_answers_and_completions_do_not():
    base = with_template(QWEN3_LIKE)
    base.eos_token_ids = (5,)
    im_end = base.special_tokens["<|im_end|>"]
    for asked, stops in (({}, (5, im_end)), ({"stop_token_ids": [7]}, (5, im_end, 7)), ({"ignore_eos": True}, ())):
        [params] = chat(base, **asked).params
        assert params.stop_token_ids == stops
    [params] = chat(base, min_tokens=3, max_tokens=9).params
    assert (params.stop_token_ids, params.constraints.min_tokens) == ((5, im_end), 3)
    body = parse_noting(b'{"model": "m", "prompt": "x"}', CompletionRequest).body
    [params] = tokenize_completion(body, base, 2048).params
    assert params.stop_token_ids == (5,)
