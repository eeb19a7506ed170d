"""How many characters a token can stand for at most: with that, a text that is too long is told by its length alone.

Tokenizing takes a hundred bytes of memory for a character, and seconds for a long text, so what cannot fit should not
be tokenized to find that out.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NFC_CONTRACTION = 4  # at most so many characters are composed to one (Unicode 16, UAX 15)
KEEPS_ALL = {"ByteLevel", "Digits", "Split", "Metaspace"}  # splits that leave no character out, unless "Removed"
BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def characters_per_token(tokenizer: Mapping[str, Any], token_bytes: Iterable[bytes]) -> int | None:
    """The bound for a tokenizer; None if nothing can be proved, because it may leave characters out.

    A token stands for its bytes, and a character has one byte at least. What normalization composes counts for what it
    was composed of.

    Args:
        tokenizer: content of tokenizer.json.
        token_bytes: what each token stands for.
    """
    contraction = 1
    for normalizer in _steps(tokenizer.get("normalizer"), "normalizers"):
        if normalizer.get("type") == "NFC":
            contraction = NFC_CONTRACTION
        elif not _only_adds(normalizer):
            return None
    for split in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if split.get("type") not in KEEPS_ALL or split.get("behavior") == "Removed":
            return None
    added = tokenizer.get("added_tokens") or []
    if any(token.get("lstrip") or token.get("rstrip") for token in added):  # they swallow the white space beside them
        return None
    if (tokenizer.get("model") or {}).get("type") != "BPE" or not (_is_byte_level(tokenizer) or _has_bytes(tokenizer)):
        return None
    longest = max([*map(len, token_bytes), *(len(token.get("content", "")) for token in added)], default=0)
    return longest * contraction or None


def _only_adds(normalizer: Mapping[str, Any]) -> bool:
    """Whether a text has as many characters after it as before, or more."""
    match normalizer:
        case {"type": "Prepend"}:
            return True
        case {"type": "Replace", "pattern": {"String": str(replaced)}, "content": str(content)}:
            return len(content) >= len(replaced)
    return False


def _is_byte_level(tokenizer: Mapping[str, Any]) -> bool:
    """Whether every byte has a token, so that no text becomes "unknown"."""
    return any(split.get("type") == "ByteLevel" for split in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"))


def _has_bytes(tokenizer: Mapping[str, Any]) -> bool:
    """Whether characters that no piece has are written in bytes, each of which has a token."""
    model = tokenizer["model"]
    return bool(model.get("byte_fallback")) and model.get("vocab", {}).keys() >= BYTE_TOKENS


def _steps(step: Mapping[str, Any] | None, name: str) -> Sequence[Mapping[str, Any]]:
    """The steps of a sequence, of a single step, or of none."""
    if not step:
        return []
    return step[name] if step.get("type") == "Sequence" else [step]
