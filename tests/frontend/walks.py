"""A model that writes at random, held by a grammar's masks."""

import random
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from common.grammars import parser_limits


def matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """As executors make it."""
    made = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    assert not made.is_error(), made.get_error()
    return made


def walk(
    tokenizer: LLTokenizer, grammar: str, phrases: Sequence[Sequence[int]], seed: int, begin: Sequence[int] = ()
) -> tuple[list[int], bool]:
    """The tokens of a text at random, 400 at most, and whether the grammar let it end.

    Args:
        phrases: what the model likes to write, so that texts end.
        begin: what it writes first.
    """
    draw = random.Random(seed)
    held = matcher(tokenizer, grammar)
    tokens: list[int] = []
    phrase = list(begin)
    while len(tokens) < 400:
        mask = np.frombuffer(bytes(held.compute_bitmask()), np.uint8)
        assert not held.is_error(), held.get_error()
        allowed = set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()) - set(tokenizer.eos_tokens)
        if held.is_accepting() and not phrase and (not allowed or draw.random() < 0.1):
            return tokens, True
        assert allowed, "the text cannot go on"
        if not phrase and draw.random() < 0.7:
            phrase = list(draw.choice([liked for liked in phrases if liked[0] in allowed] or [[]]))
        if not phrase or phrase[0] not in allowed:
            phrase = [draw.choice(sorted(allowed))]
        tokens.append(phrase.pop(0))
        assert held.consume_token(tokens[-1]), held.get_error()
    return tokens, False


def is_allowed(tokenizer: LLTokenizer, grammar: str, tokens: Sequence[int]) -> bool:
    """Whether a model may generate exactly these tokens."""
    held = matcher(tokenizer, grammar)
    for token in tokens:
        if not held.compute_bitmask()[token // 8] >> token % 8 & 1:
            return False
        assert held.consume_token(token), held.get_error()
    return bool(held.is_accepting())


def goes_on_alike(tokenizer: LLTokenizer, grammar: str, tokens: Sequence[int]) -> bool:
    """Whether a matcher that reads these tokens at once, as one does that takes a sequence over, allows the same next
    token as one that has made a mask for each of them."""
    one, other = matcher(tokenizer, grammar), matcher(tokenizer, grammar).deep_copy()
    for token in tokens:
        one.compute_bitmask()
        assert one.consume_token(token), one.get_error()
    assert other.consume_tokens(list(tokens)), other.get_error()
    return bytes(one.compute_bitmask()) == bytes(other.compute_bitmask())
