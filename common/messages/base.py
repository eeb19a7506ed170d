"""What all messages share: the protocol's version, the ranges of their fields, and their base class."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PROTOCOL_VERSION = 17

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Epoch = Annotated[int, Meta(ge=1, le=2**53)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
MAX_NAME_CHARS = 128
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
Text = Annotated[str, Meta(max_length=4096)]
RequestId = Annotated[str, Meta(min_length=1, max_length=192)]  # CLIENT/ID-PROMPT, see Submit
MAX_PRIORITY = 100
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
ClientId = Annotated[str, Meta(max_length=64)]
ClientName = Annotated[str, Meta(max_length=64)]
FinishReason = Literal["stop", "length", "cancelled", "error"]
Task = Literal["generate", "embed", "score"]
"""What a request asks of a model, and what an executor takes: tokens, hidden states, or logits of given tokens."""
Pooling = Literal["none", "hidden", "logits"]


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """Base of everything that is sent: immutable, positional, and strict about unknown fields."""
