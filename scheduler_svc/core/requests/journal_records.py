"""What the journal says of requests. Pure. `journal_replay.py` reads requests back from it.

A batch has records of the kinds below. Sequences are named by their arrival, which no two ever share. One RequestRecord
introduces a request, and carries the progress that its sequences have made until then: none for a new request, all for
one that is written again so that the older part of the journal can be deleted.

The records are a format of their own: they hold no struct of the wire, and their tags stay what they are when a class
is renamed. A field is added at the end, with a default that says what records without it meant; `FORMAT_VERSION` is
raised with it, and `version_of` says which records need it. `tests/server/journals/` has a journal of each version,
which every later tree has to load.
"""

from array import array
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, Literal, TypeVar, cast

import msgspec
import numpy as np

from common import messages as m
from scheduler_svc.core.requests.record_frames import frame
from scheduler_svc.core.step_output import PromptLogprobs, SequenceEnd, StepOutput

FORMAT_VERSION = 7

AnyStruct = TypeVar("AnyStruct", bound=msgspec.Struct)


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of the records."""


class ConstraintsRecord(Record, frozen=True):
    """What was asked of the tokens' scores: the fields of `Constraints`, which says what they mean."""

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias_token_ids: bytes = b""
    biases: bytes = b""
    min_tokens: int = 0
    bad_words: tuple[bytes, ...] = ()
    allowed_token_ids: bytes = b""
    grammar: str = ""


def list_bytes(constraints: ConstraintsRecord | m.Constraints | None) -> int:
    """Bytes of a request's lists of tokens and, about, of its grammar; a list may be as long as the vocabulary."""
    if (asked := constraints) is None:
        return 0
    lists = (asked.bias_token_ids, asked.biases, *asked.bad_words, asked.allowed_token_ids)
    return sum(map(len, lists)) + len(asked.grammar.encode())


class SamplingRecord(Record, frozen=True):
    """How tokens are drawn: the fields of `SamplingParams`, which says what they mean."""

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int = 0
    constraints: ConstraintsRecord | None = None
    prompt_logprobs: int = 0
    pooling: str = "none"
    pooled_token_ids: tuple[int, ...] = ()

    @property
    def task(self) -> m.Task:
        """As `SamplingParams.task`."""
        return m.TASKS[cast("m.Pooling", self.pooling)]

    @classmethod
    def of(cls, params: m.SamplingParams) -> "SamplingRecord":
        """What the journal keeps of them."""
        asked = params.constraints
        constraints = None if asked is None else _same(ConstraintsRecord, ConstraintsRecord, asked)
        return _same(cls, cls, params, constraints=constraints)

    def message(self) -> m.SamplingParams:
        """The message's part again."""
        asked = self.constraints
        constraints = None if asked is None else _same(m.Constraints, ConstraintsRecord, asked)
        return _same(m.SamplingParams, SamplingRecord, self, constraints=constraints)


class SubmitRecord(Record, frozen=True):
    """What was asked for: the fields of `Submit`, which says what they mean."""

    request_id: str
    prompt: bytes
    params: SamplingRecord
    n: int = 1
    stream: bool = True
    cache_salt: str = ""
    priority: int = 0
    timeout_s: float | None = None
    client: str = ""
    client_limit: int = 0
    context: bytes = b""
    is_resumable: bool = False
    may_shorten: bool = False
    client_name: str = ""  # without one, `client` is a name: earlier releases knew no ids
    weight: float = 1.0

    @classmethod
    def of(cls, submit: m.Submit) -> "SubmitRecord":
        """What the journal keeps of a message."""
        return _same(cls, cls, submit, params=SamplingRecord.of(submit.params))

    def message(self) -> m.Submit:
        """The message again."""
        return _same(m.Submit, SubmitRecord, self, params=self.params.message())


def _same(target: type[AnyStruct], kind: type[Record], source: object, **parts: object) -> AnyStruct:
    """A record as a message, or the reverse.

    Args:
        target: the type that it becomes.
        kind: of the record; says which fields there are.
        parts: fields that are structs themselves, as `target` has them.
    """
    fields = dict(zip(kind.__struct_fields__, _fields_of(kind)(source), strict=True))
    return target(**(fields | parts))


@cache
def _fields_of(kind: type[Record]) -> Callable[[object], tuple[Any, ...]]:
    """Takes from a record, or from the message that it is of, what the record has."""
    return attrgetter(*kind.__struct_fields__)


class Ending(Record, frozen=True):
    """How a sequence ended."""

    reason: Literal["stop", "length", "cancelled", "error"]
    error: str = ""
    code: str = ""

    @classmethod
    def of(cls, end: SequenceEnd) -> "Ending":
        """What the journal keeps of an end."""
        return cls(end.reason, end.error, end.code)


def have_ranks(prompt_logprob_ids: bytes | bytearray) -> bool:
    """Whether some of these ids are minus the rank of a prompt's own token, as executors say since version 6."""
    return bool(np.frombuffer(prompt_logprob_ids, "<i4").min(initial=0) < 0)


class Progress(Record, frozen=True):
    """How far a sequence was.

    Attributes:
        token_ids: int32, generated so far.
        model: what computed the last of them.
        num_cached: prompt tokens that the prefix cache held when it was first admitted; None if it never was.
        logprob_ids, logprobs: int32 and float32 [tokens, the request's `logprobs`], as in `StepResult`.
        prompt_logprob_ids, prompt_logprobs: int32 and float32 [covered positions, the request's `prompt_logprobs`].
        has_ranks: whether the ids of some of the prompt's own tokens have given way to minus their ranks.
    """

    token_ids: bytes = b""
    model: str = ""
    num_cached: int | None = None
    ending: Ending | None = None
    logprob_ids: bytes = b""
    logprobs: bytes = b""
    prompt_logprob_ids: bytes = b""
    prompt_logprobs: bytes = b""
    has_ranks: bool = False

    @property
    def num_bytes(self) -> int:
        """About how many bytes of the journal it takes."""
        logprobs = len(self.logprob_ids) + len(self.logprobs)
        return len(self.token_ids) + logprobs + len(self.prompt_logprob_ids) + len(self.prompt_logprobs)


class RequestRecord(Record, frozen=True, tag="accepted"):
    """A request was accepted.

    Attributes:
        arrival: of its first sequence; the others follow it.
        accepted_at: seconds on the journal's timeline (`journal_time.py`).
        submit: the request.
        progress: of each sequence.
        fits: in journals whose LifeRecord knows no executors: whether there was one then that could run the request.
        place: of its first sequence in the order of service; what is fixed at the acceptance stays fixed, whatever a
            later release thinks a priority is worth.
        tokenizer: hash of the tokenizer that its token ids are of (`common/vocabulary.py`); empty if it is not known.
        start, cost: as in `Share`. Without a start, places are of an earlier release, which counted sequences instead
            of tokens.
    """

    arrival: int
    accepted_at: float
    submit: SubmitRecord
    progress: tuple[Progress, ...]
    fits: bool = False
    place: int | None = None
    tokenizer: str = ""
    start: float | None = None
    cost: float = 1.0

    @property
    def has_ended(self) -> bool:
        """Whether all of its sequences have ended."""
        return all(told.ending is not None for told in self.progress)

    @property
    def num_bytes(self) -> int:
        """About how many bytes of the journal the record takes."""
        told = sum(told.num_bytes for told in self.progress)
        asked = list_bytes(self.submit.params.constraints)
        return len(self.submit.prompt) + len(self.submit.context) + asked + told


class StepRecord(Record, frozen=True, tag="stepped"):
    """A step gave tokens.

    Attributes:
        model: what computed them.
        arrivals: int64, the sequences that got a token.
        token_ids: int32, one for each.
        positions: int32, how many tokens each sequence had before.
        logprob_counts: int32, log-probabilities that came with each token; empty if none came with any.
        logprob_ids, logprobs: int32 and float32 [sum of `logprob_counts`], as in `StepResult`.
    """

    model: str
    arrivals: bytes
    token_ids: bytes
    positions: bytes
    logprob_counts: bytes = b""
    logprob_ids: bytes = b""
    logprobs: bytes = b""

    @classmethod
    def of(cls, output: StepOutput) -> "StepRecord":
        """The tokens of a step."""
        arrivals = array("q", [sequence.arrival for sequence in output.sequences])
        tokens = array("i", output.tokens)
        columns = (arrivals.tobytes(), tokens.tobytes(), output.positions.tobytes())
        if (came := output.logprobs) is None:
            return cls(output.model, *columns)
        return cls(output.model, *columns, came.counts.tobytes(), came.ids.tobytes(), came.values.tobytes())


class PromptRecord(Record, frozen=True, tag="prompted"):
    """A step gave log-probabilities of a sequence's prompt.

    Attributes:
        first: the first position whose logits told them.
        logprob_ids, logprobs: int32 and float32 [positions, the request's `prompt_logprobs`], as in `StepResult`.
        model: what computed them.
        has_ranks: as in `Progress`.
    """

    arrival: int
    first: int
    logprob_ids: bytes
    logprobs: bytes
    model: str
    has_ranks: bool = False

    @classmethod
    def of(cls, came: PromptLogprobs, model: str) -> "PromptRecord":
        """What came with a step."""
        return cls(came.sequence.arrival, came.first, came.ids, came.values, model, have_ranks(came.ids))


class EndRecord(Record, frozen=True, tag="ended"):
    """A sequence ended.

    Attributes:
        num_cached: as in `Progress`.
        num_tokens: that it had generated.
        num_covered: positions of its prompt that it had log-probabilities from.
    """

    arrival: int
    num_cached: int | None
    ending: Ending
    num_tokens: int
    num_covered: int = 0

    @classmethod
    def of(cls, end: SequenceEnd) -> "EndRecord":
        """The end of a sequence."""
        sequence, ending = end.sequence, Ending.of(end)
        return cls(sequence.arrival, sequence.num_cached_prompt, ending, sequence.num_output, sequence.num_covered)


class AccountRecord(Record, frozen=True):
    """What one client has asked for: the fields of `SavedAccount`, which says what they mean."""

    client: str
    yields: bool
    finish: float
    mean_output: float
    num_answers: int


class SharesRecord(Record, frozen=True, tag="shares"):
    """How clients share the executors.

    Attributes:
        virtual_time, mean_cost: as `FairShares` has them.
        accounts: those that have changed since the record before, or all.
        is_whole: whether they are all.
    """

    virtual_time: float = 0.0
    mean_cost: float = 0.0
    accounts: tuple[AccountRecord, ...] = ()
    is_whole: bool = True

    @property
    def num_bytes(self) -> int:
        """About how many bytes of the journal it takes."""
        return sum(len(account.client) + 32 for account in self.accounts)


class ExecutorRecord(Record, frozen=True):
    """What an executor can hold: its name, and the fields of `Capacity`, which says what they mean."""

    name: str
    tasks: tuple[str, ...] = ()
    positions: int = 0
    vocabulary: int = 0


class LifeRecord(Record, frozen=True, tag="life"):
    """What a life of the scheduler leaves to the next one beside requests.

    Attributes:
        crashes: how many lives in a row, up to this record, ended by a fault of the scheduler's own.
        executors: those that are there, or may come back; None if nothing is known of them. Added without a version, as
            what follows: a release that does not know them drops them, as it would its own.
        tasks: that executors have taken, also those that have left for good.
    """

    crashes: int
    executors: tuple[ExecutorRecord, ...] | None = None
    tasks: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """About how many bytes of the journal it takes."""
        return sum(len(executor.name) + 32 for executor in self.executors or ())


AnyRecord = RequestRecord | StepRecord | PromptRecord | EndRecord | LifeRecord | SharesRecord

_encoder = msgspec.msgpack.Encoder()


def version_of(record: AnyRecord) -> int:
    """The first version that has all that a record says. An older release would read it, and drop the rest."""
    if isinstance(record, RequestRecord):
        asked = record.submit.params
        needs = (
            (7, record.start is not None),
            (6, any(told.has_ranks for told in record.progress)),
            (5, record.submit.client_name),
            (4, asked.pooling != "none"),
            (3, asked.prompt_logprobs),
            (2, asked.logprobs or asked.constraints is not None),
        )
        return next((version for version, is_needed in needs if is_needed), 1)
    if isinstance(record, SharesRecord):
        return 7
    if isinstance(record, StepRecord):
        return 2 if record.logprob_counts else 1
    if isinstance(record, PromptRecord):
        return 6 if record.has_ranks else 3
    return 3 if isinstance(record, EndRecord) and record.num_covered else 1


def step_records(output: StepOutput) -> list[AnyRecord]:
    """What the journal has to say of a step; log-probabilities of a prompt stand before the first token."""
    prompts = [PromptRecord.of(came, output.model) for came in output.prompt_logprobs]
    return [*prompts, StepRecord.of(output), *map(EndRecord.of, output.ends)]


def encode_one(record: AnyRecord) -> bytes:
    """A record as it stands in a batch."""
    return _encoder.encode(record)


def encode(records: list[AnyRecord]) -> bytes:
    """A batch's payload."""
    return frame([*map(encode_one, records)])
