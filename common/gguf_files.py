"""A GGUF file, read like a folder: it holds what Hugging Face has in config.json, tokenizer.json and others."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from common.errors import CheckpointError
from common.gguf import Gguf, Metadata, read_gguf
from common.gguf_config import config_json, generation_config_json
from common.gguf_tokenizer import tokenizer_config, tokenizer_json
from common.model_files import MAX_SHARDS, ShardName

_OF_EVERY_MODEL: dict[str, Callable[[Gguf], dict[str, Any]]] = {
    "config.json": config_json,
    "generation_config.json": generation_config_json,
}
_OF_A_TOKENIZER: dict[str, Callable[[Metadata], dict[str, Any]]] = {
    "tokenizer.json": tokenizer_json,
    "tokenizer_config.json": tokenizer_config,
}


def read(path: Path, name: str) -> bytes | None:
    """Return the content of a file, as if it was in a folder; None if there is no such file.

    Args:
        path: of the GGUF file, or of the first shard; the others need not be there.

    Raises:
        CheckpointError: the GGUF file cannot be read, or says something that is not supported.
    """
    return _contents(path, _state(path)).get(name)


@lru_cache(maxsize=1)
def _contents(path: Path, _state: object) -> dict[str, bytes]:
    """Make all files at once, and keep them rather than what they are made of, which takes several times the memory."""
    model = read_gguf(path, all_shards=False)
    try:
        contents = {name: make(model) for name, make in _OF_EVERY_MODEL.items()}
        if "tokenizer.ggml.model" in model.metadata:
            contents |= {name: make(model.metadata) for name, make in _OF_A_TOKENIZER.items()}
        return {name: msgspec.json.encode(content) for name, content in contents.items()}
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _state(path: Path) -> object:
    """Say which files a model is in, and in which state: as long as that stays, so does what they say."""
    shard, states = ShardName.of(path), []
    others = range(2, min(shard.count, MAX_SHARDS) + 1) if shard else ()
    for each in (path, *(path.with_name(shard.sibling(number)) for number in others if shard)):
        with suppress(OSError):
            found = os.stat(each)
            states.append((each, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(states)
