"""What a frontend and the core say to each other."""

from typing import Annotated

from msgspec import Meta

from common.messages.base import (
    ClientId,
    ClientName,
    Count,
    FinishReason,
    Message,
    Name,
    Priority,
    RequestId,
    Task,
    Text,
)
from common.messages.live import BlockHolders, BlockQuery, Life, LifeQuery, SendViews, View
from common.messages.status import StatusReport
from common.messages.steps import SamplingParams

# --- frontend -> core ---


class FrontendHello(Message, frozen=True, tag="hello"):
    """A frontend that just started; answered by FleetState. Its heartbeats are FrontendHellos too."""

    pid: Count


Tokens = Annotated[int, Meta(ge=0, le=2**53)]
Weight = Annotated[float, Meta(ge=0.01, le=100.0)]


class Charge(Message, frozen=True):
    """The cost of an HTTP request, which its client pays when the core accepts the first prompt.

    Attributes:
        tokens: of all its prompts and of their answers at their longest (`Submit.most_tokens`).
        requests_per_minute, tokens_per_minute: limits of the API key that it came with, 0 for none
            (`rate_limit_exceeded` beyond).
    """

    tokens: Tokens
    requests_per_minute: Count = 0
    tokens_per_minute: Count = 0

    @property
    def is_limited(self) -> bool:
        """Whether the API key has limits of a minute. The core then answers with RateLimits."""
        return bool(self.requests_per_minute or self.tokens_per_minute)


class Submit(Message, frozen=True, tag="submit"):
    """A request with its prompt as token ids. Answered by Accepted, if it streams, and by Outputs that end with one
    terminal delta a sequence.

    Attributes:
        request_id: `ID-PROMPT`, the HTTP answer's id and the prompt's number in it; with API keys `CLIENT/ID-PROMPT`,
            so that no client can name another's requests.
        prompt: int32 [tokens].
        n: sequences to generate; 1 with `SamplingParams.pooling`.
        stream: False holds the tokens back until a sequence ends.
        cache_salt: requests share cached blocks only with requests of the same salt.
        priority: lower values go earlier: each step is worth a place in the queue some sequences further ahead.
        timeout_s: seconds after which what has not ended ends with an error (`deadline_exceeded`); None for never.
        client: id of the API key it came with, empty without keys.
        client_limit: sequences that this client may have open at once, 0 for no limit (`too_many_requests` beyond).
        context: what the frontend that answers it needs to know (format, stop strings); the core only keeps it, for
            `Attached`.
        is_resumable: whether its client may come back for it when the connection breaks, or the scheduler restarts.
        may_shorten: whether `max_tokens` is only as much as may fit, because the client asked for no number: then less
            is given where an executor's pool holds less.
        client_name: of the API key, for people.
        charge: what its HTTP request is counted as; None if it is not the first prompt of that. Its frontend sends the
            other prompts once this one is accepted.
        weight: of its client's share, where clients compete: one of weight 2 gets twice what one of weight 1 does.
        address: network that it came from, where there are no keys: who shares it shares one share. Only the core's
            memory has it, as a keyed hash.
    """

    request_id: RequestId
    prompt: bytes
    params: SamplingParams
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    stream: bool = True
    cache_salt: Annotated[str, Meta(max_length=384)] = ""
    priority: Priority = 0
    timeout_s: Annotated[float, Meta(gt=0.0, le=1e9)] | None = None
    client: ClientId = ""
    client_limit: Count = 0
    context: Annotated[bytes, Meta(max_length=2**20)] = b""
    is_resumable: bool = False
    may_shorten: bool = False
    client_name: ClientName = ""
    charge: Charge | None = None
    weight: Weight = 1.0
    address: Annotated[str, Meta(max_length=64)] = ""

    @property
    def most_tokens(self) -> int:
        """Tokens of its prompt, and of its answers if they have `max_tokens` each."""
        num_prompt = len(self.prompt) // 4
        return num_prompt if self.params.pooling != "none" else num_prompt + self.n * self.params.max_tokens


class Revoke(Message, frozen=True, tag="revoke"):
    """The key of a client was revoked: end all that it has open with an error (`invalid_api_key`)."""

    client: Annotated[str, Meta(min_length=1, max_length=64)]


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


MAX_COUNTS_A_MESSAGE = 512
Label = Annotated[str, Meta(max_length=64)]


class HttpCount(Message, frozen=True):
    """HTTP answers of one endpoint with one status."""

    path: Label
    status: Annotated[int, Meta(ge=100, le=599)]
    count: Count


class NamedCount(Message, frozen=True):
    """What happened so often."""

    name: Label
    count: Count


class FrontendCounts(Message, frozen=True, tag="counts"):
    """What a frontend has counted since its last FrontendCounts; the core adds it up, as a scrape reaches any frontend.

    Attributes:
        http: answers, by endpoint and status.
        refused: requests that the frontend itself refused, by code; the core counts those that it refused.
        ignored: fields of requests that were ignored, by their place in the body.
    """

    http: Annotated[tuple[HttpCount, ...], Meta(max_length=MAX_COUNTS_A_MESSAGE)] = ()
    refused: Annotated[tuple[NamedCount, ...], Meta(max_length=MAX_COUNTS_A_MESSAGE)] = ()
    ignored: Annotated[tuple[NamedCount, ...], Meta(max_length=MAX_COUNTS_A_MESSAGE)] = ()


FrontendToCore = (
    FrontendHello
    | Submit
    | Revoke
    | Attach
    | Detach
    | Cancel
    | StatusQuery
    | MetricsQuery
    | DrainExecutor
    | FrontendCounts
    | LifeQuery
    | BlockQuery
    | SendViews
)


# --- core -> frontend ---


class TaskState(Message, frozen=True):
    """The executors that take one task.

    Attributes:
        num_ready: those that take plans now.
        max_model_len: positions that a sequence of the task may have.
    """

    task: Task
    num_ready: Count
    max_model_len: Count


class FleetState(Message, frozen=True, tag="fleet"):
    """Sent as the answer to FrontendHello and whenever it changes.

    Attributes:
        num_ready: executors that take plans now and generate.
        fingerprint: model fingerprint of the newest executor that generates, empty before the first.
        max_model_len: positions a sequence may have that generates.
        tasks: one for each task that an executor has taken, or may yet take, in the order of `Task`; `max_model_len` is
            0 where none has taken it since the scheduler's start.
        max_waiting: sequences of each task that may wait; 0 while that is not known.
    """

    num_ready: Count
    fingerprint: Annotated[str, Meta(max_length=128)]
    max_model_len: Count
    tasks: Annotated[tuple[TaskState, ...], Meta(max_length=3)] = ()
    max_waiting: Count = 0


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
        logprob_ids, logprobs: int32 and float32 [tokens, the request's `SamplingParams.logprobs`], as in `StepResult`.
        prompt_logprob_ids, prompt_logprobs: int32 and float32 [prompt tokens, `SamplingParams.prompt_logprobs`], those
            that are new since the last delta. Only sequence 0 has any: of all prompt tokens but the first, in their
            order and before the first generated token. From a journal of version 5 or before, the token's own id is in
            the place of minus its rank.
        pooled: float32, the request's pooled result (`SamplingParams.pooling`): in the one delta that ends it with
            `stop`, which has no tokens.
        retry_after_s: as in RequestRejected, of a refused Submit.
    """

    request_id: RequestId
    index: Count
    token_ids: bytes
    finish_reason: FinishReason | None = None
    error: Text = ""
    code: Annotated[str, Meta(max_length=64)] = ""
    num_cached_tokens: Count = 0
    model: Annotated[str, Meta(max_length=300)] = ""
    logprob_ids: bytes = b""
    logprobs: bytes = b""
    prompt_logprob_ids: bytes = b""
    prompt_logprobs: bytes = b""
    pooled: bytes = b""
    retry_after_s: Count = 0


class Outputs(Message, frozen=True, tag="outputs"):
    """What a step gave to one frontend's requests. A refused Submit is answered by one delta (index 0, error).

    Attributes:
        number: counts the Outputs of this connection from 0, so that one that is lost is noticed.
    """

    number: Count
    deltas: tuple[TokenDelta, ...]


MAX_ACCEPTED_A_MESSAGE = 1024


class Accepted(Message, frozen=True, tag="accepted"):
    """The core has accepted these Submits, and its journal, if it works, has them. Before any of their deltas.

    Only requests with `stream` are told of. Neither a request that was refused, nor one that its reader's frontend came
    to by Attach, is told of: one delta and Attached tell that.
    """

    request_ids: Annotated[tuple[RequestId, ...], Meta(max_length=MAX_ACCEPTED_A_MESSAGE)]


class Rate(Message, frozen=True):
    """A client's limit of a minute.

    Attributes:
        remaining: that it may ask for now.
        reset_s: seconds until it may ask for all again, if it asks for nothing before.
    """

    limit: Count
    remaining: Count
    reset_s: Annotated[float, Meta(ge=0.0)]


class RateLimits(Message, frozen=True, tag="rates"):
    """What a client has left of its limits: answer to each Submit with a Charge that has some, before anything else of
    it. If it was refused, why follows.

    Attributes:
        requests, tokens: None without a limit.
    """

    request_id: RequestId
    is_accepted: bool
    requests: Rate | None = None
    tokens: Rate | None = None


class Attached(Message, frozen=True, tag="attached"):
    """Answer to Attach. The request's deltas follow in Outputs, from its first token on.

    Attributes:
        found: False if the request is not known (any more): it never was accepted, or ended too long ago.
        prompt, n, context: as in its Submit.
    """

    request_id: RequestId
    found: bool
    prompt: bytes = b""
    n: Count = 0
    context: Annotated[bytes, Meta(max_length=2**20)] = b""


class DrainReply(Message, frozen=True, tag="drain"):
    """Answer to DrainExecutor: the epoch that leaves, or why none does (then epoch is 0)."""

    query_id: Count
    epoch: Annotated[int, Meta(ge=0, le=2**53)]
    refusal: Text = ""


class Status(Message, frozen=True, tag="status"):
    """Answer to StatusQuery."""

    query_id: Count
    report: StatusReport


class Metrics(Message, frozen=True, tag="metrics"):
    """Answer to MetricsQuery: the core's metrics in Prometheus' text format."""

    query_id: Count
    text: bytes


CoreToFrontend = (
    FleetState | Accepted | RateLimits | Outputs | Attached | Status | Metrics | DrainReply | Life | BlockHolders | View
)
