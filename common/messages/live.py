"""What pages, traces and `baton status` are told of the service while it runs.

Structs that pages read are maps in JSON, as the status is: a field more breaks no reader. Times are the core's clock,
in seconds; `View.at` says its now.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.messages.base import ClientName, Count, Epoch, Message, RequestId
from common.messages.status import EventFacts, StatusReport, WaitReason

BLOCK_FACTOR = 8  # a change of a block is told as `BLOCK_FACTOR * block + state`
BLOCK_STATES = ("free", "cached", "in_use", "shared")
"""What a block is: the index is its number in `BlockChanges`. A cached one is free, and what is in it can be hit or
taken up again; a shared one stands in several tables."""

MarkKind = Literal[
    "queued", "restored", "admitted", "prefill", "first_token", "preempted", "lost", "left", "resumed", "ended"
]


class FleetEvent(EventFacts, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An event as pages are told it; `number` counts all events of the scheduler's life."""

    number: int
    at: float


class WaitingSequence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One that waits for an executor.

    Attributes:
        request: the core's id of its request.
        index: which of the request's sequences it is.
        tokens: that it has, its prompt's and those generated.
        output: those generated: more than 0 if it ran before.
        since: when it began to wait.
    """

    request: RequestId
    index: int
    client: ClientName
    tokens: int
    output: int
    priority: int
    since: float
    reason: WaitReason


class RunningSequence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One that an executor has. What changes with each step is not told: `Life` has it.

    Attributes:
        request, index: as in `WaitingSequence`.
        since: when it was admitted there.
    """

    request: RequestId
    index: int
    client: ClientName
    epoch: int
    since: float


class HistorySample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One second of the service; rates are those of `StatusReport`.

    Attributes:
        hit_rate: part of the prompt tokens of the last ten seconds that the prefix cache had; -1 if there were none.
    """

    at: float
    output_tokens_per_s: float
    prefill_tokens_per_s: float
    hit_rate: float
    running: int
    waiting: int


class BlockChanges(Message, frozen=True):
    """Blocks of an executor whose state is to be told; every block begins as free.

    Attributes:
        changed: those that may have changed since the last View: int32, `BLOCK_FACTOR * block + state` each. The state
            is its index in BLOCK_STATES.
        found: likewise, those that a walk over all blocks has come to, but for the free ones.
    """

    epoch: Epoch
    changed: bytes
    found: bytes = b""


MAX_SHOWN = 256  # sequences that wait, and that run, in a View


class View(Message, frozen=True, tag="view"):
    """What has changed since the last View, to frontends that have sent a SendViews. Absent parts have not changed.

    Attributes:
        number: counts Views; after a gap a frontend asks for a fresh one.
        is_fresh: whether all is told from the beginning. The maps of blocks may come with this View and several more.
        at: the core's time now.
        waiting: the first MAX_SHOWN of the queue, in its order.
        running: MAX_SHOWN at most, the newest of each executor if there are more.
        events: new ones.
        history: new seconds, the oldest first; one that is like the second before it is left out.
    """

    number: Count
    is_fresh: bool
    at: float
    report: StatusReport | None = None
    waiting: tuple[WaitingSequence, ...] | None = None
    running: tuple[RunningSequence, ...] | None = None
    events: tuple[FleetEvent, ...] = ()
    history: tuple[HistorySample, ...] = ()
    blocks: tuple[BlockChanges, ...] = ()


class Mark(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A moment in a sequence's life.

    Attributes:
        what: `queued` (it came), `restored` (from the journal), `admitted` (an executor has it), `prefill` (a plan
            computes `tokens` of its known tokens), `first_token` (has come), `preempted` (an older sequence took its
            blocks), `lost` and `left` (its executor failed, or was told to go, `cause` says how), `resumed` (its first
            token after it waited again has come), `ended` (`cause` is the finish reason).
        executor, epoch: where.
        tokens: of `queued`: the prompt's; of `restored` and `ended`: those generated; of `admitted`: all that it has.
        cached: of `admitted`: known tokens whose K and V were there already.
    """

    at: float
    what: MarkKind
    executor: str = ""
    epoch: int = 0
    tokens: int = 0
    cached: int = 0
    cause: str = ""


class SequenceLife(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a sequence so far.

    Attributes:
        marks: in order of time.
        num_left_out: marks in the middle that are not kept, of a life with very many.
        output: tokens generated so far.
    """

    index: int
    marks: list[Mark]
    num_left_out: int
    output: int


class LifeQuery(Message, frozen=True, tag="life_query"):
    """Asks for the Life of a request with the same query_id."""

    query_id: Count
    request_id: RequestId


class Life(Message, frozen=True, tag="life"):
    """Answer to LifeQuery.

    Attributes:
        at: the core's time now.
        sequences: empty if the request is not known, or ended too long ago.
    """

    query_id: Count
    at: float
    sequences: tuple[SequenceLife, ...] = ()


class BlockQuery(Message, frozen=True, tag="block_query"):
    """Asks which sequences have a block of an executor's pool now."""

    query_id: Count
    epoch: Epoch
    block: Count


class BlockHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence that has a block, and all of its blocks in order of position."""

    request: RequestId
    index: int
    client: ClientName
    blocks: list[int]


class BlockHolders(Message, frozen=True, tag="block_holders"):
    """Answer to BlockQuery: the first few that have it; none if there is no such block or executor either."""

    query_id: Count
    holders: tuple[BlockHolder, ...] = ()


class SendViews(Message, frozen=True, tag="send_views"):
    """Send this frontend Views for the next `WATCH_S` seconds.

    Attributes:
        interval_s: between two of them at least.
        is_fresh: whether it needs all from the beginning.
    """

    interval_s: Annotated[float, Meta(ge=0.0, le=3600.0)]
    is_fresh: bool


WATCH_S = 3.0
MIN_VIEW_INTERVAL_S = 0.25
