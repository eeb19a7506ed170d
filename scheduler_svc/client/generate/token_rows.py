"""Log-probabilities of tokens for people: a line for each token."""

import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

Json = dict[str, Any]

_MINUS_INFINITY = -9999.0  # as it is written in JSON, which has no infinity


class TokenRow(NamedTuple):
    """A token that was generated, or is one of a prompt.

    Attributes:
        logprob: None for a token before which nothing stood.
        likeliest: tokens that were the likeliest in its place, and their log-probabilities.
        rank: among all tokens of the vocabulary, 1 for the likeliest; None if it was not told.
    """

    token: str
    logprob: float | None
    likeliest: list[tuple[str, float]]
    rank: int | None = None

    def __str__(self) -> str:
        """`"the"  -0.2231   80.0%  "a" -2.3026, "his" -3.1011`, with `#1` for a rank after the probability."""
        token = json.dumps(self.token, ensure_ascii=False)
        own = "" if self.logprob is None else f"{_number(self.logprob):>9}{100 * math.exp(self.logprob):>7.1f}%"
        others = (f"{json.dumps(other, ensure_ascii=False)} {_number(value)}" for other, value in self.likeliest)
        rank = "" if self.rank is None else f"{f'#{self.rank}':>8}"
        return f"{token:<16}{own:<17}{rank}  {', '.join(others)}".rstrip()


def token_rows(logprobs: Json | None) -> Iterator[TokenRow]:
    """The rows of a choice's `logprobs`, as completions or as chats have it."""
    if not logprobs:
        return
    for entry in logprobs.get("content") or ():
        likeliest = [(other["token"], other["logprob"]) for other in entry.get("top_logprobs") or ()]
        yield TokenRow(entry["token"], entry["logprob"], likeliest)
    tokens = logprobs.get("tokens") or []
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    for token, value, top in zip(tokens, logprobs.get("token_logprobs") or [], tops, strict=True):
        yield TokenRow(token, value, sorted((top or {}).items(), key=lambda other: -other[1]))


def prompt_rows(listed: list[Json | None], num_likeliest: int) -> Iterator[TokenRow]:
    """Yield the rows of `prompt_logprobs`. The first token has none."""
    for entries in listed:
        if entries:
            own, *_ = told = list(entries.values())
            ranked = sorted((each for each in told if each["rank"] is not None), key=lambda each: int(each["rank"]))
            likeliest = [(each["decoded_token"], each["logprob"]) for each in ranked if each["rank"] <= num_likeliest]
            yield TokenRow(own["decoded_token"], own["logprob"], likeliest, own["rank"])


def _number(logprob: float) -> str:
    return "-inf" if logprob <= _MINUS_INFINITY else f"{logprob:.4f}"
