"""What a message consists of, piece by piece."""

from typing import NamedTuple


class CallPart(NamedTuple):
    """New text of one call.

    Attributes:
        number: of the call in its message, from 0.
        name: of the tool, in the call's first part; empty in the others.
        arguments: of the tool, as much as is new of their JSON.
    """

    number: int
    name: str
    arguments: str


class MessagePart(NamedTuple):
    """What a piece of text adds to a message."""

    thought: str = ""
    content: str = ""
    calls: tuple[CallPart, ...] = ()
