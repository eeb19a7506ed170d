"""What somebody else has written into a model's folder is refused by name before it costs anything."""

import json
import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from common.errors import CheckpointError
from common.exit_codes import EXIT_USAGE, exit_code_of
from common.model_files import DEMO_MODEL_DIR
from common.model_reading import (
    MAX_CONFIG_BYTES,
    MAX_CONTAINERS,
    MAX_VALUES,
    check_regular,
    read_model_file,
    read_model_json,
)
from common.tokenizer_file import (
    MAX_GROWTH,
    MAX_STEPS,
    MAX_TOKEN_CHARS,
    MAX_VOCAB_SIZE,
    read_tokenizer_file,
    text_growth,
)
from common.vocabulary import read_vocabulary
from executor_svc.model.families import read_config
from scheduler_svc.frontend.text.tokenizer import Tokenizer

REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}


def test_a_file_that_is_not_there_is_none(tmp_path: Path):
    assert read_model_file(tmp_path / "x", 10) is None
    assert read_model_json(tmp_path / "x", dict) is None
    check_regular(tmp_path / "x")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str):
    path = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    for read in (lambda: read_model_json(path, dict), lambda: check_regular(path)):
        with pytest.raises(CheckpointError, match=rf"config\.json is no regular file, but a {kind}") as refused:
            read()
        assert exit_code_of(refused.value) == EXIT_USAGE


def test_a_link_to_a_file_is_as_good(tmp_path: Path):
    """As the hub's cache has them."""
    (tmp_path / "link").symlink_to(DEMO_MODEL_DIR / "config.json")
    assert read_model_json(tmp_path / "link", dict)
    check_regular(tmp_path / "link")


def test_a_file_has_a_size(tmp_path: Path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # a file of holes, on a small disk
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=f"has {2**40} bytes, the limit is {MAX_CONFIG_BYTES}"):
        read_model_json(path, dict)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MAX_CONFIG_BYTES


@pytest.mark.parametrize("kind", [dict, dict[str, object]])
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"[" * 200_000, "is nested too deeply|Expected `object`"),
        (b'{"a":' * 100_000, "is nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read"),
        (b'{"a": \xff}', "cannot be read"),
        (b"[]", "Expected `object`|is no JSON object"),
        (b'{"a"', "cannot be read"),
    ],
    ids=["lists", "objects", "digits", "bytes", "list", "cut"],
)
def test_json_that_cannot_be_is_refused(tmp_path: Path, kind: type, content: bytes, fault: str):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=fault) as refused:
        read_model_json(path, kind)
    assert str(path) in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("depth", [450, 600, 700, 900, 960])
def test_a_file_that_one_reader_takes_and_the_next_may_not_ends_in_no_traceback(tmp_path: Path, depth: int):
    """How deep Python may go differs from function to function, and from release to release."""
    shutil.copytree(DEMO_MODEL_DIR, tmp_path, dirs_exist_ok=True)
    for name in ("config.json", "generation_config.json"):
        deep = '{"deep": ' + '{"a":' * depth + "2.0" + "}" * depth
        (tmp_path / name).write_text(deep + "," + (DEMO_MODEL_DIR / name).read_text().lstrip().removeprefix("{"))
    faults = []
    for read in (read_vocabulary, read_config, Tokenizer):
        try:
            read(tmp_path)
        except CheckpointError as error:
            faults.append(str(error))
    assert all(fault.endswith("config.json is nested too deeply") for fault in faults)


def test_how_much_json_makes_of_a_file_is_known_before(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b'{"a": [' + b"[]," * MAX_CONTAINERS + b"[]]}")
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=f"has {MAX_CONTAINERS + 3} lists and objects, the limit is"):
        read_model_json(path, dict, 2**24)
    assert tracemalloc.get_traced_memory()[1] < 3 * path.stat().st_size
    tracemalloc.stop()
    path.write_bytes(b'{"a": [' + b"1," * (MAX_VALUES + 1) + b"1]}")
    with pytest.raises(CheckpointError, match=f"has {MAX_VALUES + 1} values, the limit is {MAX_VALUES}"):
        read_model_json(path, dict, 2**25)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(DEMO_MODEL_DIR / "tokenizer.json", tmp_path)
    return tmp_path


def with_changes(folder: Path, **changes: object) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def sequence(*steps: object) -> dict:
    return {"type": "Sequence", "normalizers": list(steps)}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"normalizer": sequence(*[REPLACE | {"content": "a" * 4096}] * 3)}, "makes texts 4096 times as long"),
        ({"normalizer": sequence(sequence(*[REPLACE | {"content": "aa"}] * 5))}, "makes texts 32 times as long"),
        ({"normalizer": REPLACE | {"pattern": {"Regex": "x*"}, "content": "b" * 16}}, "makes texts 17 times as long"),
        ({"normalizer": REPLACE | {"pattern": {"String": ""}, "content": "b" * 16}}, "makes texts 17 times as long"),
        ({"normalizer": {"type": "Prepend", "prepend": "b" * 16}}, "makes texts 17 times as long"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, "'Precompiled'"),
        (
            {"normalizer": sequence(*[REPLACE] * (MAX_STEPS + 1))},
            f"a normalizer of {MAX_STEPS + 1} steps, the limit is",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}] * (MAX_STEPS + 1)}},
            f"a pre_tokenizer of {MAX_STEPS + 1} steps, the limit is {MAX_STEPS}",
        ),
        ({"normalizer": {"type": "Sequence"}}, "cannot be read: 'normalizers'"),
        ({"model": {"vocab": {"a": MAX_VOCAB_SIZE}}}, f"a token with id {MAX_VOCAB_SIZE}, allowed are 0 to"),
        ({"model": {"vocab": {"a": -1}}}, "a token with id -1, allowed are 0 to"),
        ({"model": {"vocab": {"a": "b"}}}, "cannot be read"),
        ({"added_tokens": [{"id": 2**32 - 1, "content": "a"}]}, f"a token with id {2**32 - 1}, allowed are 0 to"),
        ({"model": {"vocab": {"a" * 5000: 1}}}, f"a token of 5000 characters, the limit is {MAX_TOKEN_CHARS}"),
    ],
)
def test_a_tokenizer_beyond_any_models_is_refused(folder: Path, changes: dict, fault: str):
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json .*{fault}"):
        read_tokenizer_file(with_changes(folder, **changes))


def test_normalizers_of_known_models_pass(folder: Path):
    """Those of Qwen3, Gemma 3 and Llama 2."""
    spaces = REPLACE | {"pattern": {"String": " "}, "content": "▁"}
    for normalizer in (None, {"type": "NFC"}, spaces, sequence({"type": "Prepend", "prepend": "▁"}, spaces)):
        content = read_tokenizer_file(with_changes(folder, normalizer=normalizer))
        assert content is not None
        assert text_growth(content) <= 2 < MAX_GROWTH
