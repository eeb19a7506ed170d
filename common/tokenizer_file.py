"""A model's tokenizer.json, checked before a library is given it: its numbers, and how long it could make a text."""

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

from common.errors import CheckpointError
from common.model_reading import MAX_TOKENIZER_BYTES, read_model_json

MAX_VOCAB_SIZE = 2**20  # tokens; models have up to 262,144, and several tables have an entry for each
MAX_TOKEN_CHARS = 2**12  # of one token, which may be the whole of a stream's event; 128 spaces are known
MAX_STEPS = 64  # of a normalizer, or of a pre-tokenizer: each goes through the whole text; 8 are known
SPACE = "\u2581"  # SentencePiece's character for it
# Steps of a decoder of SentencePiece's pieces; the last one takes away the space that is put before each text.
UNESCAPE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
BYTE_FALLBACK = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
MAX_GROWTH = 16  # times as long as it was a text may be after all replacements; "▁" for a space is as long


def read_tokenizer_file(folder: Path) -> dict[str, Any] | None:
    """The decoded tokenizer.json of a folder; None if there is none.

    Raises:
        CheckpointError: it cannot be read, has a token that is too long or an id beyond any vocabulary, or makes texts
            much longer.
    """
    path = folder / "tokenizer.json"
    content: dict[str, Any] | None = read_model_json(path, dict[str, Any], MAX_TOKENIZER_BYTES, as_written=True)
    if content is None:
        return None
    try:
        _check_tokens(path, content)
        _check_steps(path, content)
        if (growth := text_growth(content)) > MAX_GROWTH:
            raise CheckpointError(
                f"{path} makes texts {growth} times as long by its normalizer, the limit is {MAX_GROWTH}"
            )
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return content


def text_growth(content: dict[str, Any]) -> int:
    """How many times as long a text may become by the replacements of a tokenizer.json, one after the other.

    What Unicode's own forms make of a text is not counted. Raises KeyError, TypeError or AttributeError if the content
    is malformed.
    """
    growth = 1
    for step in _steps(content.get("normalizer"), "normalizers"):
        match step["type"]:
            case "Replace":
                pattern, text = step["pattern"], step["content"]
                # An expression may match between any two characters.
                replaced = len(pattern["String"]) if pattern.get("String") else 0
                growth *= max(1, ceil(len(text) / replaced) if replaced else 1 + len(text))
            case "Prepend":
                growth *= 1 + len(step["prepend"])
            case "Precompiled":
                raise ValueError("its normalizer is 'Precompiled', and BPE models have none of that kind")
        if growth > MAX_GROWTH:
            break
    return growth


def library_fault(error: BaseException) -> str:
    """What a library in Rust says of its failure: it raises bare Exceptions, and where it panics no Exception at all.
    Raises the error if it is none of the library's."""
    if isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime":
        return str(error)
    raise error


def _check_tokens(path: Path, content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    added = content.get("added_tokens") or []
    ids = [token["id"] for token in added]
    texts = [token["content"] for token in added]
    if isinstance(vocab, dict):
        ids += vocab.values()
        texts += vocab
    if ids and not 0 <= min(ids) <= max(ids) < MAX_VOCAB_SIZE:
        bad = min(ids) if min(ids) < 0 else max(ids)
        raise CheckpointError(f"{path} has a token with id {bad}, allowed are 0 to {MAX_VOCAB_SIZE - 1}")
    if (longest := max(map(len, texts), default=0)) > MAX_TOKEN_CHARS:
        raise CheckpointError(f"{path} has a token of {longest} characters, the limit is {MAX_TOKEN_CHARS}")


def _check_steps(path: Path, content: dict[str, Any]) -> None:
    for part, name in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        if (found := sum(1 for _ in _steps(content.get(part), name))) > MAX_STEPS:
            raise CheckpointError(f"{path} has a {part} of {found} steps, the limit is {MAX_STEPS}")


def _steps(step: dict[str, Any] | None, name: str) -> Iterator[dict[str, Any]]:
    """All of them; a sequence may have sequences in it."""
    if step is None:
        return
    if step["type"] == "Sequence":
        for inner in step[name]:
            yield from _steps(inner, name)
    else:
        yield step
