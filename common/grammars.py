"""Which library compiles grammars and masks tokens by them: what services agree on before they exchange grammars."""

from importlib.metadata import PackageNotFoundError, version

_LIBRARY = "llguidance"


def grammar_library() -> str:
    """Its name and version; empty if it is not installed. Another version may allow other tokens."""
    try:
        return f"{_LIBRARY} {version(_LIBRARY)}"
    except PackageNotFoundError:
        return ""
