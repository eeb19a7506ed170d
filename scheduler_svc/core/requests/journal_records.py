"""What the journal says of requests, and how requests are read back from it. Pure.

A batch is a msgpack list of records. Sequences are named by their arrival, which no two ever share. One RequestRecord
introduces a request, and carries the progress that its sequences have made until then: none for a new request, all for
one that is written again so that the older part of the journal can be deleted.

The tags are the journal's format: they stay what they are when a class is renamed.
"""

from array import array
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from common import messages as m
from common.errors import BatonError
from common.messages import FinishReason
from scheduler_svc.core.step_output import SequenceEnd, StepOutput


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of the records."""


class Ending(Record, frozen=True):
    """How a sequence ended."""

    reason: FinishReason
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
        accepted_at: wall-clock time, seconds since 1970.
        submit: the request.
        progress: of each sequence.
        fits: whether there was an executor then that could run the request.
        place: of its first sequence in the order of service; what is fixed at the acceptance stays fixed, whatever a
            later release thinks a priority is worth.
    """

    arrival: int
    accepted_at: float
    submit: m.Submit
    progress: tuple[Progress, ...]
    fits: bool = False
    place: int | None = None

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
    """

    model: str
    arrivals: bytes
    token_ids: bytes

    @classmethod
    def of(cls, output: StepOutput) -> "StepRecord":
        """The tokens of a step."""
        arrivals = array("q", [sequence.arrival for sequence in output.sequences])
        return cls(output.model, arrivals.tobytes(), array("i", output.tokens).tobytes())


class EndRecord(Record, frozen=True, tag="ended"):
    """A sequence ended."""

    arrival: int
    num_cached: int | None
    ending: Ending

    @classmethod
    def of(cls, end: SequenceEnd) -> "EndRecord":
        """The end of a sequence."""
        return cls(end.sequence.arrival, end.sequence.num_cached_prompt, Ending.of(end))


class CrashRecord(Record, frozen=True, tag="life"):
    """How many lives of the scheduler in a row, up to this record, ended by a fault of its own."""

    crashes: int


AnyRecord = RequestRecord | StepRecord | EndRecord | CrashRecord

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[AnyRecord]] = msgspec.msgpack.Decoder(list[AnyRecord])


def encode(records: list[AnyRecord]) -> bytes:
    """A batch's payload."""
    return _encoder.encode(records)


@dataclass(slots=True)
class _Story:
    """What has been read of one sequence."""

    tokens: "array[int]"
    model: str
    num_cached: int | None
    ending: Ending | None

    def told(self) -> Progress:
        return Progress(self.tokens.tobytes(), self.model, self.num_cached, self.ending)


def replay(payloads: list[bytes]) -> list[RequestRecord]:
    """Requests as the journal left them, in the order of their arrival; where an id was used again, the newest.

    Raises:
        BatonError: a payload is no batch of records (another version of Baton wrote it).
    """
    requests: dict[int, RequestRecord] = {}
    stories: dict[int, _Story] = {}
    for payload in payloads:
        for record in _decode(payload):
            match record:
                case RequestRecord():
                    requests[record.arrival] = record
                    for i, told in enumerate(record.progress):
                        tokens = array("i", told.token_ids)
                        stories[record.arrival + i] = _Story(tokens, told.model, told.num_cached, told.ending)
                case StepRecord():
                    _replay_step(record, stories)
                case EndRecord():
                    if (story := stories.get(record.arrival)) is not None:
                        story.num_cached, story.ending = record.num_cached, record.ending
    newest = {request.submit.request_id: arrival for arrival, request in sorted(requests.items())}
    return [
        msgspec.structs.replace(
            requests[arrival],
            progress=tuple(stories[arrival + i].told() for i in range(len(requests[arrival].progress))),
        )
        for arrival in sorted(newest.values())
    ]


def count_crashes(payloads: list[bytes]) -> int:
    """What the last CrashRecord in the journal says. Raises BatonError as `replay` does."""
    return next(
        (r.crashes for payload in reversed(payloads) for r in _decode(payload)[::-1] if isinstance(r, CrashRecord)), 0
    )


def _decode(payload: bytes) -> list[AnyRecord]:
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise BatonError(f"the journal has a record that cannot be read: {error}") from error


def _replay_step(record: StepRecord, stories: dict[int, _Story]) -> None:
    """Give a step's tokens to their sequences; sequences whose request was dropped are passed over."""
    arrivals: list[Any] = np.frombuffer(record.arrivals, np.int64).tolist()
    for arrival, token in zip(arrivals, array("i", record.token_ids), strict=True):
        if (story := stories.get(arrival)) is not None:
            story.tokens.append(token)
            story.model = record.model
