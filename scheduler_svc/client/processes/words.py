"""Options as words of a command line."""

from pathlib import Path


def words(**options: str | float | Path | None) -> tuple[str, ...]:
    """Command-line words for the options that have a value; the services know the defaults of the others."""
    given = {name: str(value) for name, value in options.items() if value is not None}
    return tuple(word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value))
