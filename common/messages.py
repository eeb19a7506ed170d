"""Every message that crosses a socket, one tagged union for each direction.

Arrays travel as `bytes` in little-endian order: int32 unless a field says otherwise. Structs are encoded as
msgpack arrays, `[tag, field, ...]`, in the order written here, so **appending or reordering a field changes the
protocol**: raise `PROTOCOL_VERSION` with it. Types and ranges are checked while decoding (msgspec); what one
field says about another is checked in `common.plan`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PROTOCOL_VERSION = 2

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Epoch = Annotated[int, Meta(ge=1, le=2**53)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Text = Annotated[str, Meta(max_length=4096)]
RequestId = Annotated[str, Meta(min_length=1, max_length=192)]  # CLIENT/ID-PROMPT, see Submit
ClientName = Annotated[str, Meta(max_length=64)]
FinishReason = Literal["stop", "length", "cancelled", "error"]


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True, kw_only=True):
    """Base of everything that is sent: immutable, positional, and strict about unknown fields."""


# --- executor -> scheduler ---


class Hello(Message, frozen=True, tag="hello"):
    """An executor that can take a plan at once: weights loaded, kernels warm. Answered by Welcome or Reject.

    Attributes:
        executor: name for operators (`--name`, or host and pid). Better unique, and the same after a restart: what was
            learned of an executor (how long its steps take, that it only fails) is kept by its name.
        build: Baton's version on that side.
        fingerprint: hash of the model's config and weights; equal fingerprints give equal tokens.
        dtype: of activations and KV cache (`float32`, `bfloat16`, `float16`), and of quantized weights after that
            (`bfloat16-int8`); executors of another dtype give other tokens.
        device: for people (`cpu`, `cuda:0 NVIDIA H200`).
        num_blocks, block_size: the KV pool; block ids run from 0 to num_blocks - 1.
        max_num_seqs: lanes; at most this many rows in a plan.
        max_batch_tokens: at most this many tokens in a plan.
        max_model_len: at most this many positions in a sequence.
        vocab_size: token ids run from 0 to vocab_size - 1.
        pid: process id on its host.
    """

    executor: Name
    build: Name
    fingerprint: Name
    dtype: Name
    device: Name
    num_blocks: Positive
    block_size: Positive
    max_num_seqs: Positive
    max_batch_tokens: Positive
    max_model_len: Positive
    vocab_size: Positive
    pid: Count


class ExecutorHeartbeat(Message, frozen=True, tag="alive"):
    """Sent every `HEARTBEAT_INTERVAL_S`, by a thread of its own: it says the process lives, not that it is idle."""

    epoch: Epoch


class StepResult(Message, frozen=True, tag="result"):
    """What one plan gave.

    Attributes:
        token_ids: int32, one for each entry of the plan's `sample_rows`, in that order.
        compute_us: microseconds from the plan's arrival in the runner to its tokens.
    """

    epoch: Epoch
    step: Step
    token_ids: bytes
    compute_us: Count


class StepFailed(Message, frozen=True, tag="failed"):
    """A plan could not be run (out of memory, a kernel error). It ends the epoch; the executor says Hello again."""

    epoch: Epoch
    step: Step
    error: Text


class Leaving(Message, frozen=True, tag="leaving"):
    """The executor was told to stop (SIGTERM): no new plans, please, and EpochOver once its sequences are moved."""

    epoch: Epoch


# --- scheduler -> executor ---


class Welcome(Message, frozen=True, tag="welcome"):
    """The executor is part of the fleet; everything it says from now on carries this epoch."""

    epoch: Epoch


class Reject(Message, frozen=True, tag="reject"):
    """The executor cannot join. `reason` says what differs; trying again without a change is pointless."""

    reason: Text


class SchedulerHeartbeat(Message, frozen=True, tag="beat"):
    """Sent every `HEARTBEAT_INTERVAL_S`; an executor that hears none for `LOSS_TIMEOUT_S` says Hello afresh."""

    epoch: Epoch


class EpochOver(Message, frozen=True, tag="over"):
    """This epoch has ended for the scheduler (lost, drained, restarted): drop its plans, say Hello if you stay."""

    epoch: Epoch
    reason: Text


class Leave(Message, frozen=True, tag="leave"):
    """An operator wants this executor to end, as SIGTERM does: it answers with Leaving, and exits with code 0."""

    epoch: Epoch


class Plan(Message, frozen=True, tag="plan"):
    """One step for one executor; self-contained, so the executor remembers no sequence between plans.

    Row `r` computes `query_lens[r]` tokens that end at position `context_lens[r] - 1` and attends to positions
    `0 .. context_lens[r] - 1` of its block table. Rows are ragged in `token_ids`, `slot_mapping` and `block_ids`.

    Attributes:
        lanes: int32 [rows], distinct; index of the row in the executor's last-token buffer.
        query_lens, context_lens: int32 [rows], `1 <= query_lens <= context_lens`.
        token_ids: int32 [tokens]; -1 (only in a row of one token) reads the lane's last sampled token.
        slot_mapping: int32 [tokens], where each token's K and V go, or -1 if that position is cached already.
        block_counts: int32 [rows], entries of each row's table, `ceil(context_len / block_size)`.
        block_ids: int32 [sum(block_counts)].
        sample_rows: int32 [samples], ascending; rows whose last position is sampled. The token goes into the
            result and into the row's lane.
        temperatures, top_ps, min_ps: float32 [samples]; top_ks: int32 [samples], 0 turns it off; seeds: uint64
            [samples]. All five are empty when every sample is greedy (temperature 0).
    """

    epoch: Epoch
    step: Step
    lanes: bytes
    query_lens: bytes
    context_lens: bytes
    token_ids: bytes
    slot_mapping: bytes
    block_counts: bytes
    block_ids: bytes
    sample_rows: bytes
    temperatures: bytes = b""
    top_ks: bytes = b""
    top_ps: bytes = b""
    min_ps: bytes = b""
    seeds: bytes = b""


# --- frontend -> core ---


class SamplingParams(Message, frozen=True):
    """How tokens are drawn. Filters apply in the order temperature, top_k, top_p, min_p.

    Attributes:
        max_tokens: tokens to generate at most.
        temperature: 0 is greedy.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set of likeliest tokens whose probability reaches top_p; 1 keeps all.
        min_p: drop tokens less likely than min_p times the likeliest; 0 keeps all.
        seed: of the draw; sequence i of a request draws with `seed + i` (mod 2**64).
        stop_token_ids: the sequence ends with the first of these (the frontend puts the model's EOS here).
    """

    max_tokens: Positive
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    top_k: Count = 0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    stop_token_ids: Annotated[tuple[Count, ...], Meta(max_length=256)] = ()


class FrontendHello(Message, frozen=True, tag="hello"):
    """A frontend that just started; answered by FleetState. Its heartbeats are FrontendHellos too."""

    pid: Count


class Submit(Message, frozen=True, tag="submit"):
    """A request with its prompt as token ids. Answered by Outputs that end with one terminal delta a sequence.

    Attributes:
        request_id: `ID-PROMPT`, the HTTP answer's id and the prompt's number in it; with API keys `CLIENT/ID-PROMPT`,
            so that nobody can name another's.
        prompt: int32 [tokens].
        n: sequences to generate.
        stream: False holds the tokens back until a sequence ends.
        cache_salt: requests share cached blocks only with requests of the same salt.
        priority: lower values go first; equal ones in the order of arrival.
        timeout_s: seconds after which what has not ended ends with an error (`deadline_exceeded`); None for never.
        client: name of the API key it came with, empty without keys.
        client_limit: requests that this client may have open at once, 0 for no limit (`too_many_requests` beyond).
        context: what the frontend that answers it needs to know (format, stop strings); the core only keeps it, for
            `Attached`.
    """

    request_id: RequestId
    prompt: bytes
    params: SamplingParams
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    stream: bool = True
    cache_salt: Annotated[str, Meta(max_length=256)] = ""
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    timeout_s: Annotated[float, Meta(gt=0.0, le=1e9)] | None = None
    client: ClientName = ""
    client_limit: Count = 0
    context: Annotated[bytes, Meta(max_length=2**20)] = b""


class Attach(Message, frozen=True, tag="attach"):
    """Continue a request here, from its first token: its client has come back, to this frontend. Answered by Attached;
    a frontend that had it before hears no more of it."""

    request_id: RequestId


class Detach(Message, frozen=True, tag="detach"):
    """The connection to the client of a request broke, and it may come back: go on, and cancel what has not been
    attached again within the reconnect grace."""

    request_id: RequestId


class Cancel(Message, frozen=True, tag="cancel"):
    """End sequence `index` of a request, or all of them (-1). Unknown or ended ones are ignored."""

    request_id: RequestId
    index: Annotated[int, Meta(ge=-1, le=127)] = -1


class StatusQuery(Message, frozen=True, tag="status"):
    """Asks for a Status with the same query_id."""

    query_id: Count


class MetricsQuery(Message, frozen=True, tag="metrics"):
    """Asks for a Metrics with the same query_id."""

    query_id: Count


class DrainExecutor(Message, frozen=True, tag="drain"):
    """Let an executor leave. Answered by a DrainReply at once; that it has left, Status shows.

    Attributes:
        executor: its name, or its epoch in decimal.
        finish: True lets its sequences end there, False hands them over at the next step boundary.
    """

    query_id: Count
    executor: Name
    finish: bool = False


# --- core -> frontend ---


class FleetState(Message, frozen=True, tag="fleet"):
    """Sent as the answer to FrontendHello and whenever it changes.

    Attributes:
        num_ready: executors that take plans now.
        fingerprint: model fingerprint of the newest executor, empty before the first.
        max_model_len: positions a sequence may have.
    """

    num_ready: Count
    fingerprint: Annotated[str, Meta(max_length=128)]
    max_model_len: Count


class TokenDelta(Message, frozen=True):
    """New tokens of one sequence, and how it ended if it did.

    Attributes:
        token_ids: int32, new since the last delta; includes the stop token that ended the sequence.
        finish_reason: None while it goes on.
        error: says why when finish_reason is `error`.
        code: RequestRejected's code then; `internal_error` for what is not the request's fault.
        num_cached_tokens: prompt tokens whose K and V came from the prefix cache when it was first admitted.
        model: what computed these tokens (`model_of` in the core's `fleet.py`), where that is another than
            for the last delta; empty where it is the same.
    """

    request_id: RequestId
    index: Count
    token_ids: bytes
    finish_reason: FinishReason | None = None
    error: Text = ""
    code: Annotated[str, Meta(max_length=64)] = ""
    num_cached_tokens: Count = 0
    model: Annotated[str, Meta(max_length=300)] = ""


class Outputs(Message, frozen=True, tag="outputs"):
    """What a step gave to one frontend's requests. A refused Submit is answered by one delta (index 0, error)."""

    deltas: tuple[TokenDelta, ...]


class Attached(Message, frozen=True, tag="attached"):
    """Answer to Attach. The request's deltas follow in Outputs, from its first token on.

    Attributes:
        found: False if the request is not known (any more): it never was accepted, or ended too long ago.
        num_prompt_tokens, n, context: as in its Submit.
    """

    request_id: RequestId
    found: bool
    num_prompt_tokens: Count = 0
    n: Count = 0
    context: Annotated[bytes, Meta(max_length=2**20)] = b""


class DrainReply(Message, frozen=True, tag="drain"):
    """Answer to DrainExecutor: the epoch that leaves, or why none does (then epoch is 0)."""

    query_id: Count
    epoch: Annotated[int, Meta(ge=0, le=2**53)]
    refusal: Text = ""


class ExecutorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One executor as `baton status` shows it. `state` is `ready`, `finishing` (takes nothing new) or `draining`."""

    executor: str
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


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole service as `GET /status` shows it. Rates are over the last ten seconds.

    Attributes:
        journal: `off`, `ok`, or `failed` (requests accepted now would not survive the scheduler's end).
        journal_lag_s: age of the oldest thing that is not on disk yet.
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
    journal: str
    journal_lag_s: float
    output_tokens_per_s: float
    prefill_tokens_per_s: float
    executors: list[ExecutorStatus]


class Status(Message, frozen=True, tag="status"):
    """Answer to StatusQuery."""

    query_id: Count
    report: StatusReport


class Metrics(Message, frozen=True, tag="metrics"):
    """Answer to MetricsQuery: the core's metrics in Prometheus' text format."""

    query_id: Count
    text: bytes


ExecutorToScheduler = Hello | ExecutorHeartbeat | StepResult | StepFailed | Leaving
SchedulerToExecutor = Welcome | Reject | SchedulerHeartbeat | EpochOver | Leave | Plan
FrontendToCore = FrontendHello | Submit | Attach | Detach | Cancel | StatusQuery | MetricsQuery | DrainExecutor
CoreToFrontend = FleetState | Outputs | Attached | Status | Metrics | DrainReply
