"""Text in pieces equals text at once, and no piece ends in half a character."""

from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from common.errors import CheckpointError
from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.text.detokenizer import Detokenizer, token_byte_table
from tests.support.demo_tokenizer import TOKENIZER

REFERENCE = tokenizers.Tokenizer.from_file(str(DEMO_MODEL_DIR / "tokenizer.json"))
BYTE_TOKENS = {data[0]: token_id for token_id, data in TOKENIZER.token_bytes.items() if len(data) == 1}
BYTE_LEVEL = {"type": "ByteLevel"}


def pieces_of(groups: list[list[int]]) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER.token_bytes)
    return [*map(detokenizer.feed, groups), detokenizer.flush()]


def cut(ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = [0, *sorted(min(c, len(ids)) for c in cuts), len(ids)]
    return [ids[a:b] for a, b in pairwise(bounds)]


def test_every_byte_has_a_token():
    assert sorted(BYTE_TOKENS) == list(range(256))


@given(st.text(), st.lists(st.integers(0, 60), max_size=8))
def test_text_comes_back(text: str, cuts: list[int]):
    ids = TOKENIZER.encode([text], add_special_tokens=False)[0]
    special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    assert "".join(pieces_of(cut(ids, cuts))) == text or any(token in text for token in special)


@given(st.text(min_size=1), st.lists(st.integers(0, 200), max_size=20))
def test_no_piece_ends_in_half_a_character(text: str, cuts: list[int]):
    ids = [BYTE_TOKENS[byte] for byte in text.encode()]
    pieces = pieces_of(cut(ids, cuts))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(st.binary(), st.lists(st.integers(0, 60), max_size=8))
def test_bytes_that_are_no_utf8(data: bytes, cuts: list[int]):
    ids = [BYTE_TOKENS[byte] for byte in data]
    assert "".join(pieces_of(cut(ids, cuts))) == REFERENCE.decode(ids) == data.decode(errors="replace")


@given(st.lists(st.integers(0, 2100)), st.lists(st.integers(0, 60), max_size=8))
def test_any_token_ids(ids: list[int], cuts: list[int]):
    """Among them special ones and some beyond the vocabulary."""
    assert "".join(pieces_of(cut(ids, cuts))) == REFERENCE.decode(ids, skip_special_tokens=True)


def test_an_unfinished_character_is_flushed_once():
    euro = [BYTE_TOKENS[byte] for byte in "€".encode()]
    detokenizer = Detokenizer(TOKENIZER.token_bytes)
    assert detokenizer.feed(euro[:2]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_ids_from_nowhere_are_no_text():
    assert Detokenizer(TOKENIZER.token_bytes).feed([-1, 2**31 - 1]) == ""


def test_added_tokens_are_plain_text():
    table = token_byte_table({"<|a b|>": 0, "Ġx": 1, "<|end|>": 2}, [2], BYTE_LEVEL)
    assert table == {0: b"<|a b|>", 1: b" x"}


def test_another_decoder_is_refused():
    assert token_byte_table({"x": 0}, [], {"type": "Sequence", "decoders": [BYTE_LEVEL]}) == {0: b"x"}
    with pytest.raises(CheckpointError, match="byte-level BPE"):
        token_byte_table({"x": 0}, [], {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]})
