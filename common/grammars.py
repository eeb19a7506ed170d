"""Grammars by llguidance: what frontends that compile them and executors that mask tokens by them agree on."""

from importlib.metadata import version

from llguidance import LLParserLimits

# `LLParserLimits.initial_lexer_fuel` wherever a grammar is compiled: what a frontend accepts then fails nowhere else.
# With the library's own 1,000,000 the first mask of a short regular expression takes 0.8 s, with this 0.1 s (measured
# with 2,000 tokens).
LEXER_FUEL = 200_000
MAX_LEXER_STATES = 50_000


def grammar_library() -> str:
    """The library's name and version. Another version may allow other tokens."""
    return f"llguidance {version('llguidance')}"


def parser_limits() -> LLParserLimits:
    """What a grammar may take. A grammar that is refused by one side is refused by all.

    A matcher's lexer takes about 0.4 kB for each of its states (measured with 2,000 tokens), so 20 MB at most; with the
    library's own limit it would be 94 MB.

    Errors do not carry the parser's state: they reach clients and logs, and the state has the client's text.
    """
    return LLParserLimits(initial_lexer_fuel=LEXER_FUEL, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
