"""Words of command lines: options for the services, and what to try first."""

from pathlib import Path


def words(**options: str | float | Path | None) -> tuple[str, ...]:
    """Command-line words for the options that have a value; the services know the defaults of the others."""
    given = {name: str(value) for name, value in options.items() if value is not None}
    return tuple(word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value))


def first_try(*, is_demo: bool) -> str:
    """What follows `baton` to see what a model does: a conversation. The demo model knows plays, and no questions."""
    return 'generate "ROMEO:" --max-tokens 64' if is_demo else "chat"
