"""What the journal says of requests, and how requests are read back from it. Pure.

A batch is a msgpack list of records. Sequences are named by their arrival, which no two ever share. A request is
introduced by one Accepted, which carries all that is known of it then: nothing for a new one; everything for one that
is written again so that the older part of the journal can be let go.
"""

from array import array
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from common import messages as m
from common.errors import BatonError
from common.messages import FinishReason
from scheduler_svc.core.outcomes import SequenceEnd, StepOutput


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


class Accepted(Record, frozen=True, tag="accepted"):
    """A request was accepted.

    Attributes:
        arrival: of its first sequence; the others follow it.
        accepted_at: wall-clock time, seconds since 1970.
        submit: the request.
        progress: of each sequence.
        fits: whether there was an executor then that could run it.
    """

    arrival: int
    accepted_at: float
    submit: m.Submit
    progress: tuple[Progress, ...]
    fits: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether all of its sequences have."""
        return all(told.ending is not None for told in self.progress)

    @property
    def num_bytes(self) -> int:
        """About how many bytes of the journal it takes."""
        tokens = sum(len(told.token_ids) for told in self.progress)
        return len(self.submit.prompt) + len(self.submit.context) + tokens


class Stepped(Record, frozen=True, tag="stepped"):
    """A step gave tokens.

    Attributes:
        model: what computed them.
        arrivals: int64, the sequences that got one.
        token_ids: int32, one for each.
    """

    model: str
    arrivals: bytes
    token_ids: bytes

    @classmethod
    def of(cls, output: StepOutput) -> "Stepped":
        """The tokens of a step."""
        arrivals = array("q", [sequence.arrival for sequence in output.sequences])
        return cls(output.model, arrivals.tobytes(), array("i", output.tokens).tobytes())


class Ended(Record, frozen=True, tag="ended"):
    """A sequence ended."""

    arrival: int
    num_cached: int | None
    ending: Ending

    @classmethod
    def of(cls, end: SequenceEnd) -> "Ended":
        """The end of a sequence."""
        return cls(end.sequence.arrival, end.sequence.num_cached_prompt, Ending.of(end))


class Life(Record, frozen=True, tag="life"):
    """Lives of the scheduler in a row that ended by a fault of its own, up to this record."""

    crashes: int


AnyRecord = Accepted | Stepped | Ended | Life

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


def replay(payloads: list[bytes]) -> list[Accepted]:
    """Requests as the journal left them, in the order of their arrival; the newest, where an id was used again.

    Raises:
        BatonError: a payload is no batch of records (another version of Baton wrote it).
    """
    requests: dict[int, Accepted] = {}
    stories: dict[int, _Story] = {}
    for payload in payloads:
        for record in _decode(payload):
            match record:
                case Accepted():
                    requests[record.arrival] = record
                    for i, told in enumerate(record.progress):
                        tokens = array("i", told.token_ids)
                        stories[record.arrival + i] = _Story(tokens, told.model, told.num_cached, told.ending)
                case Stepped():
                    _replay_step(record, stories)
                case Ended():
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
    """What the last Life in the journal says. Raises BatonError as `replay` does."""
    return next((r.crashes for payload in reversed(payloads) for r in _decode(payload)[::-1] if isinstance(r, Life)), 0)


def _decode(payload: bytes) -> list[AnyRecord]:
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise BatonError(f"the journal has a record that cannot be read: {error}") from error


def _replay_step(record: Stepped, stories: dict[int, _Story]) -> None:
    """Give a step's tokens to their sequences; those whose request was let go are not there."""
    arrivals: list[Any] = np.frombuffer(record.arrivals, np.int64).tolist()
    for arrival, token in zip(arrivals, array("i", record.token_ids), strict=True):
        if (story := stories.get(arrival)) is not None:
            story.tokens.append(token)
            story.model = record.model
