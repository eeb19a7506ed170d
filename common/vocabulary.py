"""Which tokens a model's ids stand for: what two services must agree on before they exchange ids."""

from pathlib import Path
from typing import Any

import msgspec
import xxhash
from blake3 import blake3

from common.errors import CheckpointError
from common.model_reading import read_model_json
from common.tokenizer_file import MAX_VOCAB_SIZE, read_tokenizer_file


class Vocabulary(msgspec.Struct, frozen=True):
    """The tokens of a model.

    Attributes:
        size: token ids run from 0 to size - 1.
        tokenizer: hash of all tokens, merges and special tokens (`tokenizer_hash`), empty if it is not known.
        former_tokenizer: their hash as earlier releases computed it (XXH3), for requests in their journals and for
            nothing else: others can make another tokenizer of the same one.
    """

    size: int
    tokenizer: str
    former_tokenizer: str = ""


def read_vocabulary(folder: Path) -> Vocabulary:
    """The vocabulary of a model's folder. Raises CheckpointError if its config.json does not tell."""
    path = folder / "config.json"
    config = read_model_json(path, dict)
    if config is None:
        raise CheckpointError(f"there is no {path}")
    if "vocab_size" not in config:
        kind = f"it is of another kind of model (model_type {config.get('model_type')!r:.80})"
        raise CheckpointError(f"{path} has no vocab_size: {kind}")
    tokens = _read_tokens(folder)
    return Vocabulary(checked_vocab_size(path, config["vocab_size"]), _hash(tokens), _former_hash(tokens))


def checked_vocab_size(path: Path, size: object) -> int:
    """The `vocab_size` of a configuration. Raises CheckpointError for what is none, or larger than any model's."""
    if type(size) is not int or not 1 <= size <= MAX_VOCAB_SIZE:
        raise CheckpointError(f"{path} has vocab_size {size!r:.80}, allowed are 1 to {MAX_VOCAB_SIZE}")
    return size


def tokenizer_hash(folder: Path) -> str:
    """Hash what a folder's tokenizer.json says about tokens, however it is written; empty if there is no such file.

    Neither normalization nor the split into words is part of it: they decide which ids a text gets, and not what an id
    means.

    Returns:
        BLAKE3, 64 hex digits: nobody can make another tokenizer of the same one.

    Raises:
        CheckpointError: the file is malformed.
    """
    return _hash(_read_tokens(folder))


def token_of(folder: Path, text: str) -> int:
    """The id of the token that stands for a text alone. Raises CheckpointError if the folder's tokenizer has none."""
    tokens = _read_tokens(folder)
    found = None if tokens is None or not isinstance(tokens["vocab"], dict) else tokens["vocab"].get(text)
    if type(found) is not int:
        raise CheckpointError(f"{folder / 'tokenizer.json'} has no token {text!r}")
    return found


def _read_tokens(folder: Path) -> dict[str, Any] | None:
    """Read the part of a tokenizer.json that is hashed; None if there is no file."""
    content = read_tokenizer_file(folder)
    if content is None:
        return None
    try:
        model = content["model"]
        added = [(token["id"], token["content"], token["special"]) for token in content.get("added_tokens") or []]
        return {"vocab": model["vocab"], "merges": _merges(model.get("merges") or []), "added": sorted(added)}
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise CheckpointError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error


def _merges(merges: list[Any]) -> list[list[str]]:
    """Pairs as newer files have them; older ones have `a b`."""
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    return msgspec.convert(pairs, list[list[str]])


def _hash(tokens: dict[str, Any] | None) -> str:
    return "" if tokens is None else blake3(msgspec.msgpack.encode(tokens, order="sorted")).hexdigest()


def _former_hash(tokens: dict[str, Any] | None) -> str:
    if tokens is None:
        return ""
    merges = [" ".join(pair) for pair in tokens["merges"]]
    return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(tokens | {"merges": merges}, order="sorted"))
