"""Two tokenizer.json files mean the same ids exactly if their hashes are equal."""

import json
import shutil

import pytest

from common.errors import CheckpointError
from common.model_files import DEMO_MODEL_DIR
from common.vocabulary import read_vocabulary, tokenizer_hash

SMALL = {
    "model": {"vocab": {"a": 0, "b": 1, "c": 2, "a b": 3, "b c": 4, "a b c": 5}, "merges": [["a", "b c"]]},
    "added_tokens": [{"id": 6, "content": "<end>", "special": True}],
}


@pytest.fixture
def folder(tmp_path):
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(DEMO_MODEL_DIR / name, tmp_path)
    return tmp_path


def change(folder, edit):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=True))


def swap_two_tokens(content):
    vocab = content["model"]["vocab"]
    vocab["the"], vocab["to"] = vocab["to"], vocab["the"]


def swap_two_merges(content):
    merges = content["model"]["merges"]
    merges[3], merges[4] = merges[4], merges[3]


@pytest.mark.parametrize(
    "edit",
    [
        swap_two_tokens,
        swap_two_merges,
        lambda content: content["added_tokens"].pop(),
        lambda content: content["added_tokens"][0].update(content="<|end|>"),
        lambda content: content["added_tokens"][0].update(special=False),
    ],
)
def test_another_meaning_gives_another_hash(folder, edit):
    change(folder, edit)
    assert tokenizer_hash(folder) != tokenizer_hash(DEMO_MODEL_DIR)


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: None,
        lambda content: content["model"].update(merges=[" ".join(pair) for pair in content["model"]["merges"]]),
        lambda content: content["model"].update(vocab=dict(reversed(content["model"]["vocab"].items()))),
        lambda content: content.update(truncation={"max_length": 5}, added_tokens=content["added_tokens"][::-1]),
    ],
)
def test_another_way_to_write_it_gives_the_same(folder, edit):
    change(folder, edit)
    assert tokenizer_hash(folder) == tokenizer_hash(DEMO_MODEL_DIR) != ""


def test_merges_that_read_the_same_are_not_the_same(folder):
    """Earlier releases hashed them as text, and hashed the text so that others could find another one."""
    (folder / "tokenizer.json").write_text(json.dumps(SMALL))
    before = read_vocabulary(folder)
    change(folder, lambda content: content["model"].update(merges=[["a b", "c"]]))
    after = read_vocabulary(folder)
    assert after.tokenizer != before.tokenizer
    assert after.former_tokenizer == before.former_tokenizer


@pytest.mark.parametrize("merges", [[["a", "b c"], ["a", "b"]], ["a b c", "a b"]])
def test_the_hash_of_earlier_releases(folder, merges):
    """In their journals it stays what they wrote."""
    content = {"model": {"vocab": SMALL["model"]["vocab"], "merges": merges}, "added_tokens": SMALL["added_tokens"]}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert read_vocabulary(folder).former_tokenizer == "77c7b07b84ede5d24e498f27bc3f408c"


def test_a_model_without_a_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    assert read_vocabulary(folder).tokenizer == read_vocabulary(folder).former_tokenizer == ""
    assert read_vocabulary(folder).size == read_vocabulary(DEMO_MODEL_DIR).size


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": 1}', '{"model": {"vocab": {}, "merges": [1]}}'])
def test_a_tokenizer_that_cannot_be_read_is_said(folder, content):
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        tokenizer_hash(folder)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "cannot be read"),
        ("[]", "is no JSON object"),
        ("{}", "has no vocab_size"),
        ('{"vocab_size": "many"}', "has vocab_size 'many', allowed are 1 to 1048576"),
        ('{"vocab_size": 0}', "has vocab_size 0, allowed are 1 to 1048576"),
        ('{"vocab_size": true}', "has vocab_size True, allowed are 1 to 1048576"),
        ('{"vocab_size": 2147483647}', "has vocab_size 2147483647, allowed are 1 to 1048576"),
    ],
)
def test_a_config_that_does_not_tell_is_said(folder, content, fault):
    (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=rf"config\.json {fault}"):
        read_vocabulary(folder)
