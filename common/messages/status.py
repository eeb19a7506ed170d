"""The whole service as `GET /status` shows it: maps in JSON, so that a field more breaks no reader."""

from typing import Literal

import msgspec

WaitReason = Literal["no_executor", "pool", "landing", "alone", "share", "lanes", "memory", "yields", "turn"]
"""What a sequence waits for: an executor that can take it; the next executor of the pool that it left much in; its own
tokens in flight; that it, or one before it, runs alone after failures; others that came later and go first, as their
clients have had less; a lane; memory; prompts of others, to which it yields; nothing but its turn in one of the next
plans."""


EventKind = Literal[
    "joined",
    "rejected",
    "finishing",
    "draining",
    "left",
    "lost",
    "preempted",
    "restored",
    "journal_failed",
    "journal_ok",
]
"""What happens to the fleet, and to the service's journal (`FleetEvent`)."""


class EventFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Something that an operator would want to have seen.

    Attributes:
        executor, epoch: where it happened; empty and 0 for what concerns no executor.
        cause: of `left` and `lost`, as in the metric `baton_executor_epochs_ended_total`.
        reason: for people; says all that the cause says.
        sequences: that moved (`left`, `lost`), were preempted, or came back from the journal.
        blocks_cached: of `joined`: blocks of a kept pool whose content counts on; 0 for a new one.
    """

    kind: EventKind
    executor: str = ""
    epoch: int = 0
    cause: str = ""
    reason: str = ""
    sequences: int = 0
    blocks_cached: int = 0


class PastEvent(EventFacts, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An event so many seconds ago."""

    age_s: float


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of the last five minutes, in seconds; interpolated within a histogram's buckets.

    Attributes:
        count: how many there were.
    """

    count: int
    p50: float
    p90: float
    p99: float


class ExecutorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One executor as `baton status` shows it.

    Attributes:
        state: `ready`, `finishing` (takes nothing new) or `draining`.
        node: the machine that it runs on, as a cluster calls it; empty if none was said.
        keeps_pool: whether its KV memory outlives its process.
        has_standby: whether another process waits to continue that.
        tasks: that it takes: `generate`, `embed`, `score`.
    """

    executor: str
    node: str
    epoch: int
    state: str
    build: str
    device: str
    dtype: str
    fingerprint: str
    pid: int
    uptime_s: float
    num_blocks: int
    block_size: int
    free_blocks: int
    cached_blocks: int
    running: int
    max_num_seqs: int
    steps: int
    step_ms: float
    keeps_pool: bool
    has_standby: bool
    tasks: list[str] = []


class ScaleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How many executors the service wants. Whoever starts and ends executors carries that out.

    Attributes:
        wanted: executors.
        forecast_ttft_s: seconds to the first token of a request that arrives now; 3,600 for all that is longer.
        reason: in one word why that many are wanted (`Decision` in `core/autoscaling/autoscaler.py`).
        drain_first: names of the executors that take sequences, in the order in which to drain them if fewer are
            wanted.
    """

    wanted: int
    forecast_ttft_s: float
    reason: str
    drain_first: list[str]


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How full the store is, and what it has to do; read every second.

    Attributes:
        bytes_on_disk: of its file, its log and damaged files that were kept.
        free_bytes, disk_bytes: of the disk that it is on.
        clients: bytes that count for the fullest API keys, by name, at most 64; `other` for those of all further ones,
            and of keys that are gone. Without keys everything has the name "".
        limit_bytes: that each key may have; 0 for no limit.
        open_batches, open_responses: that have not ended, of all keys; responses in the background.
        worker: that computes them: `idle` until there is something to do, `running`, or `down` (it is started again).
    """

    bytes_on_disk: int
    free_bytes: int
    disk_bytes: int
    clients: dict[str, int]
    limit_bytes: int
    open_batches: int
    open_responses: int
    worker: Literal["idle", "running", "down"] = "idle"


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole service as `GET /status` shows it. Rates are over the last ten seconds.

    Attributes:
        journal: `off`, `ok`, or `failed` (requests accepted now would not survive the scheduler's end).
        journal_lag_s: age of the oldest thing that is not on disk yet.
        first_token, between_tokens: submit to first token, and a sequence's token to its next one; None if there was
            none of these in the last five minutes.
        waits_for: what the first in the queue waits for; empty if none waits.
        keys_unreadable: why the keys of `clients` or of `executors` cannot be read: those of before stay.
        events: the last few, the newest last.
        pauses_s: for each of the last epochs that ended the longest time that a stream of its sequences was without a
            token, once all of them have gone on or ended; 0 if none had a token.
        scale: None without `--max-executors`, and in the first seconds, while executors come back that an earlier life
            of the scheduler had: then nothing is to be started or ended.
        store: None where there is none, in the first second, and while it cannot be read.
        store_unreadable: why the store cannot be read; empty if it can.
    """

    version: str
    model: str
    uptime_s: float
    waiting: int
    running: int
    requests_finished: int
    requests_failed: int
    preemptions: int
    executors_lost: int
    messages_dropped: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    recomputed_tokens: int
    sequences_resumed: int
    pools_adopted: int
    journal: str
    journal_lag_s: float
    output_tokens_per_s: float
    prefill_tokens_per_s: float
    executors: list[ExecutorStatus]
    scale: ScaleStatus | None = None
    first_token: Percentiles | None = None
    between_tokens: Percentiles | None = None
    waits_for: WaitReason | Literal[""] = ""
    keys_unreadable: dict[str, str] = {}
    events: list[PastEvent] = []
    pauses_s: dict[int, float] = {}
    store: StoreStatus | None = None
    store_unreadable: str = ""
