"""Text, reason and token count of a sequence are the same however its tokens were grouped, and at any moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.frontend.text.sequence_text import SequenceText, TextRules
from scheduler_svc.frontend.text.stop_strings import StopStrings
from tests.support.demo_tokenizer import EOS, TOKENIZER

EOS_TEXT = TOKENIZER.all_token_bytes[EOS].decode()


def rules(stops: list[str], *, min_tokens: int = 0, shows_stop: bool = False, shows_special: bool = False) -> TextRules:
    return TextRules(
        TOKENIZER.all_token_bytes if shows_special else TOKENIZER.token_bytes,
        StopStrings(stops, are_shown=shows_stop) if stops else None,
        min_tokens,
        shows_stop,
    )


def run(groups: list[list[int]], reason: str, of: TextRules) -> tuple[str, str | None, int]:
    sequence = SequenceText(of)
    shown, ended = "", None
    for number, group in enumerate(groups, start=1):
        text, ended = sequence.feed(group, reason if number == len(groups) else None)
        shown += text
        if sequence.has_ended:
            break
    return shown, ended, sequence.num_tokens


# Single bytes of characters of several, so that these are cut, mixed and left unfinished; letters; whatever else.
BYTES = [i for i, b in TOKENIZER.token_bytes.items() if len(b) == 1 and b >= b"\x80"]
LETTERS = [i for i, b in TOKENIZER.token_bytes.items() if len(b) <= 2 and b.strip() in (b"a", b"e", b"i", b"o", b"u")]
TOKENS = st.sampled_from(BYTES) | st.sampled_from(LETTERS) | st.integers(0, 2050)
GROUPS = st.lists(st.lists(TOKENS, max_size=5), min_size=1, max_size=8)
STOPS = st.lists(st.text("aeiou \ufffd", min_size=1, max_size=3), max_size=3)
RULES = st.builds(rules, STOPS, min_tokens=st.integers(0, 6), shows_stop=st.booleans(), shows_special=st.booleans())
REASONS = st.sampled_from(["stop", "length"])


@given(GROUPS, REASONS, RULES)
def test_grouping_makes_no_difference(groups: list[list[int]], reason: str, of: TextRules):
    tokens = [token for group in groups for token in group]
    if reason == "stop":  # the stop token comes with the word that it stopped
        groups, tokens = [*groups, [7]], [*tokens, 7]
    assert run(groups, reason, of) == run([tokens], reason, of) == run([[t] for t in tokens] or [[]], reason, of)


def test_the_stop_token_counts_and_does_not_show():
    ids = TOKENIZER.encode(["Hello there"], add_special_tokens=False)[0]
    full_stop = TOKENIZER.encode(["."], add_special_tokens=False)[0]
    assert run([[*ids, *full_stop]], "stop", rules([])) == ("Hello there", "stop", len(ids) + 1)
    assert run([[*ids, *full_stop]], "length", rules([])) == ("Hello there.", "length", len(ids) + 1)
    assert run([[*ids, *full_stop]], "stop", rules(["zzz"])) == ("Hello there", "stop", len(ids) + 1)


@pytest.mark.parametrize("stops", [[], ["zzz"]])
def test_what_stopped_the_text_is_shown_to_who_asks_for_it(stops: list[str]):
    ids = TOKENIZER.encode(["Hello there."], add_special_tokens=False)[0]
    shown = rules(stops, shows_stop=True)
    assert run([ids], "stop", shown) == ("Hello there.", "stop", len(ids))
    assert run([[*ids, EOS]], "stop", shown) == ("Hello there.", "stop", len(ids) + 1), "a special token has no text"
    with_special = rules(stops, shows_stop=True, shows_special=True)
    assert run([[*ids, EOS]], "stop", with_special) == (f"Hello there.{EOS_TEXT}", "stop", len(ids) + 1)


def test_special_tokens_are_shown_to_who_asks_for_them():
    ids = TOKENIZER.encode([f"a{EOS_TEXT}b"], add_special_tokens=False)[0]
    assert EOS in ids
    assert run([ids], "length", rules([]))[0] == "ab"
    assert run([ids], "length", rules([], shows_special=True))[0] == f"a{EOS_TEXT}b"
    assert run([ids], "length", rules([EOS_TEXT], shows_special=True)) == ("a", "stop", 2)
    assert run([[*ids, EOS]], "stop", rules([], shows_special=True))[0] == f"a{EOS_TEXT}b", "but the one that stopped"


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(("min_tokens", "num_words"), [(0, 1), (1, 1), (2, 4), (4, 4), (5, 6), (6, 6)])
def test_a_stop_string_counts_after_so_many_tokens(size: int, min_tokens: int, num_words: int):
    words = [TOKENIZER.encode([word], add_special_tokens=False)[0] for word in (" one", " two", " two", " one")]
    one, two, *_ = (word[0] for word in words)
    assert all(len(word) == 1 for word in words)
    tokens = [one, two, one, one, two, one]
    groups = [tokens[i : i + size] for i in range(0, len(tokens), size)]
    text, reason, num_tokens = run(groups, "length", rules([" two"], min_tokens=min_tokens))
    texts = [" one", " two", " one", " one", " two", " one"]
    assert text == "".join(texts[:num_words])
    assert (reason, num_tokens) == (("stop", num_words + 1) if num_words < 6 else ("length", 6))


def test_tokens_after_a_stop_string_do_not_count():
    ids = TOKENIZER.encode(["one two three four"], add_special_tokens=False)[0]
    shown, reason, num_tokens = run([ids], "length", rules([" three"]))
    assert (shown, reason) == ("one two", "stop")
    assert num_tokens < len(ids)


def test_what_was_held_back_appears_at_the_end():
    ids = TOKENIZER.encode(["one tw"], add_special_tokens=False)[0]
    assert run([[token] for token in ids], "length", rules(["two"])) == ("one tw", "length", len(ids))


@given(GROUPS, RULES)
def test_the_text_so_far_depends_on_the_tokens_so_far_alone(groups: list[list[int]], of: TextRules):
    grouped, single = SequenceText(of), SequenceText(of)
    grouped_text = single_text = ""
    for group in groups:
        grouped_text += grouped.feed(group, None)[0]
        for token in group:
            if not single.has_ended:
                single_text += single.feed([token], None)[0]
        assert (grouped_text, grouped.num_tokens, grouped.has_ended) == (
            single_text,
            single.num_tokens,
            single.has_ended,
        )
        if grouped.has_ended:
            break


@given(GROUPS, st.lists(st.integers(1, 4), min_size=1, max_size=40), REASONS, RULES)
def test_going_on_after_any_token(groups: list[list[int]], sizes: list[int], reason: str, of: TextRules):
    """A second reader that has the text of the first k tokens gets the rest, however the tokens come to it."""
    tokens = [*(token for group in groups for token in group), *([7] if reason == "stop" else [])]
    whole, ended, num_tokens = run([tokens], reason, of)
    first, shown = SequenceText(of), ""
    for group in groups:
        shown += first.feed(group, None)[0]
        if first.has_ended:
            break
        second = SequenceText(of, first.num_tokens)
        rest, second_ended, start = "", None, 0
        for size in [*sizes, len(tokens)]:
            end = start + size >= len(tokens)
            text, second_ended = second.feed(tokens[start : start + size], reason if end else None)
            rest, start = rest + text, start + size
            if end or second.has_ended:
                break
        assert (shown + rest, second_ended, second.num_tokens) == (whole, ended, num_tokens)


@given(GROUPS, REASONS)
def test_a_reader_that_has_more_than_there_is(groups: list[list[int]], reason: str):
    """After a crash tokens may be computed again that the client has: nothing is said until there are new ones."""
    tokens = [*(token for group in groups for token in group), 7]
    ahead = SequenceText(rules([]), len(tokens) + 3)
    assert ahead.feed(tokens, None) == ("", None)
    text, ended = ahead.feed([300, 300, 300, 300], reason)
    assert ended == reason
    assert text.endswith(TOKENIZER.token_bytes[300].decode()) == (reason == "length")
