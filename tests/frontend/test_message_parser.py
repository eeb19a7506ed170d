"""Answers taken apart: what each format means."""

import json

import pytest

from scheduler_svc.frontend.parsing import object_call, parameter_value
from scheduler_svc.frontend.parsing.message import MessageParser, MessageRules
from tests.frontend.messages import ARGUMENTS, CALLS, HERMES, HERMES_ARGUMENTS, JSON, Message, parsed, rules


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
    *("{call} so", "{call}</thi", "{call}<", "{cut}", "{cut}</tool_call> no", "{call}{cut}", "<tool_call> {call} so"),
    *("<tool_call>", "<tool_call>\n", "<tool_call>{{", '<tool_call>{{"name": "f"', "</tool_call>"),
]


@pytest.mark.parametrize("calls", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("start", ["open", "may_open"])
@pytest.mark.parametrize(
    ("before", "end", "num_calls"),
    [
        *(("", "{call}", 1), ("", "{call}\n", 1), ("", "{call}\n{call}", 2), ("", "{call}\n<tool_call>", 1)),
        *(("I <tool_call> it.\n", "{call}", 1), ("<tool_call>", "{call}", 1), ("<function=", "{call}", 1)),
        *(("{call} or ", "{call}", 1), ("{call} or ", "{call} {call}\n", 2), ("</tool_call>", "{call}", 1)),
    ],
)
def test_a_thought_that_ends_with_calls(calls: str, start: str, before: str, end: str, num_calls: int):
    """Models forget the end tag where they turn to a call. A thought that goes on behind a call has none there."""
    thought = f"I should.\n{before}".format(call=CALLS[calls])
    text = f"<think>\n{thought}{end.format(call=CALLS[calls])}"
    expected = (thought.rstrip(), "", [("f", ARGUMENTS[calls])] * num_calls)
    assert same_for_every_cut(rules(calls, start), text) == expected


@pytest.mark.parametrize("calls", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("end", NO_CALL_ENDS_A_THOUGHT)
def test_a_thought_that_ends_with_anything_else(calls: str, end: str):
    call = CALLS[calls]
    cut = call[: call.rindex("}" if calls == "hermes" else "</parameter>")]
    thought = f"I should.\n{end.format(call=call, cut=cut)}"
    how = rules(calls, "open")
    assert same_for_every_cut(how, thought) == (thought.rstrip(), "", [])
    assert same_for_every_cut(how, thought + "</think>\n\nYes.") == (thought.rstrip(), "Yes.", [])
    whole = same_for_every_cut(how, f"{thought}</think>\n\n{call}")
    assert whole == (thought.rstrip(), "", [("f", ARGUMENTS[calls])]), "that behind the thought counts"


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
