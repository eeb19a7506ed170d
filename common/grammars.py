"""Grammars by llguidance: what frontends that compile them and executors that mask tokens by them agree on."""

from importlib.metadata import version

from llguidance import LLParserLimits


def grammar_library() -> str:
    """The library's name and version. Another version may allow other tokens."""
    return f"llguidance {version('llguidance')}"


def parser_limits() -> LLParserLimits:
    """What a grammar may take. A grammar that is refused by one side is refused by all.

    Errors do not carry the parser's state: they reach clients and logs, and the state has the client's text.
    """
    return LLParserLimits(verbose_errors=False)
