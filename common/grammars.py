"""Grammars by llguidance: what frontends that compile them and executors that mask tokens by them agree on.

The limits were found by measuring, with vocabularies of 2,048 and 151,936 tokens. What the largest schemas need that
somebody may mean (of `max_items_in_row`, `step_max_items` and lexer states):

| grammar | items in a row | items of a mask | mask at p99 |
|---|---|---|---|
| the benchmark's tickets, trees, 60 tools, GBNF of JSON or C, SQL | 70 | 500 | 8 ms, the first one |
| 200 optional properties in one object | 827 | 5,760 | 2 ms |
| any of 50 objects whose optional properties are the same | 769 | 4,146 | 4 ms |
| words of bounded length with spaces between them | 3 | 20,730 | 9 ms |

None of them needs 2,000 states of the lexer.
"""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from llguidance import LLParserLimits, LLTokenizer

from common.errors import CheckpointError
from common.tokenizer_file import BYTE_FALLBACK, FUSE, SPACE, UNESCAPE, library_fault, read_tokenizer_file

# `LLParserLimits.initial_lexer_fuel` wherever a grammar is compiled: what a frontend accepts then fails nowhere else.
# With the library's own 1,000,000 the first mask of a short regular expression takes 0.8 s, with this 0.1 s (measured
# with 2,000 tokens).
LEXER_FUEL = 200_000
# A row of an ambiguous grammar takes the square of its items: with the library's own 2,000 a mask takes 5 s and a token
# 240 ms, of which nothing else of the process runs; with these 0.9 s and 30 ms.
MAX_ITEMS_IN_ROW = 1_000
MAX_STEP_ITEMS = 50_000  # of a mask; the library's own, since grammars that nobody could call strange need half of them
MAX_LEXER_STATES = 10_000


def grammar_library() -> str:
    """The library's name and version. Another version may allow other tokens."""
    return f"llguidance {version('llguidance')}"


def parser_limits() -> LLParserLimits:
    """What a grammar may take. A grammar that is refused by one side is refused by all.

    The first three count what a text needs, however it came there: token by token, or all at once after a swap.

    Errors do not carry the parser's state: they reach clients and logs, and the state has the client's text.
    """
    return LLParserLimits(
        max_items_in_row=MAX_ITEMS_IN_ROW,
        step_max_items=MAX_STEP_ITEMS,
        initial_lexer_fuel=LEXER_FUEL,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=False,
    )


def read_grammar_tokenizer(
    folder: Path, vocab_size: int | None = None, eos_token_ids: Sequence[int] = ()
) -> LLTokenizer | None:
    """Read what the library needs to know of a model's tokens; None if its folder has no tokenizer.json.

    Args:
        vocab_size: of the model; that of the file if it is not said.
        eos_token_ids: tokens that end texts; the library finds one by its name if none is said.

    Raises:
        CheckpointError: the file is malformed, or has more tokens than the model.
    """
    content = read_tokenizer_file(folder)  # which checks it
    if content is None:
        return None
    text = msgspec.json.encode(content | {"decoder": _known_decoder(content.get("decoder"))}).decode()
    try:
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos_token_ids) or None)
    except BaseException as error:
        fault = library_fault(error)
        raise CheckpointError(f"{folder / 'tokenizer.json'} cannot be used for grammars: {fault}") from error


def _known_decoder(decoder: Any) -> Any:
    """Return a decoder that makes the same text, and that the library knows: it does not know Metaspace."""
    match decoder:
        case {"type": "Metaspace", "replacement": char} if char == SPACE:
            return {"type": "Sequence", "decoders": [UNESCAPE, BYTE_FALLBACK, FUSE]}
        case {"type": "Sequence", "decoders": [*_, {"type": "Metaspace"} as last]}:
            return _known_decoder(last)
    return decoder
