"""Calls as models write them, damaged, through every dialect: arguments are JSON or the answer says that it was cut, a
stream says what the whole answer says, and nothing that is no tag or bracket is lost."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from common import messages as m
from scheduler_svc.frontend.parsing.message import MessageParser, MessageRules
from tests.frontend.answers import chats, contexts
from tests.frontend.answers import message_events as anthropic
from tests.frontend.answers.responses import told as responses
from tests.frontend.messages import is_object, joined, parsed, rules_of
from tests.support.demo_tokenizer import EOS, ids
from tests.support.effort import examples

SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "list": {"type": "array"},
        "either": {"type": ["integer", "string"]},
    }
}
TAG = re.compile(r"</?[a-z_]+(=[^>\n]*)?>")
PIECES = [
    *("Жук", "月", "🦊", "🏳️‍🌈", "é", "plain", '"', "'", "\\", "{", "}", "[", "<"),
    *("1.10", "null", "True", "<parameter=text>", "<tool_call>"),
    *("</parameter>", "</function>", "</tool_call>", "</function>\n", " ", "\n", "\t", "\r\n", "\x00"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | TEXTS,
    lambda value: st.lists(value, max_size=3) | st.dictionaries(st.sampled_from(["x", "y"]), value, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.sampled_from([*SCHEMA["properties"], "other"]), VALUES, max_size=3)
SAID = st.lists(st.sampled_from(["Жaber", " я ", "🦊", "\n", "so:", " <b> ", "é\n\n"]), max_size=3).map("".join)
DAMAGE = st.tuples(
    st.sampled_from(["cut", "drop a tag", "double a tag", "insert", "delete"]),
    st.integers(0, 996).map(lambda number: number * 5 % 997 / 997),  # small numbers are everywhere in a text
    st.sampled_from(
        [
            *('"', "\\", "'", ",", "<", "]", "True", '\\"', "</tool_call>", "</parameter>"),
            *("<function=f>", "🦊", "\n", "\t", "\x1f", "\n<parameter=maybe>"),
        ]
    ),
)
FORMATS = st.sampled_from(["hermes", "json", "qwen3_coder"])


def written(calls: str, arguments: dict[str, Any], style: str) -> str:
    """One call; in a style other than "right", as careless models write it."""
    text = json.dumps(arguments, ensure_ascii=False)
    if style == "raw":
        text = text.replace("\\n", "\n").replace("\\t", "\t").replace("\\u0000", "\x00").replace("\\r", "\r")
    if style == "quotes":
        text = text.replace('\\"', '"')
    if style == "text":
        text = json.dumps(text, ensure_ascii=False)
    if calls == "qwen3_coder":
        values = [(key, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for key, v in arguments.items()]
        if style == "raw":
            values = [(key, value.replace("\\n", "\n")) for key, value in values]
        body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
        return f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>"
    said = f'{{"name": "f", "arguments": {text}}}'
    if style == "turned":
        said = f'{{"parameters": {text}, "name": "f"}}'
    return said if calls == "json" else f"<tool_call>\n{said}\n</tool_call>"


def damaged(text: str, how: str, where: float, piece: str) -> str:
    place = int(where * len(text))
    tags = list(TAG.finditer(text))
    match how:
        case "cut":
            return text[:place]
        case "insert":
            return text[:place] + piece + text[place:]
        case "delete" if text[place : place + 1].isascii():
            return text[:place] + text[place + 1 :]
        case "drop a tag" | "double a tag" if tags:
            tag = tags[min(int(where * len(tags)), len(tags) - 1)]
            return text[: tag.start()] + tag.group() * (2 if how == "double a tag" else 0) + text[tag.end() :]
    return text


@st.composite
def answers(draw: st.DrawFn) -> tuple[MessageRules, str]:
    """A model's rules and what it wrote."""
    calls = draw(FORMATS)
    thought = draw(st.sampled_from(["none", "may_open", "open"]))
    text = "" if thought == "none" else f"{'<think>' if thought == 'may_open' else ''}\n{draw(SAID)}\n</think>\n\n"
    for arguments, style in draw(
        st.lists(
            st.tuples(ARGUMENTS, st.sampled_from(["right", "raw", "quotes", "text", "turned"])), min_size=1, max_size=3
        )
    ):
        text += (draw(SAID) if calls != "json" else "") + written(calls, arguments, style) + "\n"
    text += draw(SAID)
    for how, where, piece in draw(st.lists(DAMAGE, min_size=1, max_size=4)):
        text = damaged(text, how, where, piece)
    return rules_of({"f": SCHEMA}, thought, calls), text


def letters(*texts: str | Iterable[str]) -> Counter[str]:
    """Characters that no tag, no bracket, no key and no name has."""
    return Counter(character for text in texts for part in text for character in part if not character.isascii())


@settings(max_examples=examples(3000, 250))
@given(answers(), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_parsers(answer: tuple[MessageRules, str], sizes: list[int]):
    """`parsed` holds the arguments against what the parser says of them."""
    rules, text = answer
    whole = parsed(rules, [text])
    assert parsed(rules, text) == whole
    assert parsed(rules, cut_into(text, sizes)) == whole
    assert letters(text) == letters(whole.thought, whole.content, *whole.calls), whole


# Texts that speak of other tags than those that would end them where they end rightly.
QUOTES = TEXTS.filter(lambda text: "</parameter>" not in text and "<parameter=text>" not in text)
WRITTEN = st.fixed_dictionaries(
    {},
    optional={"text": QUOTES, "maybe": QUOTES.filter(lambda text: text.strip() != "null"), "list": st.lists(VALUES)},
)
MISSING = st.sampled_from(["", "\n</parameter>(?=\n<parameter)", "\n</parameter>(?=\n</function)"])


@settings(max_examples=examples(3000, 250))
@given(FORMATS, st.lists(WRITTEN, min_size=1, max_size=2), SAID, MISSING)
def test_a_call_that_is_not_cut_is_as_it_was_written(calls: str, many: list[dict[str, Any]], said: str, missing: str):
    """Also if end tags of values are missing, in texts that speak of tags, but at their ends."""
    assume(not missing or not any(str(text).rstrip().endswith(">") for each in many for text in each.values()))
    text = re.sub(missing, "", "".join(written(calls, arguments, "right") + "\n" for arguments in many)) + said
    rules = rules_of({"f": SCHEMA}, "none", calls)
    parser = MessageParser(rules)
    message = joined([parser.feed(text), parser.flush()])
    assert parser.has_cut_call or [json.loads(arguments) for _, arguments in message.calls] == many
    assert not parser.has_cut_call or (calls == "qwen3_coder" and "</" in "".join(map(json.dumps, many)) + missing)


@settings(max_examples=examples(600, 200), suppress_health_check=[HealthCheck.too_slow])
@given(answers(), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from(["stop", "length"]))
def test_dialects(answer: tuple[MessageRules, str], sizes: list[int], reason: m.FinishReason):
    rules, text = answer
    tokens = ids(text)
    assume(tokens)
    check_chats(rules, text, tokens, sizes, reason)
    check_messages(rules, text, tokens, sizes, reason)
    check_responses(rules, text, tokens, sizes, reason)


def check_chats(rules: MessageRules, text: str, tokens: list[int], sizes: list[int], reason: m.FinishReason) -> None:
    """Of two choices."""
    context = chats.context_of(rules, n=2)
    tokens = [*tokens, *([EOS] if reason == "stop" else [])]
    answer = chats.whole(context, tokens, reason)
    parts = chats.streamed(context, tokens, reason, sizes[0])
    for choice in (0, 1):
        said = chats.plain(answer, choice)
        assert chats.joined(parts, choice) == said
        arguments = [call["function"]["arguments"] for call in said["calls"]]
        names = [call["function"]["name"] for call in said["calls"]]
        are_whole = all(map(is_object, arguments))
        assert said["finish_reason"] == ("length" if reason == "length" or not are_whole else
                                         "tool_calls" if arguments else "stop")  # fmt: skip
        assert letters(text) == letters(said["thought"], said["content"], arguments, names)


def check_messages(rules: MessageRules, text: str, tokens: list[int], sizes: list[int], reason: m.FinishReason) -> None:
    context = contexts.context_of("message", message=rules)
    seen = anthropic.Seen()
    asyncio.run(anthropic.service(context, tokens, reason).read(seen, sizes, 10**9))
    message, streamed = asyncio.run(anthropic.whole(context, tokens, reason)), seen.message()
    pieces = [block.pop("json") for block in streamed["content"]]
    are_whole = True
    for block, json_text in zip(streamed["content"], pieces, strict=True):
        if block["type"] == "tool_use":
            block["input"] = anthropic.object_in(json_text)
            are_whole = are_whole and is_object(json_text)
    assert streamed == message
    if not are_whole:
        assert message["stop_reason"] == "max_tokens"
    said = [block.get(name, "") for block in message["content"] for name in ("thinking", "text", "name")]
    assert letters(text) == letters(said, pieces)


def check_responses(
    rules: MessageRules, text: str, tokens: list[int], sizes: list[int], reason: m.FinishReason
) -> None:
    tokens = [*tokens, *([EOS] if reason == "stop" else [])]
    context, spec = responses.context_of(rules), responses.spec_of()
    data, outcome = asyncio.run(responses.stream(responses.deltas_of(tokens, sizes, reason), context, spec))
    events = responses.events_in(data)
    responses.check_growth(events)
    at_once, _ = asyncio.run(responses.stream(responses.deltas_of(tokens, [10**6], reason), context, spec))
    said = [json.dumps(event["response"]["output"]) for event in (events[-1], responses.events_in(at_once)[-1])]
    assert said[0] == said[1]
    output = responses.whole(spec, outcome)["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    for call in calls:
        assert is_object(call["arguments"]) or (outcome.status, call["status"]) == ("incomplete", "incomplete")
    shown = [part["text"] for item in output if item["type"] != "function_call" for part in item["content"]]
    assert letters(text) == letters(shown, [call["arguments"] + call["name"] for call in calls])


def cut_into(text: str, sizes: list[int]) -> list[str]:
    pieces: list[str] = []
    while text:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[:size])
        text = text[size:]
    return pieces
