"""Which library compiles grammars and masks tokens by them: what services agree on before they exchange grammars."""

from importlib.metadata import PackageNotFoundError, version

_LIBRARY = "llguidance"

# `LLParserLimits.initial_lexer_fuel` wherever a grammar is compiled: what a frontend accepts then fails nowhere else.
# With the library's own 1,000,000 the first mask of a short regular expression takes 0.8 s, with this 0.1 s (measured
# with 2,000 tokens).
LEXER_FUEL = 200_000


def grammar_library() -> str:
    """Its name and version; empty if it is not installed. Another version may allow other tokens."""
    try:
        return f"{_LIBRARY} {version(_LIBRARY)}"
    except PackageNotFoundError:
        return ""
