"""Text of others in a log, a table or a URL: a line end in it would begin a line of its own, and pass for another's."""


def printable(text: str) -> str:
    """The text with an escape in place of each character that acts on a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def name_fault(what: str, name: str) -> str | None:
    """Why a name is refused, if it is.

    Args:
        what: has this name.

    Returns:
        A reason, in which the name is escaped.
    """
    return None if name.isprintable() else f"{what} is {name!r}, and only printable characters are allowed in it"
