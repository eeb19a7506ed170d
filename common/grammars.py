"""Grammars by llguidance: what frontends that compile them and executors that mask tokens by them agree on."""

from importlib.metadata import PackageNotFoundError, version

from llguidance import LLParserLimits

_LIBRARY = "llguidance"


def grammar_library() -> str:
    """Its name and version; empty if it is not installed. Another version may allow other tokens."""
    try:
        return f"{_LIBRARY} {version(_LIBRARY)}"
    except PackageNotFoundError:
        return ""


def parser_limits() -> LLParserLimits:
    """What a grammar may take. A grammar that is refused by one side is refused by all.

    Errors do not carry the parser's state: they reach clients and logs, and the state has the client's text.
    """
    return LLParserLimits(verbose_errors=False)
