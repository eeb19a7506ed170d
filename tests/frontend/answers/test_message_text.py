"""Tokens become thought, content and calls: the same however they are grouped, and in whatever process they go on."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.frontend.answers.message_text import MessageText
from scheduler_svc.frontend.parsing.message import CallPart, MessagePart, MessageRules
from scheduler_svc.frontend.text.sequence_text import TextRules
from scheduler_svc.frontend.text.stop_strings import StopStrings
from tests.frontend.answers.texts import ANSWER, BOTH, CALL, PIECES, RULES, SECOND
from tests.support.demo_tokenizer import EOS, TOKENIZER, decoded, ids
from tests.support.effort import examples


def text_rules(*stops: str, min_tokens: int = 0, are_shown: bool = False) -> TextRules:
    searched = StopStrings(stops, are_shown=are_shown) if stops else None
    return TextRules(TOKENIZER.token_bytes, searched, min_tokens)


class Reading:
    """A message that is read in groups of tokens; what came after each number of tokens."""

    def __init__(self, rules: MessageRules, stops: tuple[str, ...] = (), num_delivered: int = 0, **how: int) -> None:
        self.message = MessageText(text_rules(*stops, **how), rules, num_delivered)
        self.thought = self.content = ""
        self.calls: dict[int, tuple[str, str]] = {}
        self.reason: str | None = None

    def read(self, tokens: list[int], sizes: list[int], reason: str) -> "Reading":
        start = turn = 0
        while start < len(tokens) and self.reason is None:
            group = tokens[start : start + sizes[turn % len(sizes)]]
            start, turn = start + len(group), turn + 1
            additions, self.reason = self.message.feed(group, reason if start == len(tokens) else None)
            counts = [addition.num_tokens for addition in additions]
            assert counts == sorted(set(counts))
            for part, _ in additions:
                self.take(part)
        return self

    def take(self, part: MessagePart) -> None:
        assert part != MessagePart()
        self.thought += part.thought
        self.content += part.content
        for number, name, arguments in part.calls:
            said = self.calls.get(number, ("", ""))
            assert not name or number not in self.calls
            self.calls[number] = (said[0] + name, said[1] + arguments)

    def all(self) -> tuple:
        message = self.message
        return (
            self.thought,
            self.content,
            self.calls,
            self.reason,
            message.text.num_tokens,
            message.num_thought_tokens,
            message.has_calls,
        )


def test_a_whole_answer():
    tokens = [*ids(ANSWER), EOS]
    read = Reading(BOTH).read(tokens, [1000], "stop")
    assert (read.thought, read.content, read.reason) == ("I should.", "Well <b>:", "stop")
    assert [name for name, _ in read.calls.values()] == ["f", "g"]
    assert [json.loads(arguments) for _, arguments in read.calls.values()] == [{"a": "<é🦊>"}, {}]
    assert read.message.has_calls


def test_the_tokens_of_a_thought_are_those_up_to_its_end_tag():
    before = "<think>\nI should.\n</think>"
    tokens = ids(ANSWER)
    num_thought = next(k for k in range(len(tokens)) if decoded(tokens[:k]).startswith(before))
    for size in (1, 2, 3, 1000):
        assert Reading(BOTH).read(tokens, [size], "length").message.num_thought_tokens == num_thought
    cut_short = tokens[: num_thought - 1]
    assert Reading(BOTH).read(cut_short, [2], "length").message.num_thought_tokens == num_thought - 1
    assert Reading(RULES[3]).read(tokens, [2], "length").message.num_thought_tokens == 0
    assert Reading(BOTH).read(ids("No thought."), [2], "length").message.num_thought_tokens == 0


def test_the_thought_is_a_part_by_itself():
    """Clients may look for one of thought and content in a chunk."""
    message = MessageText(text_rules(), BOTH)
    additions, _ = message.feed(ids(ANSWER), "length")
    assert [bool(part.thought) for part, _ in additions] == [True, False]
    assert [bool(part.content) for part, _ in additions] == [False, True]
    assert additions[0].num_tokens == message.num_thought_tokens
    assert additions[1].num_tokens == message.text.num_tokens
    assert additions[1].part.calls == (CallPart(0, "f", '{"a": "<é🦊>"}'), CallPart(1, "g", "{}"))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_second_call_that_is_left_out_ends_the_answer(size: int):
    """However many calls the model would write, the first one is all that its client waits for."""
    tokens = ids(f"Well: {CALL}\n" + SECOND * 50)
    read = Reading(MessageRules(calls="hermes", is_one_call=True)).read(tokens, [size], "length")
    assert (read.content, read.reason) == ("Well:", "stop")
    assert read.calls == {0: ("f", '{"a": "<é🦊>"}')}
    text = decoded(tokens[: read.message.text.num_tokens])
    assert text.startswith(f"Well: {CALL}")
    assert len(text) < len(f"Well: {CALL}\n{SECOND}")


TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.sampled_from([ANSWER, ANSWER + " x", CALL])


@settings(max_examples=examples(300, quick=60))
@given(
    text=TEXTS,
    rules=st.sampled_from(RULES),
    stops=st.sampled_from([(), ("🦊",), ("</think>\n\nW", "</tool_call>\n<"), ("a<",)]),
    reason=st.sampled_from(["stop", "length"]),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    data=st.data(),
)
def test_groups_and_breaks_change_nothing(
    text: str,
    rules: MessageRules,
    stops: tuple[str, ...],
    reason: str,
    sizes: list[int],
    data: st.DataObject,
):
    tokens = [*ids(text), *([EOS] if reason == "stop" else [])]
    whole = Reading(rules, stops).read(tokens, [1000], reason)
    assert Reading(rules, stops).read(tokens, sizes, reason).all() == whole.all()
    # A client that has what came of the first tokens, and then the rest from another frontend.
    num_first = data.draw(st.integers(0, len(tokens)))
    first = Reading(rules, stops).read(tokens[:num_first], sizes, None)
    if first.reason is None:
        rest = Reading(rules, stops, num_delivered=num_first)
        rest.thought, rest.content, rest.calls = first.thought, first.content, first.calls
        assert rest.read(tokens, [1000, *sizes], reason).all() == whole.all()


NOW = RULES[-2]
THOUGHT = "<think>\nIs 9.8 more\n\nthan 9.11?\n</think>\n\n"


@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize(
    ("text", "stop", "content", "calls"),
    [
        (f"{THOUGHT}Yes, 9.8 is.", "9.8", "Yes, ", 0),
        (f"{THOUGHT}Yes.\n\nAnd more", "\n\n", "Yes.", 0),
        (f"{THOUGHT}Yes", "</think>", "Yes", 0),
        (f"{THOUGHT}Yes", "think", "Yes", 0),
        (f"{THOUGHT}Yes", "?\n</think>\n\nYes", "Yes", 0),
        (f"{THOUGHT}Yes: {CALL}", "<é", "Yes:", 1),
        (f"{THOUGHT}Yes: {CALL} so", " so", "Yes:", 1),
        ("9.8 is more", "9.8", "", 0),
        ("\n\n9.8", "\n\n", "", 0),
        ("<thinking", "<t", "", 0),
        ("<thi", "hi", "<t", 0),
        (f"<think>9.8 {CALL}", "9.8", "", 1),
        ("<think>9.8 is more", "9.8", "", 0),
    ],
)
def test_stop_strings_are_searched_in_what_is_no_thought(text: str, stop: str, content: str, calls: int, size: int):
    read = Reading(NOW, (stop,)).read(ids(text), [size], "length")
    found = stop in text.rpartition("</think>\n\n")[2].rpartition("<think>9.8 ")[2]
    assert (read.content, len(read.calls), read.reason) == (content, calls, "stop" if found else "length")
    assert read.message.text.stop_string == (stop if found else "")
    if THOUGHT in text:
        assert read.thought == "Is 9.8 more\n\nthan 9.11?"
    shown = Reading(NOW, (stop,), are_shown=True).read(ids(text), [size], "length")
    if found and not calls:
        assert shown.content == content + stop
    old = Reading(BOTH, (stop,)).read(ids(text), [size], "length")
    assert old.reason == ("stop" if stop in text else "length"), "--stop-in-thoughts"


def test_min_tokens_count_the_thought():
    tokens = ids(f"{THOUGHT}9.8 and 9.8")
    before = len(ids(f"{THOUGHT}9.8 and"))
    for min_tokens, content in ((0, ""), (before, "9.8 and ")):
        read = Reading(NOW, ("9.8",), min_tokens=min_tokens).read(tokens, [1], "length")
        assert (read.content, read.reason) == (content, "stop")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_call_that_ends_a_thought_is_none_of_its_tokens(size: int):
    before = ids("<think>\nI should.\n")
    tokens = [*before, *ids(CALL), EOS]
    read = Reading(NOW).read(tokens, [size], "stop")
    assert (read.thought, read.content, read.calls) == ("I should.", "", {0: ("f", '{"a": "<é🦊>"}')})
    assert (read.reason, read.message.text.num_tokens) == ("stop", len(tokens))
    assert 0 <= read.message.num_thought_tokens - len(before) <= len(ids("<tool_call>")) - 1
    additions, _ = MessageText(text_rules(), NOW).feed(tokens, "stop")
    assert [(bool(part.thought), bool(part.calls)) for part, _ in additions] == [(True, False), (False, True)]
    thought = Reading(NOW).read([*before, *ids(f"{CALL} so"), EOS], [size], "stop")
    assert thought.message.num_thought_tokens == thought.message.text.num_tokens


def test_with_the_old_rule_a_stop_string_ends_a_message_anywhere():
    for stop in ("should", "Well", '"f"'):
        read = Reading(BOTH, (stop,)).read(ids(ANSWER), [3], "length")
        assert read.reason == "stop"
        assert stop not in read.thought + read.content


@pytest.mark.parametrize("rules", RULES)
def test_an_answer_without_tokens(rules: MessageRules):
    assert MessageText(text_rules(), rules).feed([], "length") == ([], "length")
