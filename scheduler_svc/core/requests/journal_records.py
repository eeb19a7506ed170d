"""What the journal says of requests. Pure. `journal_replay.py` reads requests back from it.

A batch has records of the kinds below. Sequences are named by their arrival, which no two ever share. One RequestRecord
introduces a request, and carries the progress that its sequences have made until then: none for a new request, all for
one that is written again so that the older part of the journal can be deleted.

The records are a format of their own: they hold no struct of the wire, and their tags stay what they are when a class
is renamed. A field is added at the end, with a default that says what records without it meant, and `FORMAT_VERSION`
is raised with it. `tests/scheduler/journals/` has a journal of each version, which every later tree has to load.
"""

from array import array
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, Literal

import msgspec

from common import messages as m
from scheduler_svc.core.requests.record_frames import frame
from scheduler_svc.core.step_output import SequenceEnd, StepOutput

FORMAT_VERSION = 1


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of the records."""


class SamplingRecord(Record, frozen=True):
    """How tokens are drawn: the fields of `SamplingParams`, which says what they mean."""

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()


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

    @classmethod
    def of(cls, submit: m.Submit) -> "SubmitRecord":
        """What the journal keeps of a message."""
        values = list(_fields_of(cls)(submit))
        values[cls.__struct_fields__.index("params")] = SamplingRecord(*_fields_of(SamplingRecord)(submit.params))
        return cls(*values)

    def message(self) -> m.Submit:
        """The message again."""
        fields = dict(zip(SubmitRecord.__struct_fields__, _fields_of(SubmitRecord)(self), strict=True))
        params = dict(zip(SamplingRecord.__struct_fields__, _fields_of(SamplingRecord)(self.params), strict=True))
        return m.Submit(**(fields | {"params": m.SamplingParams(**params)}))


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


class Progress(Record, frozen=True):
    """How far a sequence was.

    Attributes:
        token_ids: int32, generated so far.
        model: what computed the last of them.
        num_cached: prompt tokens that the prefix cache held when it was first admitted; None if it never was.
    """

    token_ids: bytes = b""
    model: str = ""
    num_cached: int | None = None
    ending: Ending | None = None


class RequestRecord(Record, frozen=True, tag="accepted"):
    """A request was accepted.

    Attributes:
        arrival: of its first sequence; the others follow it.
        accepted_at: seconds on the journal's timeline (`journal_time.py`).
        submit: the request.
        progress: of each sequence.
        fits: whether there was an executor then that could run the request.
        place: of its first sequence in the order of service; what is fixed at the acceptance stays fixed, whatever a
            later release thinks a priority is worth.
        tokenizer: hash of the tokenizer that its token ids are of (`common/vocabulary.py`); empty if it is not known.
    """

    arrival: int
    accepted_at: float
    submit: SubmitRecord
    progress: tuple[Progress, ...]
    fits: bool = False
    place: int | None = None
    tokenizer: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether all of its sequences have ended."""
        return all(told.ending is not None for told in self.progress)

    @property
    def num_bytes(self) -> int:
        """About how many bytes of the journal the record takes."""
        tokens = sum(len(told.token_ids) for told in self.progress)
        return len(self.submit.prompt) + len(self.submit.context) + tokens


class StepRecord(Record, frozen=True, tag="stepped"):
    """A step gave tokens.

    Attributes:
        model: what computed them.
        arrivals: int64, the sequences that got a token.
        token_ids: int32, one for each.
        positions: int32, how many tokens each sequence had before.
    """

    model: str
    arrivals: bytes
    token_ids: bytes
    positions: bytes

    @classmethod
    def of(cls, output: StepOutput) -> "StepRecord":
        """The tokens of a step."""
        arrivals = array("q", [sequence.arrival for sequence in output.sequences])
        tokens = array("i", output.tokens)
        return cls(output.model, arrivals.tobytes(), tokens.tobytes(), output.positions.tobytes())


class EndRecord(Record, frozen=True, tag="ended"):
    """A sequence ended.

    Attributes:
        num_cached: as in `Progress`.
        num_tokens: that it had generated.
    """

    arrival: int
    num_cached: int | None
    ending: Ending
    num_tokens: int

    @classmethod
    def of(cls, end: SequenceEnd) -> "EndRecord":
        """The end of a sequence."""
        sequence = end.sequence
        return cls(sequence.arrival, sequence.num_cached_prompt, Ending.of(end), sequence.num_output)


class CrashRecord(Record, frozen=True, tag="life"):
    """How many lives of the scheduler in a row, up to this record, ended by a fault of its own."""

    crashes: int


AnyRecord = RequestRecord | StepRecord | EndRecord | CrashRecord

_encoder = msgspec.msgpack.Encoder()


def encode(records: list[AnyRecord]) -> bytes:
    """A batch's payload."""
    return frame([_encoder.encode(record) for record in records])
