"""SentencePiece's vocabularies, from tokenizer.json as models publish them: text survives token by token, and what is
shown, what a grammar reads and what log-probabilities name are the same bytes."""

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from common.errors import CheckpointError
from common.gguf_tokenizer import tokenizer_json
from common.grammars import read_grammar_tokenizer
from common.tokenizer_file import SPACE
from scheduler_svc.frontend.answers.prompt_part import prompts_of
from scheduler_svc.frontend.grammars.checker import check
from scheduler_svc.frontend.grammars.checker_process import CheckerProcess
from scheduler_svc.frontend.grammars.spec import GrammarSpec
from scheduler_svc.frontend.requests.tokenization import DetokenizeRequest, detokenize
from scheduler_svc.frontend.text.detokenizer import Detokenizer, token_byte_table
from scheduler_svc.frontend.text.sequence_text import SequenceText, TextRules
from scheduler_svc.frontend.text.stop_strings import StopStrings
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests.frontend.answers import contexts
from tests.support import llama_cpp
from tests.support.effort import examples

VOCAB = 32064  # of a model, whose tokenizer has fewer
UNESCAPE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
STEPS = [UNESCAPE, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def metaspace(scheme: str) -> dict:
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}


def steps(*said: dict) -> dict:
    return {"type": "Sequence", "decoders": [*said]}


# What models' files differ in, beside their tokens.
FORMS: dict[str, dict[str, Any]] = {
    "llama 2": {},
    "mistral 0.3": {"normalizer": None, "pre_tokenizer": metaspace("first"), "decoder": steps(*STEPS, STRIP)},
    "no prefix": {"normalizer": None, "pre_tokenizer": metaspace("never"), "decoder": steps(*STEPS)},
    "metaspace": {
        "normalizer": None,
        "pre_tokenizer": metaspace("always"),
        "decoder": metaspace("always"),
    },
    "phi-3": {},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, changes in FORMS.items():
        content = tokenizer_json(llama_cpp.vocabulary("phi-3" if name == "phi-3" else "llama-spm")) | changes
        made[name] = tmp_path_factory.mktemp("model")
        (made[name] / "tokenizer.json").write_bytes(msgspec.json.encode(content))
        (made[name] / "config.json").write_text(
            json.dumps({"vocab_size": VOCAB, "eos_token_id": 32000 if name == "phi-3" else 2})
        )
    return made


@cache
def of_folder(folder: Path) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    return Tokenizer(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(params=FORMS)
def model(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture
def llama(folders: dict[str, Path]) -> Tokenizer:
    return of_folder(folders["llama 2"])[0]


def fed(detokenizer: Detokenizer, ids: list[int]) -> str:
    return "".join([*(detokenizer.feed((token,)) for token in ids), detokenizer.flush()])


TEXTS = st.text(alphabet='  the\n\t,.io{}"-1é你🙂▁', max_size=40) | st.text(max_size=30) | st.just(" <s>a</s> <|end|>x")


@settings(max_examples=examples(300, quick=60))
@given(text=TEXTS)
def test_text_comes_back_token_by_token(folders: dict[str, Path], text: str):
    for name, folder in folders.items():
        tokenizer, library = of_folder(folder)
        [ids] = tokenizer.encode([text], add_special_tokens=False)
        assert ids == library.encode(text, add_special_tokens=False).ids
        whole = fed(tokenizer.whole_text(), ids)
        begins_with_space = text[:1] in (" ", SPACE)
        # By Metaspace alone the library drops all spaces that the first token has, and shows the names of bytes.
        if name != "metaspace" or not (begins_with_space or any(token < 259 for token in ids)):
            assert whole == library.decode(ids, skip_special_tokens=False)
        has_special = any(token in text for token in tokenizer.special_tokens)
        if not has_special and not (name in ("metaspace", "mistral 0.3") and begins_with_space):  # where none is added
            assert whole == text.replace(SPACE, " ")


@settings(max_examples=examples(300, quick=60))
@given(text=TEXTS, cut=st.integers(0, 40))
def test_an_answer_goes_on_with_its_prompt(folders: dict[str, Path], text: str, cut: int):
    """The first token of an answer keeps its space."""
    tokenizer, library = of_folder(folders["llama 2"])
    [ids] = tokenizer.encode([text], add_special_tokens=False)
    cut = min(cut, len(ids) - 1)
    while cut > 0 and ids[cut] < 259:  # not between the bytes of a character
        cut -= 1
    if cut > 0:
        prompt = fed(tokenizer.whole_text(), ids[:cut])
        assert prompt + fed(Detokenizer(tokenizer.all_token_bytes), ids[cut:]) == library.decode(ids, False)


def test_log_probabilities_name_bytes(llama: Tokenizer):
    [hello, newline, *rest] = llama.encode(["Hello\n🦙"], add_special_tokens=False)[0]
    assert llama.token_texts.of(hello) == (" Hello", list(b" Hello"))
    assert llama.token_texts.of(newline) == ("\n", [10])
    assert [llama.token_texts.of(token) for token in rest] == [("\ufffd", [byte]) for byte in "🦙".encode()]
    assert llama.token_texts.of(1) == ("<s>", list(b"<s>"))
    assert llama.token_texts.of(VOCAB - 1) == ("", None)


@pytest.mark.parametrize(
    ("stop", "shown"),
    [
        ("🦙", "Hello,\n world "),
        (",\n", "Hello"),
        (" world", "Hello,\n"),
        ("o, ", "Hello,\n world 🦙!"),
        ("!", "Hello,\n world 🦙"),
    ],
)
def test_stop_strings_are_found_in_pieces_and_bytes(llama: Tokenizer, stop: str, shown: str):
    [ids] = llama.encode(["<s>Hello,\n world 🦙!"], add_special_tokens=False)
    text = SequenceText(TextRules(llama.token_bytes, StopStrings([stop])))
    pieces = [text.feed([token], None)[0] for token in ids if not text.has_ended]
    if not text.has_ended:
        pieces.append(text.feed([], "length")[0])
    assert "".join(pieces) == f" {shown}"
    assert text.stop_string == (stop if stop != "o, " else "")


@settings(max_examples=examples(200, quick=50))
@given(text=TEXTS | st.integers(1, 200).map(lambda n: " " * n) | st.integers(1, 100).map(lambda n: "=" * n))
def test_no_text_has_fewer_tokens_than_its_length_proves(folders: dict[str, Path], text: str):
    for name in ("llama 2", "mistral 0.3", "phi-3"):
        tokenizer, _ = of_folder(folders[name])
        assert tokenizer.characters_per_token == max(
            map(len, [*tokenizer.token_bytes.values(), *tokenizer.special_tokens])
        )
        assert len(text) <= tokenizer.characters_per_token * len(tokenizer.encode([text], add_special_tokens=False)[0])


def test_without_a_token_for_each_byte_a_length_proves_nothing(folders: dict[str, Path], tmp_path: Path):
    content = json.loads((folders["llama 2"] / "tokenizer.json").read_bytes())
    del content["model"]["vocab"]["<0x7F>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer(tmp_path).characters_per_token is None


# --- grammars ---

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "n": {"type": "integer"}, "of": {"type": "array", "items": {}}},
    "required": ["name", "n"],
}
DOCUMENTS = [
    '{"name": "Ann", "n": 12}',
    '{"name":"🦙\\n \\"x\\" naïve 你好", "n": -7, "of": [true, null, " a", {"b": 1}]}',
    '{\n  "name": "  two spaces  ",\n  "n": 0\n}',
]


@cache
def of_library(folder: Path) -> tuple[LLTokenizer, LLTokenizer]:
    """The frontend's and the executor's."""
    ends = of_folder(folder)[0].eos_token_ids
    pair = read_grammar_tokenizer(folder, eos_token_ids=ends), read_grammar_tokenizer(folder, VOCAB)
    assert pair[0] is not None
    assert pair[1] is not None
    return pair  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["llama 2", "metaspace", "phi-3"])
def test_a_grammar_reads_the_bytes_that_are_shown(folders: dict[str, Path], name: str):
    tokenizer, _ = of_folder(folders[name])
    for library in of_library(folders[name]):
        for token, data in tokenizer.token_bytes.items():
            if not library.is_special_token(token):
                assert library.decode_bytes([token]) == data
        assert all(map(library.is_special_token, tokenizer.special_tokens.values()))


def test_a_grammar_reads_the_same_where_metaspace_ends_a_sequence(folders: dict[str, Path], tmp_path: Path):
    content = json.loads((folders["metaspace"] / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"decoder": steps(content["decoder"])}))
    library, (_, plain) = read_grammar_tokenizer(tmp_path, VOCAB), of_library(folders["metaspace"])
    assert library is not None
    assert [library.decode_bytes([token]) for token in range(1000)] == [plain.decode_bytes([t]) for t in range(1000)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_both_sides_allow_what_matches_a_schema(model: Path, document: str):
    tokenizer, _ = of_folder(model)
    frontends, executors = of_library(model)
    checked = check(GrammarSpec("json", json.dumps(SCHEMA)), frontends)
    assert not checked.reason
    ids = frontends.tokenize_str(document)
    assert fed(Detokenizer(tokenizer.token_bytes), ids) == document
    assert len(ids) < len(document), "whole pieces, where there are some"
    both = [(LLMatcher(library, checked.grammar), library.vocab_size) for library in (frontends, executors)]
    for token in [*ids, *tokenizer.eos_token_ids]:
        allowed = []
        for matcher, num_tokens in both:
            mask = allocate_token_bitmask(1, num_tokens)
            fill_next_token_bitmask(matcher, mask)
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:num_tokens]
            allowed.append(np.flatnonzero(bits).tolist())
            assert token in allowed[-1]
            assert matcher.consume_token(token)
        assert allowed[0] == allowed[1]
    assert all(matcher.is_stopped() for matcher, _ in both)


def test_a_space_before_a_document_is_not_allowed_unseen(llama: Tokenizer):
    """What is shown is what the grammar has read: a piece with a space is no brace."""
    frontends, _ = of_library(llama.folder)
    checked = check(GrammarSpec("json", json.dumps(SCHEMA)), frontends)
    matcher = LLMatcher(frontends, checked.grammar)
    with_space, bare = (llama.encode([text], add_special_tokens=False)[0][-1] for text in ("{", "a{"))
    assert (llama.token_bytes[with_space], llama.token_bytes[bare]) == (b" {", b"{")
    assert not LLMatcher(frontends, checked.grammar).consume_token(with_space)
    assert matcher.consume_token(bare)


def test_the_checkers_process_reads_the_file(folders: dict[str, Path]):
    process = CheckerProcess(folders["metaspace"], (2,))
    try:
        checked = process.check(GrammarSpec("json", json.dumps(SCHEMA)))
    finally:
        process.close()
    assert not checked.reason
    assert checked.grammar


def test_what_the_library_cannot_use_is_the_files_fault(folders: dict[str, Path], tmp_path: Path):
    content = json.loads((folders["llama 2"] / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"decoder": {"type": "Fuse"}}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be used for grammars: .*decoder"):
        read_grammar_tokenizer(tmp_path, VOCAB)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be used for grammars: .*vocab"):
        read_grammar_tokenizer(folders["llama 2"], 100)
    content["model"]["vocab"]["<0x"] = 32000
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be used for grammars"):
        read_grammar_tokenizer(tmp_path, VOCAB)


# --- what is shown of prompts ---


def echoed(tokenizer: Tokenizer, ids: list[int]) -> str:
    context = contexts.context_of("completion", echo=True)
    [prompt] = asyncio.run(prompts_of(context, [np.array(ids, "<i4").tobytes()], tokenizer))
    return prompt.text


def test_an_echoed_prompt_may_be_sent_again(model: Path):
    """The BOS that was put before it does not show, or it would be there twice."""
    tokenizer, _ = of_folder(model)
    for text in ("Hello world", "Hello\n\n 你", "a<s>"):
        [ids] = tokenizer.encode([text], add_special_tokens=True)
        assert ids[0] == tokenizer.opening_id == 1
        assert echoed(tokenizer, ids) == text
        assert echoed(tokenizer, ids[1:]) == text


def test_what_is_detokenized_is_a_whole_text(llama: Tokenizer):
    [ids] = llama.encode([" Hello world"], add_special_tokens=True)
    assert detokenize(DetokenizeRequest(tokens=ids), llama).prompt == "<s>  Hello world"
    assert detokenize(DetokenizeRequest(tokens=ids[1:]), llama).prompt == " Hello world"


# --- what is refused ---


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Fuse"},
        steps(*STEPS[1:], STRIP),
        steps(*STEPS, STRIP | {"start": 2}),
        steps(UNESCAPE, STRIP, STEPS[2]),
        steps({**UNESCAPE, "content": "_"}, *STEPS[1:]),
        metaspace("first") | {"replacement": "_"},
        steps(),
    ],
)
def test_a_decoder_that_is_not_known_is_named(decoder: dict):
    with pytest.raises(CheckpointError, match=r"the tokenizer decodes by .*, and served are byte-level BPE"):
        token_byte_table({}, [], decoder)


def test_a_tokenizer_model_alone_is_refused_by_name(tmp_path: Path):
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(CheckpointError, match=r"has a tokenizer\.model and no tokenizer\.json, .*\.save_pretrained"):
        Tokenizer(tmp_path)
