"""The time that commands wait by: the machine's, unless whoever runs a command passes another one in."""

import threading
import time

import click


class Clock:
    """The machine's time. A command waits by another clock if that is the `obj` of its click context."""

    def now_s(self) -> float:
        """Return seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    async def pause(self, seconds: float) -> None:
        """Wait, and let other coroutines go on."""
        import asyncio  # noqa: PLC0415  (not for --help)

        await asyncio.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for an event, so long at most. Returns whether it has happened."""
        return event.wait(seconds)


def clock_of_command() -> Clock:
    """Return the clock of the click command that runs."""
    return click.get_current_context().find_object(Clock) or Clock()
