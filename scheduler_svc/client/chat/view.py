"""How an answer is shown: text and calls on stdout, the thought folded or dim on stderr."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from scheduler_svc.client.http.growing_message import Call, thought_of
from scheduler_svc.client.output import duration, say, write_text

_ERASE_LINE = "\r\x1b[K"
_REDRAW_INTERVAL_S = 0.5


class AnswerView:
    """Shows one answer while it comes. A folded thought is a line that counts seconds, on a terminal alone."""

    def __init__(self, *, shows_thought: bool) -> None:
        self._shows_thought = shows_thought
        self._folds = not shows_thought and sys.stderr.isatty()
        self._thinks_since_s: float | None = None
        self._drawn_s = 0.0
        self._has_text = False

    def add(self, delta: dict[str, Any]) -> None:
        """Show what a delta adds, but for calls: `end` shows them, whole."""
        if thought := thought_of(delta):
            self._think(thought)
        if text := delta.get("content"):
            self.stop_thinking()
            write_text(text)
            self._has_text = True

    def end(self, calls: Sequence[Call]) -> None:
        """The answer has ended."""
        self.stop_thinking()
        if self._has_text:
            write_text("\n")
        for call in calls:
            write_text(f"{click.style('call', dim=True)} {call}\n" if sys.stdout.isatty() else f"{call}\n")

    def _think(self, thought: str) -> None:
        now_s = time.monotonic()
        if self._thinks_since_s is None:
            self._thinks_since_s = now_s
        if self._shows_thought:
            click.secho(thought, dim=True, nl=False, err=True)
        elif self._folds and now_s - self._drawn_s > _REDRAW_INTERVAL_S:
            self._drawn_s = now_s
            seconds = f"{now_s - self._thinks_since_s:.0f} s"
            click.secho(f"{_ERASE_LINE}thinking ... {seconds}", dim=True, nl=False, err=True)

    def stop_thinking(self) -> None:
        """What is written next is no part of the thought, but text, or why the answer broke off."""
        if self._thinks_since_s is None:
            return
        seconds = time.monotonic() - self._thinks_since_s
        self._thinks_since_s = None
        if self._folds:
            say(f"{_ERASE_LINE}(thought for {duration(seconds)})", dim=True)
        elif self._shows_thought:
            say("\n")
