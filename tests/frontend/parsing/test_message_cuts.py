"""Any text, cut anywhere, is one message; and what taking it apart costs."""

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.parsing.message import MessageParser, MessageRules
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests.frontend.messages import ARGUMENTS, CALLS, CODER, HERMES, JSON, PARAMETERS, joined, parsed, rules
from tests.support.effort import examples
from tests.support.instructions import instructions_of

TAG = re.compile(r"</?(think|tool_call|function|parameter)\b")
PIECES = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>"),
        *("<parameter=b>", "</parameter>", "<", "</", "<function=", ">", "\n", " ", *'{}[]"\\,:'),
        *('"name"', '"arguments"', '"parameters"', '"f"', "5", "text", "\\ud83e", "\\udd8a", "🦊", HERMES, CODER, JSON),
        *('{"name": "f", "arguments": ', " " * 70, "\n" * 30, '<tool_call>{"name": "f", "arguments": "'),
    ]
)
RULES = st.builds(
    MessageRules,
    thought=st.sampled_from(["none", "open", "may_open"]),
    calls=st.sampled_from(["none", "hermes", "qwen3_coder", "json"]),
    is_one_call=st.booleans(),
    parameters=st.just(PARAMETERS),
    calls_in_thought=st.booleans(),
)


@settings(max_examples=examples(2000, 400))
@given(RULES, st.lists(PIECES, max_size=14), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_no_cut_changes_anything(how: MessageRules, pieces: list[str], lengths: list[int]):
    text = "".join(pieces)
    whole = parsed(how, [text])
    assert parsed(how, pieces) == whole
    assert parsed(how, text) == whole
    starts = list(itertools.accumulate(itertools.islice(itertools.cycle(lengths), len(text)), initial=0))
    assert parsed(how, [text[a:b] for a, b in itertools.pairwise(starts)]) == whole


@pytest.mark.parametrize(
    ("calls", "pieces"),
    [
        ("qwen3_coder", ["a", "<function=f>\n</function>", "  x"]),
        ("hermes", ["a", HERMES, "x", "</tool_call>"]),
        ("hermes", ["a", " " * 70, "x", " ", HERMES]),
        ("none", ["<think>a", " " * 70, "x", " ", "</think>"]),
        ("hermes", ['<tool_call>{"name": "f", "other": "a', "b", '", "arguments": {}}</tool_call>']),
    ],
    ids=[
        *("whitespace behind a call", "a second end tag", "whitespace before a call", "whitespace before an end tag"),
        "a value that is not the arguments",
    ],
)
def test_pieces_that_look_as_if_they_need_not_be_read(calls: str, pieces: list[str]):
    """Text is shown without being read where reading it would change nothing; here it does."""
    how = rules(calls, "may_open")
    assert parsed(how, pieces) == parsed(how, ["".join(pieces)])


@settings(max_examples=examples(200))
@given(RULES, st.lists(PIECES, max_size=14))
def test_content_and_thought_are_pieces_of_the_text_in_its_order(how: MessageRules, pieces: list[str]):
    """Nothing is made up, and where no call is, nothing but tags and whitespace at a thought's ends is lost."""
    text = "".join(pieces)
    thought, content, calls = parsed(how, [text])
    rest = iter(text)
    assert all(character in rest for character in thought + content)
    if how.thought == "none" and not calls and how.calls in ("none", "json"):
        assert content == text
    if how.calls == "hermes" and not calls and "<tool_call>" not in text and how.thought == "none":
        assert content == text


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda value: st.lists(value, max_size=3) | st.dictionaries(st.text(max_size=3), value, max_size=3),
    max_leaves=5,
)
ANY_ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b", "key"]), VALUES, max_size=3)
MESSAGES = st.lists(st.tuples(TEXT, ANY_ARGUMENTS), max_size=3)


@settings(max_examples=examples(200))
@given(MESSAGES, TEXT, TEXT, st.booleans(), st.integers(1, 20))
def test_messages_as_hermes_writes_them(messages: Any, thought: str, last: str, ascii_only: bool, length: int):
    """The calls are those that were written, and no part has a piece of a tag."""
    text = f"<think>\n{thought}\n</think>\n\n"
    for content, arguments in messages:
        call = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=ascii_only)
        text += f"{content}\n<tool_call>\n{call}\n</tool_call>"
    text += last
    parser = MessageParser(rules("hermes", "may_open"))
    parts = [parser.feed(text[start : start + length]) for start in range(0, len(text), length)] + [parser.flush()]
    assert not any(TAG.search(part.content + part.thought) for part in parts)
    assert not any("<" in part.content + part.thought for part in parts)
    message = joined(parts)
    assert message.thought == thought.strip(" \t\r\n")
    assert [json.loads(arguments) for _, arguments in message.calls] == [arguments for _, arguments in messages]


@settings(max_examples=examples(200))
@given(st.lists(ANY_ARGUMENTS, min_size=1, max_size=3), st.integers(1, 20))
def test_messages_as_qwen3_coder_writes_them(calls: list[dict[str, Any]], length: int):
    text = ""
    for arguments in calls:
        text += "<tool_call>\n<function=f>\n"
        for key, value in arguments.items():
            written = value if isinstance(value, str) and key == "a" else json.dumps(value, ensure_ascii=False)
            text += f"<parameter={key}>\n{written}\n</parameter>\n"
        text += "</function>\n</tool_call>\n"
    message = parsed(rules("qwen3_coder"), [text[i : i + length] for i in range(0, len(text), length)])
    assert message.content == ""
    expected = [
        {k: v if isinstance(v, str) or k != "a" else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
        for arguments in calls
    ]
    assert [json.loads(arguments) for _, arguments in message.calls] == expected


@pytest.mark.parametrize("calls", ["hermes", "qwen3_coder", "json"])
def test_cuts_between_tokens(calls: str):
    model = Tokenizer(DEMO_MODEL_DIR)
    text = f"<think>hm</think>\n\n{CALLS[calls]}"
    [tokens] = model.encode([text], add_special_tokens=False)
    pieces = [model.token_bytes[token].decode() for token in tokens]
    assert "".join(pieces) == text
    assert parsed(rules(calls, "may_open"), pieces) == ("hm", "", [("f", ARGUMENTS[calls])])


# --- effort ---

LONG = {
    "text": ("hermes", "word < and \n"),
    "spaces": ("hermes", " "),
    "calls": ("hermes", HERMES),
    "arguments first": ("hermes", '<tool_call>{"arguments": {"a": "' + "\\n" * 50),
    "decoded arguments": ("hermes", '<tool_call>{"name": "f", "arguments": "\\u00e9\\n'),
    "tags in strings": ("hermes", '<tool_call>{"x":["'),
    "parameters": ("qwen3_coder", CODER),
    "long value": ("qwen3_coder", "<function=f><parameter=b>[" + '"</parameter>",' * 20),
    "open tags": ("qwen3_coder", "<tool_call><function=f"),
    "spaces in a list": ("json", "[" + " " * 50),
    "list": ("json", f"[{JSON}, "),
}


IN_THOUGHT = {
    "calls and text": ("hermes", f"{HERMES} so"),
    "many calls and text": ("hermes", HERMES * 8 + "so"),
    "open tags and text": ("hermes", "<tool_call> <tool_call>{"),
    "a long argument": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "' + "word " * 50),
    "functions": ("qwen3_coder", "<function=f> <function="),
}


@pytest.mark.parametrize("end", ["</think>", ""], ids=["answer", "thought"])
@pytest.mark.parametrize("name", [*LONG, *IN_THOUGHT])
def test_effort_grows_with_the_text(name: str, end: str):
    calls, piece = (LONG | IN_THOUGHT)[name]

    def effort(times: int) -> int:
        text = piece * times
        return instructions_of(lambda: parsed(rules(calls, "open"), end + text))

    times = max(200 // len(piece), 2)
    small, large = effort(times), effort(4 * times)
    assert large < 5 * small
