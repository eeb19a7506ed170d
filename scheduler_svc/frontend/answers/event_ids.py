"""Ids of a stream's events. An id says what a client has of an answer, so that the stream can continue exactly there.

An id has an entry for each choice, with dots between them, or it is `end`:

    -      nothing yet
    17     the chunks up to the text of the choice's first 17 tokens (0: its opening chunk)
    17!    all of it: the choice ended with its 17th token, and the client knows why
    end    all choices, and the usage

Where events are numbered (`numbered_events.py`), an id is the number of its event.

Tokens and not events or characters are counted, because which tokens share an event is a matter of timing, and the
text of the first k tokens is not (`sequence_text.py`). `-.0!.17` is the id of an answer with three choices.

The stream of a new request has ids only if its client has called it resumable: benchmark clients read the first line of
an event alone, and an id grows with the number of choices. The rest of a stream always has ids.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_svc.frontend.errors import ApiError

END = "end"
_ENTRY = r"(?:-|(?:0|[1-9][0-9]{0,9})!?)"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_ID = re.compile(rf"{END}|{_ENTRY}(?:\.{_ENTRY})*", re.ASCII)


class Delivered(NamedTuple):
    """What a client has of one choice.

    Attributes:
        has_opened: it has the opening chunk, if the format has one.
        num_tokens: number of tokens whose text it has.
        has_ended: it has all of the text, and the reason for its end.
    """

    has_opened: bool = False
    num_tokens: int = 0
    has_ended: bool = False


@dataclass(frozen=True)
class Position:
    """What a client has of an answer: of each choice, and whether it has the usage too (then it has everything)."""

    choices: tuple[Delivered, ...]
    is_end: bool = False

    @classmethod
    def start(cls, num_choices: int) -> "Position":
        """The position before the first event."""
        return cls((Delivered(),) * num_choices)

    @classmethod
    def after(cls, event_id: str, num_choices: int) -> "Position":
        """The position after the event with this id. Raises ApiError if it is no id, or not one for so many choices."""
        check_event_id(event_id)
        if event_id == END:
            return cls((Delivered(),) * num_choices, is_end=True)
        choices = tuple(map(_delivered, event_id.split(".")))
        if len(choices) != num_choices:
            raise _bad_event_id(f"it has {len(choices)} choices, the request has {num_choices}")
        return cls(choices)


def check_event_id(event_id: str) -> None:
    """Raise ApiError if the text is not the id of an event."""
    if _ID.fullmatch(event_id) is None:
        raise _bad_event_id("it is no id of an event")


def number_of(event_id: str) -> int:
    """The number that is the id of an event; -1 where there is no id. Raises ApiError if it is none."""
    if event_id and _NUMBER.fullmatch(event_id) is None:
        raise _bad_event_id("it is no number, and the events of this request are numbered")
    return int(event_id) if event_id else -1


class EventIds:
    """Counts the tokens of a stream and gives the id of each event in turn.

    Args:
        choices: what the client has at the start.
        are_sent: False makes all ids empty.
    """

    def __init__(self, choices: Sequence[Delivered], *, are_sent: bool = True) -> None:
        self._entries = [_entry(delivered) for delivered in choices]
        self._are_sent = are_sent

    def opened(self, choice: int) -> str:
        """The id of a choice's opening chunk."""
        return self._advance(choice, "0")

    def advanced(self, choice: int, num_tokens: int, *, has_ended: bool) -> str:
        """The id of a chunk with the text up to a number of tokens."""
        return self._advance(choice, f"{num_tokens}!" if has_ended else str(num_tokens))

    def end(self) -> str:
        """The id of the usage."""
        return END if self._are_sent else ""

    def _advance(self, choice: int, entry: str) -> str:
        if not self._are_sent:
            return ""
        self._entries[choice] = entry
        return ".".join(self._entries)


def _delivered(entry: str) -> Delivered:
    if entry == "-":
        return Delivered()
    return Delivered(has_opened=True, num_tokens=int(entry.removesuffix("!")), has_ended=entry.endswith("!"))


def _entry(delivered: Delivered) -> str:
    if not delivered.has_opened:
        return "-"
    return f"{delivered.num_tokens}!" if delivered.has_ended else str(delivered.num_tokens)


def _bad_event_id(problem: str) -> ApiError:
    return ApiError(400, f"Invalid 'Last-Event-ID': {problem}.", code="invalid_value", param="Last-Event-ID")
