"""Answers taken apart: what each format means, and that it does not depend on how the text is cut."""

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.parsing import object_call, parameter_value
from scheduler_svc.frontend.parsing.message import MessageParser, MessageRules
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests.frontend.messages import (
    CODER,
    CODER_ARGUMENTS,
    HERMES,
    HERMES_ARGUMENTS,
    JSON,
    TEXTS,
    Message,
    joined,
    parsed,
)
from tests.support.effort import examples
from tests.support.instructions import instructions_of

ARGUMENTS = {"hermes": HERMES_ARGUMENTS, "qwen3_coder": CODER_ARGUMENTS, "json": '{"a": "x"}'}
CALLS = {"hermes": HERMES, "qwen3_coder": CODER, "json": JSON}
TAG = re.compile(r"</?(think|tool_call|function|parameter)\b")


def rules(calls: Any = "none", thought: Any = "none", *, is_one_call: bool = False) -> MessageRules:
    return MessageRules(calls=calls, thought=thought, is_one_call=is_one_call, text_parameters=TEXTS)


def same_for_every_cut(how: MessageRules, text: str) -> Message:
    """The message of a text. All of it at once, each character alone and every pair of pieces say the same."""
    whole = parsed(how, [text])
    assert parsed(how, text) == whole
    for cut in range(len(text)):
        assert parsed(how, [text[:cut], text[cut:]]) == whole, (text[:cut], text[cut:])
    return whole


# --- thoughts ---


@pytest.mark.parametrize(
    ("start", "text", "thought", "content"),
    [
        ("open", "hm\n</think>\n\nYes.", "hm", "Yes."),
        ("open", "\nhm\n\nso\n\n</think>Yes.\n", "hm\n\nso", "Yes.\n"),
        ("open", "<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
        ("open", "\n</think>\n\nYes.", "", "Yes."),
        ("open", "no end\n", "no end", ""),
        ("open", "half </thi", "half </thi", ""),
        ("open", "", "", ""),
        ("open", "a <b> </b> </think", "a <b> </b> </think", ""),
        ("may_open", "<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
        ("may_open", " \n<think>hm</think>Yes.", "hm", "Yes."),
        ("may_open", "<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("may_open", "\n\nYes. <think>no</think>", "", "\n\nYes. <think>no</think>"),
        ("may_open", "hm\n</think>\n\nYes.", "", "hm\n</think>\n\nYes."),
        ("may_open", "<thi", "", "<thi"),
        ("may_open", "<thinking>", "", "<thinking>"),
        ("may_open", "<think>a</think>b</think><think>c", "a", "b</think><think>c"),
        ("none", "<think>hm</think>Yes.", "", "<think>hm</think>Yes."),
    ],
)
def test_thoughts(start: str, text: str, thought: str, content: str):
    assert same_for_every_cut(rules(thought=start), text) == (thought, content, [])


def test_whether_the_text_is_inside_a_thought():
    """Exact after each piece, whatever is held back."""
    parser = MessageParser(rules(thought="may_open"))
    seen = []
    for piece in ["\n", "<thi", "nk>", "hm", "</", "think", ">", "\n", "Yes. <think>"]:
        parser.feed(piece)
        seen.append(parser.is_thinking)
    assert seen == [False, False, True, True, True, True, False, False, False]
    assert MessageParser(rules(thought="open")).is_thinking
    assert not MessageParser(rules(thought="none")).is_thinking


@pytest.mark.parametrize("calls", ["hermes", "qwen3_coder", "json"])
def test_calls_behind_a_thought(calls: str):
    """In a thought there are none."""
    text = f"<think>\n{CALLS[calls]}\n</think>\n\n{CALLS[calls]}"
    how = rules(calls, "may_open")
    assert same_for_every_cut(how, text) == (CALLS[calls], "", [("f", ARGUMENTS[calls])])


# --- calls ---


@pytest.mark.parametrize("calls", ["hermes", "qwen3_coder", "json"])
@pytest.mark.parametrize("is_one_call", [False, True])
def test_several_calls(calls: str, is_one_call: bool):
    text = f"\n{CALLS[calls]}\n{CALLS[calls]}\n"
    expected = [("f", ARGUMENTS[calls])] * (1 if is_one_call else 2)
    assert same_for_every_cut(rules(calls, is_one_call=is_one_call), text) == ("", "", expected)


@pytest.mark.parametrize("calls", ["hermes", "qwen3_coder"])
def test_content_around_calls(calls: str):
    """The whitespace beside a call is layout, except between two pieces of content."""
    call = CALLS[calls]
    message = same_for_every_cut(rules(calls), f"See:\n\n{call}\n{call} and <so> on.\n")
    assert message == ("", "See:\n\n\n and <so> on.", [("f", ARGUMENTS[calls])] * 2)
    assert same_for_every_cut(rules(calls), " \nno call \n") == ("", " \nno call \n", [])


@pytest.mark.parametrize("calls", ["hermes", "qwen3_coder", "json"])
def test_arguments_come_as_they_are_written(calls: str):
    """The first part names the tool, and no character of arguments waits for the end of the call."""
    parser = MessageParser(rules(calls))
    parts = [parser.feed(character) for character in CALLS[calls]]
    assert sum(bool(part.calls) for part in parts) > 5
    assert parser.num_calls == 1
    assert not any(part.content for part in parts)


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "f", '{"a": 1}'),
        ('<tool_call>{"id": [{"x": "}"}], "name": "f", "x": null, "arguments": {"a": 1}}', "f", '{"a": 1}'),
        ('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', "f", '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}, "parameters": {}}</tool_call>', "f", '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments":   {"a":   1}   }  </tool_call>', "f", '{"a":   1}'),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\"<"}}</tool_call>',
            "f",
            '{"a": "</tool_call>\\"<"}',
        ),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\\\n\\u00e9\\"}"}</tool_call>', "f", '{"a": "\\né"}'),
        ('<tool_call>{"name": "f", "arguments": "\\ud83e\\udd8a \\ud83e \\udd8a\\q"}', "f", "🦊 \ufffd \ufffd\\q"),
        ('<tool_call>{"name": "\\u0066"}</tool_call>', "f", "{}"),
        ('<tool_call>{"name": "f", "arguments": 12}</tool_call>', "f", "12"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}', "f", '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"a": "x', "f", '{"a": "x'),
        ('<tool_call>{"name": "f", "argu', "f", ""),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>', "f", '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>', "f", '{"a": 1'),
        ('<tool_call>{"name": "f", "arguments": {}}}}</tool_call></tool_call>', "f", "{}"),
    ],
)
def test_hermes(text: str, name: str, arguments: str):
    assert same_for_every_cut(rules("hermes"), text) == ("", "", [(name, arguments)])


def test_two_objects_in_one_pair_of_tags():
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}\n</tool_call>'
    assert same_for_every_cut(rules("hermes"), text).calls == [("f", "{}"), ("g", "{}")]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no JSON</tool_call>",
        "I write <tool_call> before a call, and </tool_call> behind it.",
        '<tool_call>\n{"arguments": {"a": 1}}\n</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        "<tool_call>['f']</tool_call>",
        "<tool_call>{'name': 'f'}</tool_call>",
        '<tool_call>{"arguments": [<] }',
        f'<tool_call>{{"{"k" * 300}": 1, "name": "f"}}',
        "a < b, <t>, <tool_cal",
    ],
)
def test_what_is_no_hermes_call_is_content(text: str):
    assert same_for_every_cut(rules("hermes"), text) == ("", text, [])


def test_a_call_behind_a_tag_without_one():
    message = same_for_every_cut(rules("hermes"), f"<tool_call><tool_call>x {HERMES}")
    assert message == ("", "<tool_call><tool_call>x", [("f", HERMES_ARGUMENTS)])


@pytest.mark.parametrize("text", ["<tool_call>", '<tool_call>\n{"na', '<tool_call>{"name": "get_w'])
def test_the_beginning_of_a_call_at_the_end_of_the_text_is_no_content(text: str):
    assert same_for_every_cut(rules("hermes"), f"So: {text}") == ("", "So:" if not text else "So: ", [])


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ("", "{}"),
        ('<parameter=a>\n  two\n\n"lines" \\\n\n</parameter>', '{"a": "  two\\n\\n\\"lines\\" \\\\\\n"}'),
        ("<parameter=a>x</parameter><parameter=b>y</parameter>", '{"a": "x", "b": "y"}'),
        ("<parameter=a>\n</parameter>", '{"a": ""}'),
        ("<parameter=a>\n5\n</parameter>\n<parameter=b>\n5\n</parameter>", '{"a": "5", "b": 5}'),
        ("<parameter=b>\n{\n}\n</parameter>", '{"b": {\n}}'),
        ("<parameter=b>\nTrue\n</parameter>\n<parameter=c>None</parameter>", '{"b": true, "c": null}'),
        ("<parameter=b>\nNaN\n</parameter>", '{"b": "NaN"}'),
        ("<parameter=b>[1,\n</parameter>", '{"b": "[1,"}'),
        ('<parameter=b>"x</parameter>\\"y"</parameter>', '{"b": "x</parameter>\\"y"}'),
        ('<parameter=b>{"x</parameter>\n</parameter>', '{"b": "{\\"x</parameter>"}'),
        ("<parameter=a>\n<function=g> </function> <b></parameter>", '{"a": "<function=g> </function> <b>"}'),
        ('<parameter=x "y">\n1\n</parameter>', '{"x \\"y\\"": 1}'),
        ("<parameter=b>" + "[" * 10_000 + "</parameter>", '{"b": "' + "[" * 10_000 + '"}'),
    ],
)
@pytest.mark.parametrize("has_tag", [True, False])
def test_qwen3_coder(parameters: str, arguments: str, has_tag: bool):
    text = f"<function=f>\n{parameters}\n</function>"
    text = f"<tool_call>\n{text}\n</tool_call>" if has_tag else text
    how = rules("qwen3_coder")
    message = same_for_every_cut(how, text) if len(text) < 1000 else parsed(how, [text])
    assert message == ("", "", [("f", arguments)])
    assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        ("<tool_call><function=f>\n<parameter=a>1</parameter>\nDone.\n</function></tool_call>", "Done.", '{"a": "1"}'),
        ("<tool_call><function=f><parameter=a>1</parameter></tool_call>", "", '{"a": "1"}'),
        ("<function=f><parameter=a b\n>", "<parameter=a b\n>", "{}"),
        ("<function=f>\n<parameter=a>\nx\n</para", "", '{"a": "x'),
        ("<function=f>\n<parameter=b>\n12", "", '{"b": '),
        ("<function=f>\n<parameter=b>\n12\n</parameter>\n<para", "", '{"b": 12'),
    ],
)
def test_qwen3_coder_calls_that_are_not_whole(text: str, content: str, arguments: str):
    assert same_for_every_cut(rules("qwen3_coder"), text) == ("", content, [("f", arguments)])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>x</tool_call>",
        "<function= f",
        "<function=>",
        "<function=a\n>",
        f"<function={'f' * 300}>",
        "</function>",
    ],
)
def test_what_is_no_qwen3_coder_call_is_content(text: str):
    assert same_for_every_cut(rules("qwen3_coder"), f"{text} so").content in (f"{text} so", "")
    assert same_for_every_cut(rules("qwen3_coder"), f"{text}\n<so").calls == []


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f" [\n{JSON}, {JSON}]", "", 2),
        (f"{JSON}; {JSON}\n{JSON}", "", 3),
        (f"{JSON}\nDone.", "Done.", 1),
        (f"[{JSON}, 5]", "5]", 1),
        (f"See: {JSON}", f"See: {JSON}", 0),
        ('{"a": 1}', '{"a": 1}', 0),
        (' {"name": "Bob", "age": 5}', ' {"name": "Bob", "age": 5}', 0),
        ('[ {"a": 1}, 2]', '[ {"a": 1}, 2]', 0),
        ("[1, 2]", "[1, 2]", 0),
        ("[", "[", 0),
        (f"[{' ' * 64}{JSON}]", "", 1),
        (f"[{' ' * 65}{JSON}]", f"[{' ' * 65}{JSON}]", 0),
        ('{"name": "f", "para', '{"name": "f", "para', 0),
    ],
)
def test_json(text: str, content: str, calls: int):
    assert same_for_every_cut(rules("json"), text) == ("", content, [("f", '{"a": "x"}')] * calls)


def test_without_a_format_calls_are_content():
    assert same_for_every_cut(rules(), HERMES) == ("", HERMES, [])


# --- what is undecided has a limit ---


def test_an_object_without_a_name_is_content_when_it_is_too_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(object_call, "MAX_UNDECIDED_CHARS", 40)
    fits = '<tool_call>{"arguments": {"a": "xxxx"}, "name": "f"}'
    assert same_for_every_cut(rules("hermes"), fits).calls == [("f", '{"a": "xxxx"}')]
    longer = fits.replace("xxxx", "xxxxx")
    assert same_for_every_cut(rules("hermes"), longer) == ("", longer, [])


def test_a_value_is_a_text_when_it_is_too_long_to_be_decided(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parameter_value, "MAX_UNDECIDED_CHARS", 5)
    text = "<function=f><parameter=b>[1,2]</parameter><parameter=c>[1,23]</parameter></function>"
    assert same_for_every_cut(rules("qwen3_coder"), text).calls == [("f", '{"b": [1,2], "c": "[1,23]"}')]


# --- any text, any cut ---

PIECES = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>"),
        *(
            "<parameter=b>",
            "</parameter>",
            "<",
            "</",
            "<function=",
            ">",
            "\n",
            " ",
            "{",
            "}",
            "[",
            "]",
            '"',
            "\\",
            ",",
            ":",
        ),
        *('"name"', '"arguments"', '"parameters"', '"f"', "5", "text", "\\ud83e", "\\udd8a", "🦊", HERMES, CODER, JSON),
        *('{"name": "f", "arguments": ', " " * 70, "\n" * 30, '<tool_call>{"name": "f", "arguments": "'),
    ]
)
RULES = st.builds(
    MessageRules,
    thought=st.sampled_from(["none", "open", "may_open"]),
    calls=st.sampled_from(["none", "hermes", "qwen3_coder", "json"]),
    is_one_call=st.booleans(),
    text_parameters=st.just(TEXTS),
)


@settings(max_examples=examples(2000, 400), deadline=None)
@given(RULES, st.lists(PIECES, max_size=14), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_no_cut_changes_anything(how: MessageRules, pieces: list[str], lengths: list[int]):
    text = "".join(pieces)
    whole = parsed(how, [text])
    assert parsed(how, pieces) == whole
    assert parsed(how, text) == whole
    starts = list(itertools.accumulate(itertools.islice(itertools.cycle(lengths), len(text)), initial=0))
    assert parsed(how, [text[a:b] for a, b in itertools.pairwise(starts)]) == whole


@settings(max_examples=examples(200), deadline=None)
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


@settings(max_examples=examples(200), deadline=None)
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


@settings(max_examples=examples(200), deadline=None)
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


@pytest.mark.parametrize("name", LONG)
def test_effort_grows_with_the_text(name: str):
    calls, piece = LONG[name]

    def effort(times: int) -> int:
        text = piece * times
        return instructions_of(lambda: parsed(rules(calls, "open"), text[:0] + "</think>" + text))

    times = max(200 // len(piece), 2)
    small, large = effort(times), effort(4 * times)
    assert large < 5 * small
