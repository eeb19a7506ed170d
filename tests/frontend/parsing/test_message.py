"""Answers taken apart: what each format means."""

import json
from typing import Any

import pytest

from scheduler_svc.frontend.parsing import object_call, parameter_value
from scheduler_svc.frontend.parsing.message import CallPart, MessageParser, MessageRules
from scheduler_svc.frontend.parsing.text_parameters import named_parameters
from tests.frontend.messages import (
    ARGUMENTS,
    CALLS,
    CODER,
    CODER_ARGUMENTS,
    HERMES,
    HERMES_ARGUMENTS,
    JSON,
    Message,
    parsed,
    rules,
    rules_of,
)
from tests.support.instructions import instructions_of


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
    """In a thought that ends there are none."""
    text = f"<think>\n{CALLS[calls]}\n</think>\n\n{CALLS[calls]}"
    how = rules(calls, "may_open")
    assert same_for_every_cut(how, text) == (CALLS[calls], "", [("f", ARGUMENTS[calls])])


NO_CALL_ENDS_A_THOUGHT = [
    *(
        "{call} so",
        "{call}</thi",
        "{call}<",
        "{call}\n<tool_call>",
        "{cut}",
        "{cut}</tool_call> no",
        "{call}{cut}",
        "<tool_call> {call} so",
    ),
    *("<tool_call>", "<tool_call>\n", "<tool_call>{{", '<tool_call>{{"name": "f"', "</tool_call>"),
]


@pytest.mark.parametrize("calls", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("start", ["open", "may_open"])
@pytest.mark.parametrize(
    ("before", "end", "num_calls"),
    [
        *(("", "{call}", 1), ("", "{call}\n", 1), ("", "{call}\n{call}", 2)),
        *(("I <tool_call> it.\n", "{call}", 1), ("<tool_call>", "{call}", 1), ("<function=", "{call}", 1)),
        *(("{call} or ", "{call}", 1), ("{call} or ", "{call} {call}\n", 2), ("</tool_call>", "{call}", 1)),
    ],
)
def test_a_thought_that_ends_with_calls(calls: str, start: str, before: str, end: str, num_calls: int):
    """Models forget the end tag where they turn to a call. A thought that goes on after a call has none there."""
    thought = f"I should.\n{before}".format(call=CALLS[calls])
    text = f"<think>\n{thought}{end.format(call=CALLS[calls])}"
    expected = (thought.rstrip(), "", [("f", ARGUMENTS[calls])] * num_calls)
    assert same_for_every_cut(rules(calls, start), text) == expected


@pytest.mark.parametrize("calls", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("end", NO_CALL_ENDS_A_THOUGHT)
def test_a_thought_that_ends_with_anything_else(calls: str, end: str):
    call = CALLS[calls]
    cut = call[: call.rindex("]" if calls == "hermes" else "</parameter>")]
    thought = f"I should.\n{end.format(call=call, cut=cut)}"
    how = rules(calls, "open")
    assert same_for_every_cut(how, thought) == (thought.rstrip(), "", [])
    assert same_for_every_cut(how, thought + "</think>\n\nYes.") == (thought.rstrip(), "Yes.", [])
    whole = same_for_every_cut(how, f"{thought}</think>\n\n{call}")
    assert whole == (thought.rstrip(), "", [("f", ARGUMENTS[calls])]), "the call after the thought counts"


def test_a_thought_of_a_request_of_an_earlier_version_has_no_calls():
    how = MessageRules(thought="open", calls="hermes")
    assert same_for_every_cut(how, f"hm {HERMES}") == (f"hm {HERMES}", "", [])


def test_what_may_be_calls_in_a_thought_is_held_back_and_no_more():
    parser = MessageParser(rules("hermes", "open"))
    assert parser.feed("hm <tool_call> is").thought == "hm <tool_call> is"
    assert parser.feed(f" a tag. {HERMES}").thought == " a tag."
    assert parser.may_be_call
    assert parser.feed("\nso").thought == f" {HERMES}\nso"
    assert not parser.may_be_call


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
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"x"</tool_call>', "f", '{"a": "x'),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}', "f", '{"a": 1}'),
        ('<tool_call>{"name": "\\u0066"}</tool_call>', "f", "{}"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}', "f", '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"a": "x', "f", '{"a": "x'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>', "f", '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>', "f", '{"a": 1}'),
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
        '<tool_call>{"name": "f", "args": {"a": 1}}</tool_call>',
        '<tool_call>{"name": "f", "id": "x"}</tool_call>',
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


@pytest.mark.parametrize(
    "text",
    ["<tool_call>", '<tool_call>\n{"na', '<tool_call>{"name": "get_w', '<tool_call>{"name": "f", "arguments":',
     '<tool_call>{"arguments": {"a": "long'],
)  # fmt: skip
def test_a_call_that_the_text_ends_in_before_anything_of_it_is_shown_is_content(text: str):
    assert same_for_every_cut(rules("hermes"), f"So: {text}") == ("", f"So: {text}", [])


# What models write, and the arguments that a client gets: JSON that says the same.
REPAIRED = [
    ('{"a": "one\n\ttwo\x00"}', '{"a": "one\\n\\ttwo\\u0000"}'),
    ('{"a\n": [{"b": "\r\n"}]}', '{"a\\n": [{"b": "\\r\\n"}]}'),
    (r"""{"a": "\d+ C:\new \x41 \'"}""", r"""{"a": "\\d+ C:\new \\x41 \\'"}"""),
    (r'{"a": "\u00e9\ud83e\udd8a\ud83e \udd8a\u12"}', '{"a": "é🦊\ufffd \ufffd\\\\u12"}'),
    ('{"a": [1, 2,], "b": {"c": 1 , } , }', '{"a": [1, 2], "b": {"c": 1 } }'),
    ('{"a": True, "b": [None, False]}', '{"a": true, "b": [null, false]}'),
    ('""', "{}"),
    ("null", "{}"),
    ("None", "{}"),
    ('" "', "{}"),
    ('"null"', "{}"),
    (r'"{\"a\": \"x\ny\", \"b\": [1,]}"', '{"a": "x\\ny", "b": [1]}'),
    (r'"{\"a\": [1"', '{"a": [1]}'),
    (r'" {\"a\": 1} "', '{"a": 1}'),
]


@pytest.mark.parametrize("calls", ["hermes", "json"])
@pytest.mark.parametrize(("written", "arguments"), REPAIRED)
def test_arguments_are_repaired_while_they_come(calls: str, written: str, arguments: str):
    """Before the name and after it."""
    for text in (f'{{"name": "f", "arguments": {written}}}', f'{{"parameters": {written}, "name": "f"}}'):
        answer = text if calls == "json" else f"<tool_call>\n{text}\n</tool_call>"
        assert same_for_every_cut(rules(calls), answer) == ("", "", [("f", arguments)])


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ('{"name": "f", "arguments": {"a": [{"b": 1', '{"a": [{"b": 1}]}'),
        ('{"name": "f", "arguments": {"a": [1, ', '{"a": [1]}'),
        ('{"name": "f", "arguments": {', "{}"),
        ('{"name": "f", "arguments": {"a": 1}, "id": [5', '{"a": 1}'),
        ('{"arguments": {"a": {}}, "name": "f"', '{"a": {}}'),
        ('{"name": "f"', "{}"),
    ],
)
@pytest.mark.parametrize("tag", ["</tool_call>", '<tool_call>\n{"name": "g"}'])
def test_a_tag_shows_that_brackets_are_missing(inside: str, arguments: str, tag: str):
    others: list[tuple[str, Any]] = [("g", {})] if "g" in tag else []
    message = same_for_every_cut(rules("hermes"), f"<tool_call>\n{inside}\n{tag}")
    assert [(name, json.loads(said)) for name, said in message.calls] == [("f", json.loads(arguments)), *others]
    assert message.content == ""


# Arguments, and so much of them as could be the beginning of JSON.
BROKEN = [
    ('{"a": "print("hi")", "b": 1}', '{"a": "print("'),
    ('{"a": 1, oops}', '{"a": 1'),
    ('{"a": tru, "b": "rest"}', '{"a": '),
    ('{"a": NaN}', '{"a": '),
    ('{"a": 01}', '{"a": '),
    ('{"a": [1e308, -1e309]}', '{"a": [1e308, '),
    ("{'a': 1}", "{"),
    ('{"a" 1}', '{"a" '),
    ('{"a": 1]', '{"a": 1'),
    ('{"a": [1}', '{"a": [1'),
    ('{"a":}', '{"a":'),
    ('{"a": 1,, "b": 2}', '{"a": 1'),
    ('{"a": {}}, "b": 1} \n ', '{"a": {}'),
    ('{"a": <b>}', '{"a": '),
    ('{"a": ' + "1" * 300 + "}", '{"a": '),
    ('{"a": ' + "[" * 60 + "]" * 60 + "}", '{"a": ' + "[" * 55),
]


@pytest.mark.parametrize(("written", "arguments"), BROKEN)
@pytest.mark.parametrize("calls", ["hermes", "json"])
def test_arguments_end_where_they_are_no_json(calls: str, written: str, arguments: str):
    """The client has their beginning, and what follows is content. `parsed` checks that they are told to be cut."""
    text = f'{{"name": "f", "arguments": {written}}}'
    rest = f"{written.removeprefix(arguments)}}}"
    if calls == "json":
        assert same_for_every_cut(rules(calls), f"{text} so") == ("", f"{rest} so", [("f", arguments)])
        return
    message = same_for_every_cut(rules(calls), f"<tool_call>{text}</tool_call> so {HERMES}")
    assert message == ("", f"{rest} so", [("f", arguments), ("f", HERMES_ARGUMENTS)])


@pytest.mark.parametrize(
    ("written", "arguments", "content"),
    [
        ('{"a": 1', '{"a": 1', ""),
        ('{"a": 1, ', '{"a": 1, ', ""),
        ('{"a": -', '{"a": -', ""),
        ('{"a": 1.5e', '{"a": 1.5e', ""),
        ('{"a": nul', '{"a": nul', ""),
        ('{"a": Tru', '{"a": ', "Tru"),
        ('{"a": oops', '{"a": ', "oops"),
        ('{"a": "x\\u00', '{"a": "x\\u00', ""),
        ('{"a": "x\n', '{"a": "x\\n', ""),
    ],
)
def test_arguments_that_the_text_ends_in(written: str, arguments: str, content: str):
    text = f'{{"name": "f", "arguments": {written}'
    assert same_for_every_cut(rules("json"), text) == ("", content, [("f", arguments)])
    assert same_for_every_cut(rules("hermes"), f"<tool_call>{text}") == ("", content, [("f", arguments)])


@pytest.mark.parametrize(
    ("written", "arguments", "content"),
    [
        (r'"{\"a\": \"x"', '{"a": "x', ""),
        (r'"{\"a\": oops}"', '{"a": ', r'oops}"'),
        (r'"{\"a\": 1} \"x\""', '{"a": 1}', r'"x\""'),
    ],
)
def test_arguments_in_a_string_that_are_no_json(written: str, arguments: str, content: str):
    text = f'<tool_call>{{"name": "f", "arguments": {written}</tool_call>'
    assert same_for_every_cut(rules("hermes"), text) == ("", content, [("f", arguments)])


@pytest.mark.parametrize("written", ["12", "[]", '[{"a": 1}]', "true", '"Paris"', '"[1]"', "nothing", "<b>", ""])
def test_arguments_that_are_no_object_are_no_call(written: str):
    """Nothing of it has been shown, so it is content."""
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    assert same_for_every_cut(rules("hermes"), text) == ("", text, [])
    text = f'{{"name": "f", "arguments": {written}}}'
    assert same_for_every_cut(rules("json"), text) == ("", text, [])


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
        ("<parameter=b>\n1e999\n</parameter>", '{"b": "1e999"}'),
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
        ("<tool_call><function=f>\n<parameter=a>1</parameter>\nDone.\n</function></tool_call>", "Done.", '{"a": "1"'),
        ("<tool_call><function=f><parameter=a>1</parameter></tool_call>", "", '{"a": "1"}'),
        ("<function=f><parameter=a b\n>", "<parameter=a b\n>", "{"),
        ("<function=f>\n<parameter=", "<parameter=", "{"),
        ("<function=f>\n<parameter=a>\nx\n</para", "", '{"a": "x\\n</para'),
        ("<function=f>\n<parameter=b>\n12", "", '{"b": 12'),
        ('<function=f>\n<parameter=b>\n{"x": "</parameter>', "", '{"b": {"x": "</parameter>'),
        ("<function=f>\n<parameter=a>\nx\n</function>\nSo.", "", '{"a": "x\\n</function>\\nSo.'),
        ("<function=f>\n<parameter=b>\n12\n</parameter>\n<para", "<para", '{"b": 12'),
        ("<function=f>\n<parameter=so", "<parameter=so", "{"),
        ("<function=f>\n<parameter=b>\nhello", "", '{"b": "hello'),
        ('<function=f>\n<parameter=b>\n{"x": "one\ntwo", "y": nul', "", '{"b": {"x": "one\\ntwo", "y": nul'),
        ("<function=f>\n<parameter=b>\n", "", '{"b": '),
    ],
)
def test_qwen3_coder_calls_that_are_not_whole(text: str, content: str, arguments: str):
    assert same_for_every_cut(rules("qwen3_coder"), text) == ("", content, [("f", arguments)])


# Values whose end tag is missing, and texts that have one of the other tags in them.
ENDS = [
    ('<parameter=b>\n{"kind": "week"}\n</function>\n</tool_call>', '{"b": {"kind": "week"}}'),
    ('<parameter=b>\n{"kind": "week"}\n</function>\n', '{"b": {"kind": "week"}}'),
    ('<parameter=b>{"kind": "week"}</function>', '{"b": {"kind": "week"}}'),
    ("<parameter=b>\n12\n</tool_call>", '{"b": 12}'),
    ("<parameter=a>\nx\n</function>\n</tool_call>", '{"a": "x"}'),
    ("<parameter=a>x</function>", '{"a": "x"}'),
    ("<parameter=a>\nx\n</tool_call>\n", '{"a": "x"}'),
    ("<parameter=a>\nx\n</function>\n</tool", '{"a": "x"}'),
    ("<parameter=a>\nx\n<parameter=b>\n12\n</parameter>\n</function>", '{"a": "x", "b": 12}'),
    ("<parameter=a>\n<parameter=b>\n12\n</function>", '{"a": "", "b": 12}'),
    ("<parameter=b>\n12\n<parameter=a>\nx\n</function>", '{"b": 12, "a": "x"}'),
    ("<parameter=a>\nx\n</parameter>\n</parameter>\n<parameter=b>\n12\n</parameter>\n</function>",
     '{"a": "x", "b": 12}'),
    ("<parameter=a>\nuse </function> or </tool_call> here\n</parameter></function>",
     '{"a": "use </function> or </tool_call> here"}'),
    ("<parameter=a>\nx\n</function>\n</parameter>\n</function>", '{"a": "x\\n</function>"}'),
    ("<parameter=a>\nsee <parameter=b> or\n<parameter=>\n</parameter></function>",
     '{"a": "see <parameter=b> or\\n<parameter=>"}'),
    ('<parameter=b>\n["</function></tool_call>", "<parameter=a>"]\n</parameter></function>',
     '{"b": ["</function></tool_call>", "<parameter=a>"]}'),
    ('<parameter=b>\n{"x": "one\n\ttwo",}\n</parameter></function>', '{"b": {"x": "one\\n\\ttwo"}}'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "arguments"), ENDS)
def test_where_a_value_of_qwen3_coder_ends(text: str, arguments: str):
    message = same_for_every_cut(rules("qwen3_coder"), f"<tool_call>\n<function=f>\n{text}")
    assert message.calls == [("f", arguments)]
    assert message.content in ("", "</tool")


# Texts that have other tags in them: what the tool and the call have decides what a tag means.
SCHEMA = {"properties": {"a": {"type": "string"}, "b": {}, "c": {"type": ["string", "null"]}}}
TAGS_IN_TEXTS = [
    ("<parameter=a>\nsee\n<parameter=other>\n12\n</parameter>\n</function>",
     '{"a": "see\\n<parameter=other>\\n12"}'),
    ("<parameter=a>\nsee\n<parameter=a>\n12\n</parameter>\n</function>", '{"a": "see\\n<parameter=a>\\n12"}'),
    ("<parameter=b>1</parameter><parameter=a>see\n<parameter=b>\n12\n</parameter>\n</function>",
     '{"b": 1, "a": "see\\n<parameter=b>\\n12"}'),
    ("<parameter=c>\n1\n</function> is\n</parameter>\n</function>", '{"c": "1\\n</function> is"}'),
    ("<parameter=c>\nTrue\n</function> is\n</parameter>\n</function>", '{"c": "True\\n</function> is"}'),
    ("<parameter=c>\nnull\n</function>", '{"c": null}'),
    ("<parameter=c>\nsee\n<parameter=b>\n12\n</parameter>\n</function>", '{"c": "see", "b": 12}'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "arguments"), TAGS_IN_TEXTS)
def test_a_text_of_qwen3_coder_that_speaks_of_tags(text: str, arguments: str):
    message = same_for_every_cut(rules_of({"f": SCHEMA}), f"<function=f>{text} {CODER}")
    assert message == ("", "", [("f", arguments), ("f", CODER_ARGUMENTS)])


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        ("<parameter=a>\nuse </function>\n</tool_call> so\n</parameter>", "so\n</parameter>", '{"a": "use "'),
        ("<parameter=a>\nuse </function>\n</tool_call>\n</parameter>", "</parameter>", '{"a": "use "'),
        ("<parameter=a>\nuse </tool_call></function></parameter>", "</parameter>", '{"a": "use "'),
        ("<parameter=a>\nx\n<parameter=b>\n12\n</parameter>\nso\n</parameter>", "so\n</parameter>",
         '{"a": "x", "b": 12'),
        ("<parameter=a>\nx\n<parameter=b>\n12\n</parameter>\n</parameter>", "</parameter>", '{"a": "x", "b": 12'),
        ("<parameter=a>\nx\n<parameter=b>\n12\n</function></tool_call> so", "so", '{"a": "x", "b": 12'),
        ("<parameter=a>\n<parameter=b>\n</parameter><parameter=b>1</parameter>", "<parameter=b>1</parameter>",
         '{"a": "", "b": ""'),
        ("<parameter=a>\nuse </parameter> so\n</parameter>", "so\n</parameter>", '{"a": "use "'),
        ("<parameter=a>\nuse </function>\n<tool_call> or\n</parameter>", "<tool_call> or\n</parameter>",
         '{"a": "use "'),
        ("<parameter=a>\nuse </function>\n<function=g> or\n</parameter>", "<function=g> or\n</parameter>",
         '{"a": "use "'),
        ("<parameter=b>\n1.10</function>\n</parameter>", "</parameter>", '{"b": 1.10'),
        ("<parameter=a>x</function></tool_call>" + " " * 70, "", '{"a": "x"'),
    ],
)  # fmt: skip
def test_a_guess_that_what_follows_shows_to_be_wrong(text: str, content: str, arguments: str):
    """It is no call to carry out, and the next one is."""
    for spaces in ("", "\n"):
        message = same_for_every_cut(rules_of({"f": SCHEMA}), f"<tool_call><function=f>{text}{spaces}{CODER}")
        assert message == ("", content, [("f", arguments), ("f", CODER_ARGUMENTS)])


# Of a text that may be something else, by what its schema says.
KINDS = [
    (
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        ["1.10", "5551234", "true", "None", '"x"', "{}", '{"a', "nullable"],
    ),
    ({"type": ["string", "null"]}, ["1.10", " null and void"]),
    ({"$ref": "#/$defs/name"}, ["1.10", "true"]),
    ({"allOf": [{"type": "string"}, {"maxLength": 5}]}, ["1.10", "null"]),
    ({"oneOf": [{"const": "1"}, {"anyOf": [{"enum": ["2", None]}, {"$ref": "#/$defs/name"}]}]}, ["1", "2"]),
    ({"anyOf": [{"type": "string"}, {"type": "array"}]}, ["5551234", "null", '{"a": 1}', "True"]),
    ({"type": ["integer", "string"]}, ["1.10", "true", "[1]"]),
]


@pytest.mark.parametrize(("schema", "texts"), KINDS)
def test_texts_stay_texts(schema: dict[str, Any], texts: list[str]):
    """Also where the schema says so in a part, and where they look like JSON."""
    parameters = {"properties": {"a": schema}, "$defs": {"name": {"type": ["string", "null"]}}}
    for text in texts:
        for called in (parameters, {"$ref": "#/$defs/all", "$defs": {"all": parameters, **parameters["$defs"]}}):
            call = f"<function=f><parameter=a>\n{text}\n</parameter></function>"
            [(_, arguments)] = same_for_every_cut(rules_of({"f": called}), call).calls
            assert json.loads(arguments) == {"a": text}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null"),
        ({"type": ["string", "null"]}, "null"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, '["x"]'),
        ({"type": ["integer", "string"]}, "5"),
        ({"type": ["integer", "string"]}, "5.0"),
        ({"type": ["integer", "string"]}, '"5"'),
        ({"type": ["number", "string"]}, "5"),
        ({"$ref": "#/properties/a"}, "5"),
        ({"$ref": "#/nowhere"}, "5"),
        ({"type": "any"}, "5"),
        ({"not": {"type": "string"}}, "5"),
        ({}, "true"),
    ],
)
def test_values_that_are_no_texts(schema: dict[str, Any], value: str):
    text = f"<function=f><parameter=a>\n{value}\n</parameter></function>"
    [(_, arguments)] = same_for_every_cut(rules_of({"f": {"properties": {"a": schema}}}), text).calls
    assert arguments == f'{{"a": {value}}}'


def test_reading_a_schema_grows_with_its_length():
    """However its parts refer to one another."""

    def effort(size: int) -> int:
        defs = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i + step) % size}"} for step in range(3)],
                          "properties": {f"p{i}": {"$ref": f"#/$defs/d{i}"}}} for i in range(size)}  # fmt: skip
        parameters = {"allOf": [{"$ref": f"#/$defs/d{i}"} for i in range(size)], "$defs": defs}
        return instructions_of(lambda: named_parameters(parameters))

    assert effort(400) < 6 * effort(100)


def test_a_text_is_given_as_soon_as_it_can_be_nothing_else():
    parser = MessageParser(rules_of({"f": {"properties": {"a": {"type": ["string", "null"]}}}}))
    parser.feed("<function=f><parameter=a>\n")
    assert [parser.feed(piece).calls for piece in ("nul", "led", " is", " so")] == [
        (), (), (CallPart(0, "", '"nulled is'),), (CallPart(0, "", " so"),)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>x</tool_call>",
        "<function= f",
        "<function=>",
        "<function=a\n>",
        f"<function={'f' * 300}>",
        "</function>",
        "<function=f> or <function=g>",
        "<tool_call>\n<function=f>",
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


def same_for_some_cuts(how: MessageRules, text: str) -> Message:
    """The message that a long text is, whatever its pieces are."""
    whole = parsed(how, [text])
    for size in (2**15 + 1, 2**10, 777):
        assert parsed(how, [text[start : start + size] for start in range(0, len(text), size)]) == whole
    return whole


def test_an_object_without_a_name_is_content_when_it_is_too_long():
    before, after = '<tool_call>{"arguments": {"a": "', '"}, "name": "f"}'
    room = object_call.MAX_UNDECIDED_CHARS - len(before + after) + len("<tool_call>}")
    fits = f"{before}{'x' * room}{after}"
    [(name, arguments)] = same_for_some_cuts(rules("hermes"), fits).calls
    assert (name, len(arguments)) == ("f", room + len('{"a": ""}'))
    longer = f"{before}{'x' * (room + 1)}{after}"
    assert same_for_some_cuts(rules("hermes"), longer) == ("", longer, [])


def test_a_value_is_a_text_when_it_is_too_long_to_be_decided():
    fits = f'"{"x" * (parameter_value.MAX_UNDECIDED_CHARS - 2)}"'
    longer = f'"x{fits[1:]}'
    text = f"<function=f><parameter=b>{fits}</parameter><parameter=c>{longer}</parameter></function>"
    [(_, arguments)] = same_for_some_cuts(rules("qwen3_coder"), text).calls
    assert json.loads(arguments) == {"b": fits[1:-1], "c": longer}
