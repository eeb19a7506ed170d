"""What is made of a GGUF file's tokenizer gives the ids that llama.cpp and transformers give, or is refused by name."""

import contextlib
import unicodedata
from functools import cache
from itertools import pairwise

import msgspec
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import CheckpointError
from common.gguf_tokenizer import MAX_CUTS, MAX_PIECE_CHARS, tokenizer_config, tokenizer_json
from common.tokenizer_file import MAX_VOCAB_SIZE, SPACE
from tests.support import llama_cpp
from tests.support.effort import examples

NAMES = ["llama-bpe", "llama-spm", "phi-3", "qwen2", "qwen35", "starcoder", "refact"]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def with_values(values: dict, *, model: str = "gpt2", pre: str | None = "qwen2") -> dict:
    said = {"model": model, **({} if pre is None else {"pre": pre}), **values}
    return {name if "." in name else f"tokenizer.ggml.{name}": value for name, value in said.items()}


TOKENS = ["a", "b", "ab", "<end>", "<tag>", "[PAD5]", "<bos>"]
KINDS = [NORMAL, NORMAL, NORMAL, CONTROL, USER_DEFINED, USER_DEFINED, CONTROL]
BYTE_LEVEL = with_values({"tokens": TOKENS, "token_type": KINDS, "merges": ["a b"], "eos_token_id": 3})
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["<unk>", "<s>", "</s>", *BYTES, SPACE, "a", "b", "ab", f"{SPACE}a"]
SENTENCE_PIECE = with_values(
    {
        "tokens": PIECES,
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 5],
        "scores": [0.0] * 259 + [-3.0, -4.0, -5.0, -2.0, -1.0],
    },
    model="llama",
    pre=None,
)


def library(metadata: dict, **changes: object) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(msgspec.json.encode(tokenizer_json(metadata) | changes).decode())


@cache
def of_llama_cpp(name: str) -> tokenizers.Tokenizer:
    return library(llama_cpp.vocabulary(name))


def ids_of(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", NAMES)
def test_the_ids_are_those_of_llama_cpp(name: str):
    """It does not compose characters, as Qwen's own tokenizers do (NFC): that is the next test's."""
    cases = llama_cpp.encoded_texts(name)
    assert len(cases) > 40
    composes = name.startswith("qwen")
    tokenizer = library(llama_cpp.vocabulary(name), normalizer=None) if composes else of_llama_cpp(name)
    for text, ids in cases:
        assert ids_of(tokenizer, text) == ids
        composed = unicodedata.normalize("NFC", text) if composes else text
        assert ids_of(of_llama_cpp(name), text) == ids_of(tokenizer, composed)


@pytest.mark.parametrize("name", ["qwen2", "qwen35"])
def test_qwens_ids_are_those_of_transformers(name: str):
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    model = tokenizer_json(llama_cpp.vocabulary(name))["model"]
    merges = [tuple(merge.split(" ")) for merge in model["merges"]]
    reference = (Qwen2Tokenizer if name == "qwen2" else Qwen3_5Tokenizer)(model["vocab"], merges)
    for text, _ in llama_cpp.encoded_texts(name):
        for form in (text, unicodedata.normalize("NFD", text)):
            assert ids_of(of_llama_cpp(name), form) == reference.encode(form, add_special_tokens=False)


def by_score(text: str, scores: dict[str, float]) -> list[str]:
    """Merge neighbours as SentencePiece does: those with the best score first, of equal ones those on the left."""
    pieces = list(text)
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not pairs:
            return pieces
        i = -max(pairs)[1]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@settings(max_examples=examples(1000, quick=100))
@given(text=st.text(alphabet="  the\n,.ioans-1=é你🙂▁", max_size=40) | st.text(max_size=20))
def test_pieces_are_merged_by_their_scores(text: str):
    metadata = llama_cpp.vocabulary("llama-spm")
    lists = [metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type")]
    scores = {piece: score for piece, score, kind in zip(*lists, strict=True) if kind == NORMAL}
    expected = []
    for piece in by_score(SPACE + text.replace(" ", SPACE), scores) if text else []:
        expected += [piece] if piece in scores else [f"<0x{byte:02X}>" for byte in piece.encode()]
    assert of_llama_cpp("llama-spm").encode(text, add_special_tokens=False).tokens == expected


@pytest.mark.parametrize(
    ("name", "opening"),
    [("llama-bpe", [128000]), ("llama-spm", [1]), ("phi-3", [1]), ("qwen2", []), ("starcoder", [])],
)
def test_a_text_begins_with_bos_where_the_rule_says_so(name: str, opening: list[int]):
    tokenizer, rest = of_llama_cpp(name), ids_of(of_llama_cpp(name), "Hello")
    assert tokenizer.encode("Hello").ids == opening + rest
    assert tokenizer.encode("Hello", "Hello").ids == 2 * (opening + rest)


def test_the_file_says_what_texts_begin_and_end_with():
    said = {
        "tokenizer.ggml.bos_token_id": 6,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }
    assert library(BYTE_LEVEL | said).encode("ab").tokens == ["<bos>", "ab", "<end>"]
    assert library(SENTENCE_PIECE).encode("a").tokens == ["<s>", "▁a"]
    off = {"tokenizer.ggml.add_bos_token": False}
    assert library(SENTENCE_PIECE | off).encode("a").tokens == ["▁a"]
    config = tokenizer_config(SENTENCE_PIECE | off | {"tokenizer.chat_template": "{{ x }}"})
    assert config == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": False,
        "add_eos_token": False,
        "chat_template": "{{ x }}",
    }


def test_a_space_before_the_text_unless_the_file_says_otherwise():
    assert library(SENTENCE_PIECE).encode("ab a", add_special_tokens=False).tokens == ["▁a", "b", "▁a"]
    assert library(SENTENCE_PIECE).encode("a<s>a", add_special_tokens=False).tokens == ["▁a", "<s>", "▁a"]
    without = library(SENTENCE_PIECE | {"tokenizer.ggml.add_space_prefix": False})
    assert without.encode("ab a", add_special_tokens=False).tokens == ["ab", "▁a"]
    assert without.decode(without.encode(" ab").ids) == " ab"
    assert library(SENTENCE_PIECE).decode(library(SENTENCE_PIECE).encode(" ab€").ids) == " ab€"


def test_kinds_of_tokens():
    tokenizer = library(BYTE_LEVEL)
    assert tokenizer.encode("ab<end>ab<tag>ab[PAD5]").tokens == ["ab", "<end>", "ab", "<tag>", "ab"]
    assert {i: token.special for i, token in tokenizer.get_added_tokens_decoder().items()} == {
        3: True,
        4: False,
        6: True,
    }
    assert tokenizer.id_to_token(5) is None, "it only fills the vocabulary up"
    unused = BYTE_LEVEL | {"tokenizer.ggml.token_type": [*KINDS[:4], UNUSED, *KINDS[5:]]}
    assert library(unused).id_to_token(4) is None
    assert library(unused).token_to_id("<bos>") == 6


KEY = "tokenizer.ggml."
# As long in all as the limit, and by one character longer.
LONG = [f"{number:0{MAX_PIECE_CHARS}}" for number in range(MAX_CUTS // MAX_PIECE_CHARS)]
MANY_PIECES = {
    "tokens": ["<unk>", *LONG, "x"],
    "token_type": [UNKNOWN, *[NORMAL] * (len(LONG) + 1)],
    "scores": [0.0] * (len(LONG) + 2),
}


@pytest.mark.parametrize(
    ("metadata", "change", "fault"),
    [
        (BYTE_LEVEL, {"model": "bert"}, "model is 'bert', and supported are 'gpt2' and 'llama'"),
        (BYTE_LEVEL, {"model": None}, "model is None"),
        (BYTE_LEVEL, {"pre": None}, "pre is missing, so it is not known how texts are split"),
        (BYTE_LEVEL, {"pre": "default"}, "pre is 'default', so it is not known how texts are split"),
        (BYTE_LEVEL, {"pre": "tekken"}, "pre is 'tekken', and supported are llama-bpe, qwen2"),
        (BYTE_LEVEL, {"pre": ["qwen2"]}, r"pre is \['qwen2'\]"),
        (SENTENCE_PIECE, {"pre": "qwen2"}, "pre is 'qwen2', and a model of the kind 'llama' has 'default'"),
        (BYTE_LEVEL, {"tokens": None}, "tokens is missing"),
        (BYTE_LEVEL, {"tokens": []}, f"has 0 tokens, allowed are 1 to {MAX_VOCAB_SIZE}"),
        (BYTE_LEVEL, {"tokens": ["x"] * (MAX_VOCAB_SIZE + 1)}, f"has {MAX_VOCAB_SIZE + 1} tokens"),
        (BYTE_LEVEL, {"tokens": ["a", *TOKENS[1:-1], "a"]}, "has 'a' twice, as 0 and as 6"),
        (BYTE_LEVEL, {"tokens": list(range(7))}, "tokens is no list of str"),
        (BYTE_LEVEL, {"token_type": None}, "token_type is missing"),
        (BYTE_LEVEL, {"token_type": KINDS[:-1]}, "token_type has 6 values for 7 tokens"),
        (BYTE_LEVEL, {"token_type": [*KINDS[:-1], 7]}, "token_type has 7, allowed are 1 to 6"),
        (BYTE_LEVEL, {"merges": None}, "merges is missing"),
        (BYTE_LEVEL, {"merges": "a b"}, "merges is no list of str"),
        (BYTE_LEVEL, {"eos_token_id": 7, "add_eos_token": True}, "eos_token_id is 7, allowed are 0 to 6"),
        (BYTE_LEVEL, {"add_bos_token": True}, "bos_token_id is missing, and is to be added"),
        (BYTE_LEVEL, {"add_bos_token": "no"}, "add_bos_token is 'no', and not true or false"),
        (SENTENCE_PIECE, {"unknown_token_id": -1}, "unknown_token_id is -1"),
        (SENTENCE_PIECE, {"add_space_prefix": 1}, "add_space_prefix is 1"),
        (SENTENCE_PIECE, {"scores": None}, "scores is missing"),
        (SENTENCE_PIECE, {"scores": [0.0]}, "scores has 1 values for 264 tokens"),
        (SENTENCE_PIECE, {"scores": [float("nan")] * 264}, "scores has a NaN"),
        (SENTENCE_PIECE, {"tokens": [*PIECES[:-1], "x" * 129]}, "a piece of 129 characters, .* the limits are 128 and"),
        (SENTENCE_PIECE, MANY_PIECES, f"and {MAX_CUTS + 1} in all; the limits are 128 and {MAX_CUTS}"),
    ],
)
def test_what_is_not_supported_is_named(metadata: dict, change: dict, fault: str):
    with pytest.raises(CheckpointError, match=rf"^tokenizer\.ggml\..*{fault}"):
        tokenizer_json(metadata | {KEY + name: value for name, value in change.items()})


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("default")
KEYS = sorted({*BYTE_LEVEL, *SENTENCE_PIECE} | {f"{KEY}{name}_token_id" for name in ("bos", "padding", "unknown")})


@settings(max_examples=examples(2000, quick=200))
@given(st.booleans(), st.dictionaries(st.sampled_from(KEYS), ANYTHING | st.lists(ANYTHING, max_size=8), max_size=4))
def test_whatever_a_file_says_is_read_or_refused(has_pieces: bool, said: dict):
    metadata = (SENTENCE_PIECE if has_pieces else BYTE_LEVEL) | said
    for make in (tokenizer_json, tokenizer_config):
        with contextlib.suppress(CheckpointError):
            msgspec.json.encode(make(metadata))


def test_a_special_token_is_one_of_the_tokens():
    with pytest.raises(CheckpointError, match="eos_token_id is 9, allowed are 0 to 6"):
        tokenizer_config(BYTE_LEVEL | {"tokenizer.ggml.eos_token_id": 9})
