"""A sequence's blocks, and what it is granted of them. Pure."""

from array import array
from dataclasses import dataclass, field

from scheduler_svc.core.sequence import Tail

TOKEN_BYTES = 4


@dataclass(slots=True, eq=False)
class BlockTable:
    """A running sequence's blocks.

    Attributes:
        ids: int32 array, block ids in order of position; ceil(computed tokens / block_size) of them.
        num_published: leading blocks that stand in the prefix cache's index.
        is_stuck: nothing from the next block on is published, nor hit: its key is taken by other content, or the
            sequence is computed without the prefix cache.
        salt: of the sequence's request; part of the first block's content.
        tail: what the sequence left here when it ran here last, as far as it has not been taken back.
    """

    salt: bytes = b""
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    num_published: int = 0
    is_stuck: bool = False
    tail: Tail | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """What `reserve` gave: everything a plan's row needs to know about the sequence.

    Attributes:
        start: position of the first token to compute.
        count: tokens to compute.
        store_from: positions below it are in the cache already and must not be written. Such a position is computed
            only for its logits: the last one of a full-prompt hit, and those that say how likely the prompt is.
        num_hits: blocks that came from the prefix cache.
        num_new: blocks that were allocated.
        num_own: blocks of its own tail.
    """

    start: int
    count: int
    store_from: int
    num_hits: int
    num_new: int
    num_own: int = 0
