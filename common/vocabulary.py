"""Which tokens a model's ids stand for: what two services must agree on before they exchange ids."""

import json
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from common.errors import CheckpointError


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
    try:
        size = json.loads(path.read_text())["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} has no vocab_size: {error}") from error
    if not isinstance(size, int) or not 1 <= size < 2**31:
        raise CheckpointError(f"{path}: vocab_size is {size!r}")
    return Vocabulary(size, tokenizer_hash(folder))


def tokenizer_hash(folder: Path) -> str:
    """Hash of what a folder's tokenizer.json says about tokens, however it is written; empty if there is no such file.

    Neither normalization nor the split into words is part of it: they decide which ids a text gets, and not what an id
    means.

    Raises:
        CheckpointError: the file is malformed.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return ""
    try:
        content = msgspec.json.decode(path.read_bytes())
        model = content["model"]
        added = [(token["id"], token["content"], token["special"]) for token in content.get("added_tokens") or []]
        tokens = {"vocab": model["vocab"], "merges": _merges(model.get("merges") or []), "added": sorted(added)}
    except (OSError, msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(tokens, order="sorted"))


def _merges(merges: list[Any]) -> list[str]:
    """Pairs as `a b`: older files have them like this, and newer ones as lists."""
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
