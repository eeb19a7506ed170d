"""Text, reason and token count of a sequence are the same however its tokens were grouped, and at any moment."""

from hypothesis import given, settings
from hypothesis import strategies as st

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.text.sequence_text import SequenceText
from scheduler_svc.frontend.text.stop_strings import StopStrings
from scheduler_svc.frontend.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(DEMO_MODEL_DIR)


def prepared(stops: list[str]) -> StopStrings | None:
    return StopStrings(stops) if stops else None


def run(groups: list[list[int]], reason: str, stops: list[str]) -> tuple[str, str | None, int]:
    sequence = SequenceText(TOKENIZER.token_bytes, prepared(stops))
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
REASONS = st.sampled_from(["stop", "length"])


@settings(deadline=None)
@given(GROUPS, REASONS, STOPS)
def test_grouping_makes_no_difference(groups: list[list[int]], reason: str, stops: list[str]):
    tokens = [token for group in groups for token in group]
    if reason == "stop":  # the stop token comes with the word that it stopped
        groups, tokens = [*groups, [7]], [*tokens, 7]
    assert (
        run(groups, reason, stops) == run([tokens], reason, stops) == run([[t] for t in tokens] or [[]], reason, stops)
    )


def test_the_stop_token_counts_and_does_not_show():
    ids = TOKENIZER.encode(["Hello there"], add_special_tokens=False)[0]
    full_stop = TOKENIZER.encode(["."], add_special_tokens=False)[0]
    assert run([[*ids, *full_stop]], "stop", []) == ("Hello there", "stop", len(ids) + 1)
    assert run([[*ids, *full_stop]], "length", []) == ("Hello there.", "length", len(ids) + 1)
    assert run([[*ids, *full_stop]], "stop", ["zzz"]) == ("Hello there", "stop", len(ids) + 1)


def test_tokens_after_a_stop_string_do_not_count():
    ids = TOKENIZER.encode(["one two three four"], add_special_tokens=False)[0]
    shown, reason, num_tokens = run([ids], "length", [" three"])
    assert (shown, reason) == ("one two", "stop")
    assert num_tokens < len(ids)


def test_what_was_held_back_appears_at_the_end():
    ids = TOKENIZER.encode(["one tw"], add_special_tokens=False)[0]
    assert run([[token] for token in ids], "length", ["two"]) == ("one tw", "length", len(ids))


@settings(deadline=None)
@given(GROUPS, STOPS)
def test_the_text_so_far_depends_on_the_tokens_so_far_alone(groups: list[list[int]], stops: list[str]):
    grouped, single = (SequenceText(TOKENIZER.token_bytes, prepared(stops)) for _ in range(2))
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


@settings(deadline=None)
@given(GROUPS, st.lists(st.integers(1, 4), min_size=1, max_size=40), REASONS, STOPS)
def test_going_on_after_any_token(groups: list[list[int]], sizes: list[int], reason: str, stops: list[str]):
    """A second reader that has the text of the first k tokens gets the rest, however the tokens come to it."""
    tokens = [*(token for group in groups for token in group), *([7] if reason == "stop" else [])]
    whole, ended, num_tokens = run([tokens], reason, stops)
    first, shown = SequenceText(TOKENIZER.token_bytes, prepared(stops)), ""
    for group in groups:
        shown += first.feed(group, None)[0]
        if first.has_ended:
            break
        second = SequenceText(TOKENIZER.token_bytes, prepared(stops), first.num_tokens)
        rest, second_ended, start = "", None, 0
        for size in [*sizes, len(tokens)]:
            end = start + size >= len(tokens)
            text, second_ended = second.feed(tokens[start : start + size], reason if end else None)
            rest, start = rest + text, start + size
            if end or second.has_ended:
                break
        assert (shown + rest, second_ended, second.num_tokens) == (whole, ended, num_tokens)


@settings(deadline=None)
@given(GROUPS, REASONS)
def test_a_reader_that_has_more_than_there_is(groups: list[list[int]], reason: str):
    """After a crash tokens may be computed again that the client has: nothing is said until there are new ones."""
    tokens = [*(token for group in groups for token in group), 7]
    ahead = SequenceText(TOKENIZER.token_bytes, None, len(tokens) + 3)
    assert ahead.feed(tokens, None) == ("", None)
    text, ended = ahead.feed([300, 300, 300, 300], reason)
    assert ended == reason
    assert text.endswith(TOKENIZER.token_bytes[300].decode()) == (reason == "length")
