"""Which tokens a model's ids stand for: what two services must agree on before they exchange ids."""

from pathlib import Path
from typing import Any

import msgspec
import xxhash

from common.errors import CheckpointError
from common.model_reading import read_model_json
from common.tokenizer_file import MAX_VOCAB_SIZE, read_tokenizer_file


class Vocabulary(msgspec.Struct, frozen=True):
    """The tokens of a model.

    Attributes:
        size: token ids run from 0 to size - 1.
        tokenizer: hash of all tokens, merges and special tokens (`tokenizer_hash`), empty if it is not known.
    """

    size: int
    tokenizer: str


def read_vocabulary(folder: Path) -> Vocabulary:
    """The vocabulary of a model's folder. Raises CheckpointError if its config.json does not tell."""
    path = folder / "config.json"
    config = read_model_json(path, dict)
    if config is None or "vocab_size" not in config:
        raise CheckpointError(f"{path} has no vocab_size" if config is not None else f"there is no {path}")
    return Vocabulary(checked_vocab_size(path, config["vocab_size"]), tokenizer_hash(folder))


def checked_vocab_size(path: Path, size: object) -> int:
    """The `vocab_size` of a configuration. Raises CheckpointError for what is none, or larger than any model's."""
    if type(size) is not int or not 1 <= size <= MAX_VOCAB_SIZE:
        raise CheckpointError(f"{path} has vocab_size {size!r:.80}, allowed are 1 to {MAX_VOCAB_SIZE}")
    return size


def tokenizer_hash(folder: Path) -> str:
    """Hash of what a folder's tokenizer.json says about tokens, however it is written; empty if there is no such file.

    Neither normalization nor the split into words is part of it: they decide which ids a text gets, and not what an id
    means.

    Raises:
        CheckpointError: the file is malformed.
    """
    content = read_tokenizer_file(folder)
    if content is None:
        return ""
    try:
        model = content["model"]
        added = [(token["id"], token["content"], token["special"]) for token in content.get("added_tokens") or []]
        tokens = {"vocab": model["vocab"], "merges": _merges(model.get("merges") or []), "added": sorted(added)}
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error
    return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(tokens, order="sorted"))


def _merges(merges: list[Any]) -> list[str]:
    """Pairs as `a b`: older files have them like this, and newer ones as lists."""
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
