"""Chats whose messages have thoughts and calls: whole answers, streams, and streams that break off."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common import messages as m
from scheduler_svc.frontend.answers import delta_parts
from scheduler_svc.frontend.answers.answer_context import AnswerContext
from scheduler_svc.frontend.answers.choice import text_rules
from scheduler_svc.frontend.answers.message_text import MessageText
from scheduler_svc.frontend.parsing.message import CallFormat, MessageRules
from scheduler_svc.frontend.text.sequence_text import SequenceText
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests.frontend.answers.broken_streams import ResumableRequest, Seen, Sequence
from tests.frontend.answers.chats import Message, context_of, joined, plain, streamed, whole
from tests.frontend.answers.texts import ANSWER, BOTH, CALL, CODER_CALL, JSON_CALL, PIECES, RULES, SECOND
from tests.support.demo_tokenizer import EOS, TOKENIZER, ids
from tests.support.effort import examples

ARGUMENTS = '{"a": "<é🦊>"}'


def test_a_whole_answer():
    answer = whole(context_of(), [*ids(ANSWER), EOS])
    [choice] = answer["choices"]
    message = choice["message"]
    first, second = message["tool_calls"]
    assert (message["role"], message["content"], message["refusal"]) == ("assistant", "Well <b>:", None)
    assert message["reasoning_content"] == message["reasoning"] == "I should."
    assert first["function"] == {"name": "f", "arguments": ARGUMENTS}
    assert second == {"id": second["id"], "type": "function", "function": {"name": "g", "arguments": "{}"}}
    assert choice["finish_reason"] == "tool_calls"
    num_thought = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < num_thought < answer["usage"]["completion_tokens"] == len(ids(ANSWER)) + 1


def test_ids_of_calls_are_the_same_everywhere_and_differ():
    tokens = [*ids(ANSWER), EOS]
    answer = whole(context_of(n=2), tokens)
    found = [call["id"] for choice in answer["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(found)) == 4
    assert all(name.startswith("call_") and len(name) == 29 for name in found)
    parts = streamed(context_of(n=2), tokens)
    assert [call["id"] for choice in (0, 1) for call in joined(parts, choice)["calls"]] == found


@pytest.mark.parametrize(
    ("text", "content"), [(CALL, None), (f"<think>\nx\n</think>\n\n{CALL}", None), ("", ""), ("<think>x", "")]
)
def test_content_is_null_only_beside_calls(text: str, content: str | None):
    assert whole(context_of(), [*ids(text), EOS])["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        (CALL, "stop", "tool_calls"),
        (CALL + SECOND, "length", "length"),
        ("Hi", "stop", "stop"),
        ("<think>no", "stop", "stop"),
    ],
)
def test_why_it_ended(text: str, reason: m.FinishReason, expected: str):
    tokens = [*ids(text), *([EOS] if reason == "stop" else [])]
    assert whole(context_of(), tokens, reason)["choices"][0]["finish_reason"] == expected
    assert streamed(context_of(), tokens, reason)[-1]["choices"][0]["finish_reason"] == expected


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("calls", "text"), [("hermes", SECOND + CALL), ("qwen3_coder", CODER_CALL), ("json", JSON_CALL)]
)
def test_a_call_that_is_cut_is_none_to_carry_out(calls: CallFormat, text: str, size: int):
    rules = MessageRules(calls=calls, text_parameters={"f": ("a",)} if calls == "qwen3_coder" else {})
    tokens = [*ids(text + " The end."), EOS]
    for stop, reason in (("🦊", "length"), ("end", "tool_calls")):
        [choice] = whole(context_of(rules, stop=(stop,)), tokens, size=size)["choices"]
        assert choice["finish_reason"] == reason, stop
    [choice] = whole(context_of(rules), [*ids(text[: text.index("🦊")]), EOS])["choices"]
    assert choice["finish_reason"] == "length", "the model ended it"


def test_calls_come_in_chunks():
    parts = [part["choices"][0]["delta"] for part in streamed(context_of(), [*ids(CALL), EOS])]
    calls = [delta["tool_calls"] for delta in parts if "tool_calls" in delta]
    assert len(calls) > 3, "arguments come as they are written"
    assert all(len(call) == 1 for call in calls)
    assert not any("content" in delta for delta in parts)
    assert sum("id" in call for [call] in calls) == 1


def test_a_chunk_has_a_thought_or_an_answer():
    parts = [part["choices"][0]["delta"] for part in streamed(context_of(), ids(ANSWER), "length", 1000)]
    assert [sorted(delta) for delta in parts] == [["reasoning", "reasoning_content"], ["content", "tool_calls"]]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("rules", RULES)
def test_chunks_together_are_the_whole_answer(rules: MessageRules, hides: bool, size: int):
    context = context_of(rules, logprobs=2, hides_thought=hides, stop=("\n\nW",) if size == 5 else ())
    tokens = [*ids(ANSWER), EOS]
    parts = streamed(context, tokens, size=size)
    expected = plain(whole(context, tokens, size=3))
    assert joined(parts) == expected
    assert bool(expected["thought"]) == (rules.thought != "none" and not hides)
    deltas = [part["choices"][0]["delta"] for part in parts if not part["choices"][0]["finish_reason"]]
    assert all(deltas), "no chunk is empty"
    names = [entry["token"] for entry in expected["logprobs"]]
    usage = whole(context, tokens)["usage"]
    num_hidden = usage["completion_tokens_details"]["reasoning_tokens"] if hides and rules.thought != "none" else 0
    shown = tokens[num_hidden : usage["completion_tokens"]]
    assert names == [TOKENIZER.token_texts.of(token).text for token in shown]


def test_what_is_taken_apart_is_read_in_smaller_parts():
    tokens, context = ids("<think>\n" + "one two " * 20 + "</think>" + "three four " * 20), context_of(logprobs=2)
    expected = plain(whole(context, tokens, "length"))
    token_bytes = 4 * 3  # its id, and those of its log-probabilities
    limit = 4 * token_bytes * delta_parts.PARSED_SHARE
    parts = streamed(context, tokens, "length", 1000, most_bytes=limit)
    assert joined(parts) == expected
    assert len(parts) > len(tokens) // 4 - 8, "but for tags"
    plainly = streamed(context_of(MessageRules(), logprobs=2), tokens, "length", 1000, most_bytes=limit)
    assert len(plainly) < len(parts) / 2


def test_every_chunk_may_have_the_usage_so_far():
    tokens = ids(ANSWER)
    context = context_of(has_chunk_usage=True, include_usage=False)
    usages = [part["usage"] for part in streamed(context, tokens, "length")]
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(set(counts))
    assert usages[-1] == whole(context, tokens, "length")["usage"]
    assert all(usage["total_tokens"] == 3 + usage["completion_tokens"] for usage in usages)
    assert all("usage" not in part for part in streamed(context_of(include_usage=False), tokens, "length"))
    assert all(part["usage"] is None for part in streamed(context_of(), tokens, "length"))


def test_tags_that_are_special_tokens(tmp_path: Path):
    """They have no text, but where they divide a message."""
    content = json.loads((TOKENIZER.folder / "tokenizer.json").read_text())
    names = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content["added_tokens"] += [{"id": 2048 + i, "content": name} | flags for i, name in enumerate(names)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Tokenizer(tmp_path)
    [tokens] = tokenizer.encode([ANSWER], add_special_tokens=False)
    assert {2048, 2049, 2050, 2051} <= {*tokens}
    plain_rules, rules = (text_rules(context_of(rules), tokenizer) for rules in (MessageRules(), BOTH))
    assert SequenceText(plain_rules).feed(tokens, "length")[0].startswith("\nI should.\n\n\nWell <b>:")
    [(thought, num_thought), (rest, _)] = MessageText(rules, BOTH).feed(tokens, "length")[0]
    assert (thought.thought, rest.content, [call.name for call in rest.calls]) == ("I should.", "Well <b>:", ["f", "g"])
    assert num_thought == tokens.index(2049) + 1


def test_usage_without_thoughts_says_nothing_of_them():
    answer = whole(context_of(MessageRules(calls="hermes")), ids(ANSWER), "length")
    assert "completion_tokens_details" not in answer["usage"]


@dataclass
class SeenMessages(Seen):
    """What a client has put together from all its connections, messages too."""

    messages: dict[int, Message] = field(default_factory=dict)

    def take(self, event: bytes) -> None:
        super().take(event)
        data = next(line for line in event.decode().split("\n") if line.startswith("data: ")).removeprefix("data: ")
        if data != "[DONE]":
            for choice in json.loads(data)["choices"]:
                self.messages.setdefault(choice["index"], Message()).take(choice)


def services(context: AnswerContext, texts: list[str], reasons: list[m.FinishReason]) -> Iterator[ResumableRequest]:
    """The same request again and again."""
    while True:
        sequences = [
            Sequence([*ids(text), *([EOS] if reason == "stop" else [])], reason, context.logprobs, [5], 0)
            for text, reason in zip(texts, reasons, strict=True)
        ]
        yield ResumableRequest(context, sequences, [[5]])


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(
    rules=st.sampled_from(RULES),
    stop=st.sampled_from([(), ("🦊",), ("</think>\n\nW",)]),
    num_logprobs=st.sampled_from([0, 2]),
    hides=st.booleans(),
    texts=st.lists(st.lists(st.sampled_from([*PIECES, ANSWER, CALL]), max_size=5).map("".join), min_size=1, max_size=2),
    data=st.data(),
)
def test_a_stream_that_breaks_anywhere(
    rules: MessageRules, stop: tuple[str, ...], num_logprobs: int, hides: bool, texts: list[str], data: st.DataObject
):
    context = context_of(rules, stop=stop, logprobs=num_logprobs, hides_thought=hides, n=len(texts))
    reasons = [data.draw(st.sampled_from(["stop", "length"])) for _ in texts]
    requests = services(context, texts, reasons)
    undisturbed, seen, broken = SeenMessages(), SeenMessages(), next(requests)
    asyncio.run(next(requests).read(undisturbed, [1000], 10**9))
    for _ in range(400):
        sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
        asyncio.run(broken.read(seen, sizes, data.draw(st.integers(1, 12))))
        if seen.is_done:
            break
    assert seen.is_done
    assert {number: message.plain() for number, message in seen.messages.items()} == {
        number: message.plain() for number, message in undisturbed.messages.items()
    }
    assert seen.usage == undisturbed.usage
