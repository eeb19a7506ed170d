"""What a test's process logs while it looks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from structlog.testing import capture_logs


class Log:
    """Events of all loggers of this process, in their order.

    Attributes:
        lines: of each its text and its facts, without its level.
    """

    def __init__(self, entries: list[Any]) -> None:
        self._entries = entries

    @property
    def lines(self) -> list[tuple[str, dict[str, Any]]]:
        without = ("event", "log_level")
        return [(each["event"], {name: each[name] for name in each if name not in without}) for each in self._entries]

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.lines]

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """The facts of warnings."""
        levels = [each["log_level"] for each in self._entries]
        return [facts for (_, facts), level in zip(self.lines, levels, strict=True) if level == "warning"]


@contextmanager
def logged() -> Iterator[Log]:
    """Take what is logged; nothing of it is printed meanwhile."""
    with capture_logs() as entries:
        yield Log(entries)
