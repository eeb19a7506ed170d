"""A GGUF file is read like a folder: by the same functions, and with the same errors."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from common import gguf_files
from common.errors import CheckpointError
from common.model_reading import read_model_file, read_model_json
from common.vocabulary import read_vocabulary
from executor_svc.model.families import read_config
from tests.support.gguf_files import SMALL_LLAMA, gguf_bytes, string_key, write_gguf

METADATA = {
    **SMALL_LLAMA,
    "general.sampling.temp": 0.7,
}
TENSORS = {"token_embd.weight": (np.zeros((48, 32), np.float32), "F32"), "norm": (np.zeros(32, np.float32), "F32")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf", METADATA, TENSORS)


def test_it_has_the_files_of_a_folder(path: Path):
    assert read_model_json(path / "generation_config.json", dict) == {"temperature": 0.7}
    content = read_model_file(path / "config.json", 10_000)
    assert content is not None
    assert json.loads(content)["vocab_size"] == 48
    assert read_model_file(path / "modules.json", 10_000) is None
    with pytest.raises(CheckpointError, match=rf"config\.json has {len(content)} bytes, the limit is 10"):
        read_model_file(path / "config.json", 10)
    assert read_vocabulary(path).size == 48
    config = read_config(path)
    assert (config.hidden_size, config.num_layers, config.tied, config.rms_norm_eps) == (32, 1, True, 1e-5)


def test_it_is_read_once_as_long_as_it_stays(path: Path):
    """Bytes that change while size and time do not are what a second reading would find."""
    before = {name: gguf_files.read(path, name) for name in ("config.json", "generation_config.json")}
    state = path.stat()
    path.write_bytes(bytes(state.st_size))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert {name: gguf_files.read(path, name) for name in before} == before
    os.utime(path, ns=(1, 1))
    with pytest.raises(CheckpointError, match="no GGUF file"):
        gguf_files.read(path, "config.json")
    write_gguf(path, METADATA | {"llama.block_count": 3}, TENSORS)
    assert read_config(path).num_layers == 3


def test_shards_that_are_not_there_are_not_needed(tmp_path: Path):
    """The scheduler's side needs the first alone; what the others tell is known as soon as they are there."""
    metadata = METADATA | {"llama.vocab_size": 40}
    first = write_gguf(tmp_path / "model.gguf", metadata, {"norm": TENSORS["norm"]} | TENSORS, split_max_tensors=1)
    (second,) = tmp_path.glob("model-00002-of-00002.gguf")
    content = second.read_bytes()
    second.unlink()
    assert read_vocabulary(first).size == 40
    second.write_bytes(content)
    assert read_vocabulary(first).size == 48


def test_what_cannot_be_read_is_refused_by_its_name(tmp_path: Path):
    path = tmp_path / "model.gguf"
    for content, fault in (
        (b"", "this is no GGUF file"),
        (gguf_bytes([string_key("general.architecture", "gemma3")]), "the architecture is 'gemma3', which is not supp"),
        (gguf_bytes([string_key("general.architecture", "llama")]), "there is no llama.attention.head_count"),
    ):
        path.write_bytes(content)
        for name in ("config.json", "generation_config.json", "others"):
            with pytest.raises(CheckpointError, match=rf"model\.gguf: {fault}"):
                read_model_file(path / name, 1000)
    with pytest.raises(CheckpointError, match=r"there is no .*model\.gguf/below"):
        read_model_file(path / "below" / "config.json", 1000)
