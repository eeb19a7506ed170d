"""Texts to token ids without special tokens: what looks like one in a text is read as the characters that it has.

For what strangers wrote for a place inside of a prompt, which their text cannot leave then. The library can be told the
same, but not for one text alone: that takes a second tokenizer, and a second to make it in which no thread has a turn.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from common.errors import RequestRejected
from scheduler_svc.frontend.text.tokenizer import Tokenizer


def encode_literally(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of each text, none of them special. Raises RequestRejected as `Tokenizer.encode` does.

    A text is cut behind the first character of each special token that it has, and its parts are encoded by
    themselves.
    """
    parts = [_parts(text, tokenizer.special_tokens) for text in texts]
    encoded = iter(tokenizer.encode([part for some in parts for part in some], add_special_tokens=False))
    special = frozenset(tokenizer.special_tokens.values())
    joined = []
    for some in parts:
        ids = next(encoded) if len(some) == 1 else [token_id for _ in some for token_id in next(encoded)]
        if not special.isdisjoint(ids):  # one of a single character, or one that normalization makes
            raise RequestRejected("a text has a special token of the model")
        joined.append(ids)
    return joined


def _parts(text: str, special_tokens: Iterable[str]) -> list[str]:
    cuts = {start + 1 for token in special_tokens for start in _occurrences(token, text)}
    edges = [0, *sorted(cuts - {len(text)}), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def _occurrences(token: str, text: str) -> Iterator[int]:
    start = text.find(token)
    while start >= 0:
        yield start
        start = text.find(token, start + 1)
