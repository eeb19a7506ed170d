"""The demo model's tokenizer, read once for all tests of a process."""

from collections.abc import Iterable

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(DEMO_MODEL_DIR)
EOS = TOKENIZER.eos_token_ids[0]


def ids(text: str) -> list[int]:
    """Return the tokens of a text, without any that a tokenizer adds."""
    return TOKENIZER.encode([text], add_special_tokens=False)[0]


def decoded(token_ids: Iterable[int], *, special: bool = True) -> str:
    """Return what tokens stand for; tokens that are none stand for nothing, and half a character for U+FFFD.

    Args:
        special: whether the names of special tokens are shown.
    """
    table = TOKENIZER.all_token_bytes if special else TOKENIZER.token_bytes
    return b"".join(table.get(token, b"") for token in token_ids).decode(errors="replace")
