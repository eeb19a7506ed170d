"""Text, reason and token count of a sequence are the same however its tokens were grouped."""

from hypothesis import given
from hypothesis import strategies as st

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.sequence_text import SequenceText
from scheduler_svc.frontend.tokenizer import Tokenizer

TOKENIZER = Tokenizer(DEMO_MODEL_DIR)


def run(groups: list[list[int]], reason: str, stops: list[str]) -> tuple[str, str | None, int]:
    sequence = SequenceText(TOKENIZER.token_bytes, stops)
    shown, ended = "", None
    for number, group in enumerate(groups, start=1):
        text, ended = sequence.feed(group, reason if number == len(groups) else None)
        shown += text
        if sequence.has_ended:
            break
    return shown, ended, sequence.num_tokens


@given(
    st.lists(st.lists(st.integers(0, 2050), max_size=5), min_size=1, max_size=8),
    st.sampled_from(["stop", "length"]),
    st.lists(st.text("aeiou \ufffd", min_size=1, max_size=2), max_size=3),
)
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
