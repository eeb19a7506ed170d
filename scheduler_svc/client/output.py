"""What commands write: results to stdout, everything else to stderr; and numbers for people."""

import sys
import time
from typing import Any

import click


def say(line: str, **style: Any) -> None:
    """Write a line to stderr. `style` is as for `click.style`; it is dropped if stderr is not a terminal."""
    click.secho(line, err=True, **style)


def notice(line: str) -> None:
    """Write a dim line to stderr, on a line of its own even if a model's text is on the same terminal."""
    start = "\n" if sys.stdout.isatty() and sys.stderr.isatty() else ""
    say(f"{start}baton: {line}", dim=True)


def write_text(text: str) -> None:
    """Write text of a model to stdout, at once and unchanged."""
    sys.stdout.write(text)
    sys.stdout.flush()


class AnswerTimer:
    """Measures one streamed answer; make it when the request is sent."""

    def __init__(self) -> None:
        self._sent_s = time.perf_counter()
        self._first_s: float | None = None
        self._tokens: int | None = None

    def see(self, event: dict[str, Any]) -> None:
        """Take an event of the stream."""
        if self._first_s is None and any(map(_has_output, event.get("choices", ()))):
            self._first_s = time.perf_counter()
        if event.get("usage"):
            self._tokens = event["usage"]["completion_tokens"]

    def report(self) -> None:
        """Write tokens, tokens per second and the time to the first one to stderr, if it is a terminal."""
        if self._first_s is None or self._tokens is None or not sys.stderr.isatty():
            return
        seconds = time.perf_counter() - self._sent_s
        rate = self._tokens / seconds
        first_ms = (self._first_s - self._sent_s) * 1000
        say(f"{self._tokens} tokens, {rate:.1f} tokens/s, first after {first_ms:.0f} ms", dim=True)


def _has_output(choice: dict[str, Any]) -> bool:
    """Whether a chunk has something that the model wrote; the first one of a chat may just name the role."""
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or any(value for name, value in delta.items() if name != "role")


class OutageNotice:
    """Reports once that the service is away or busy, and once that it is back, however many requests wait for it.

    Args:
        limit_s: seconds that requests will wait.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since_s: float | None = None

    def away(self, how: str = "away") -> None:
        """A request found it away, too busy to be answered, or unable to."""
        if self._since_s is None:
            self._since_s = time.monotonic()
            notice(f"the service is {how}; waiting up to {duration(self._limit_s)} for it")

    def back(self) -> None:
        """A request continues."""
        if self._since_s is not None:
            notice(f"the service is back after {duration(time.monotonic() - self._since_s)}; going on")
            self._since_s = None


def duration(seconds: float) -> str:
    """For people: `4.2 s`, `3:07 min`, `2:03:07 h`, `1 day 2:03:07 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{rest_s:02} min"
    days, hours = divmod(hours, 24)
    day = f"{days} day{'s' if days > 1 else ''} " if days else ""
    return f"{day}{hours}:{minutes:02}:{rest_s:02} h"
