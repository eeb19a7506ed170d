"""Single tokens as text: how log-probabilities name them."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

REMEMBERED_TOKENS = 2**15


class TokenText(NamedTuple):
    """One token by itself.

    Attributes:
        text: U+FFFD stands for what is no whole character.
        bytes: what the token stands for; None for an id that no token has.
    """

    text: str
    bytes: list[int] | None


class TokenTexts:
    """Texts of tokens. Those that were asked for lately are remembered, and shared by all answers.

    Args:
        token_bytes: bytes of each token id, special tokens included.
    """

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        self._token_bytes = token_bytes
        self.of = lru_cache(REMEMBERED_TOKENS)(self._of)

    def _of(self, token_id: int) -> TokenText:
        data = self._token_bytes.get(token_id)
        return TokenText("", None) if data is None else TokenText(data.decode(errors="replace"), list(data))
