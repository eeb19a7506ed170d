"""Reads requests back from the journal's records, whatever has become of some of them. Pure.

A record that is damaged is passed over, and the others count. Each token says which of its sequence's it is, so that a
sequence notices what it lost: it is taken up with the tokens before the gap, as after a power cut. A token without the
log-probabilities that its request asked for is such a gap.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from scheduler_svc.core.requests.journal_records import (
    AnyRecord,
    CrashRecord,
    Ending,
    EndRecord,
    Progress,
    RequestRecord,
    StepRecord,
)
from scheduler_svc.core.requests.record_frames import unframe

_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


@dataclass(frozen=True)
class Contents:
    """What a journal says.

    Attributes:
        requests: as the journal left them, in the order of their arrival; where an id was used again, the newest.
        crashes: what the last CrashRecord says; 0 without one.
        num_damaged: records that could not be read.
        cut: ids of the requests that lost tokens or an end by that; those that were lost whole have no name any more.
    """

    requests: list[RequestRecord]
    crashes: int
    num_damaged: int
    cut: list[str]


@dataclass(slots=True)
class _Story:
    """What has been read of one sequence.

    Attributes:
        logprob_bytes: of either column of log-probabilities, for each token.
        logprob_ids, logprobs: int32 and float32 [tokens, the request's `logprobs`].
        is_cut: whether it lacks a token, or an end, that it had.
    """

    logprob_bytes: int
    tokens: "array[int]"
    logprob_ids: bytearray
    logprobs: bytearray
    model: str
    num_cached: int | None
    ending: Ending | None
    is_cut: bool = False

    @classmethod
    def of(cls, told: Progress, num_logprobs: int) -> "_Story":
        """A sequence as it was when its request was written: the tokens that have all their log-probabilities."""
        columns, width = (told.logprob_ids, told.logprobs), 4 * num_logprobs
        num_tokens = len(told.token_ids) // 4
        if width:
            num_tokens = min(num_tokens, *(len(column) // width for column in columns))
        token_ids = told.token_ids[: 4 * num_tokens]
        ids, values = (bytearray(column[: width * num_tokens]) for column in columns)
        is_cut = (len(token_ids), len(ids), len(values)) != (len(told.token_ids), *map(len, columns))
        ending = None if is_cut else told.ending
        return cls(width, array("i", token_ids), ids, values, told.model, told.num_cached, ending, is_cut)

    def append(self, position: int, token: int, model: str, logprob_ids: bytes, logprobs: bytes) -> None:
        """A token that came when the sequence had so many, with its log-probabilities."""
        if position == len(self.tokens) and len(logprob_ids) == self.logprob_bytes:
            self.tokens.append(token)
            self.logprob_ids += logprob_ids
            self.logprobs += logprobs
            self.model = model
        self.is_cut |= position >= len(self.tokens)

    def end(self, record: EndRecord) -> None:
        """The sequence ended; how, counts if it has all its tokens."""
        self.is_cut |= record.num_tokens != len(self.tokens)
        if not self.is_cut:
            self.num_cached, self.ending = record.num_cached, record.ending

    def told(self, request: RequestRecord) -> Progress:
        ending = self.ending or self._own_end(request)
        logprob_ids, logprobs = bytes(self.logprob_ids), bytes(self.logprobs)
        return Progress(self.tokens.tobytes(), self.model, self.num_cached, ending, logprob_ids, logprobs)

    def _own_end(self, request: RequestRecord) -> Ending | None:
        """How it ended if its tokens tell; its EndRecord may be lost."""
        params = request.submit.params
        if self.tokens and self.tokens[-1] in params.stop_token_ids:
            return Ending("stop")
        return Ending("length") if len(self.tokens) >= params.max_tokens else None


def read_batches(payloads: list[bytes]) -> Contents:
    """What the batches of a journal say, in their order."""
    requests: dict[int, RequestRecord] = {}
    stories: dict[int, _Story] = {}
    crashes = num_damaged = 0
    for payload in payloads:
        for record in _decode(payload):
            match record:
                case RequestRecord():
                    requests[record.arrival] = record
                    for i, told in enumerate(record.progress):
                        stories[record.arrival + i] = _Story.of(told, record.submit.params.logprobs)
                case StepRecord():
                    num_damaged += not _replay_step(record, stories)
                case EndRecord():
                    if (story := stories.get(record.arrival)) is not None:
                        story.end(record)
                case CrashRecord():
                    crashes = record.crashes
                case None:
                    num_damaged += 1
    newest = {request.submit.request_id: arrival for arrival, request in sorted(requests.items())}
    kept = [requests[arrival] for arrival in sorted(newest.values())]
    cut = [r.submit.request_id for r in kept if any(stories[r.arrival + i].is_cut for i in range(len(r.progress)))]
    return Contents([_with_progress(request, stories) for request in kept], crashes, num_damaged, cut)


def _with_progress(request: RequestRecord, stories: dict[int, _Story]) -> RequestRecord:
    progress = tuple(stories[request.arrival + i].told(request) for i in range(len(request.progress)))
    return msgspec.structs.replace(request, progress=progress)


def _decode(payload: bytes) -> Iterator[AnyRecord | None]:
    """The records of a batch; None for each that cannot be read."""
    records, num_damaged = unframe(payload)
    for record in records:
        try:
            yield _decoder.decode(record)
        except msgspec.MsgspecError:
            yield None
    yield from [None] * num_damaged


def _replay_step(record: StepRecord, stories: dict[int, _Story]) -> bool:
    """Give a step's tokens to their sequences; sequences whose request was dropped are passed over.

    Returns:
        False if the record's columns do not fit together; then nothing has changed.
    """
    num_tokens = len(record.token_ids) // 4
    counts = record.logprob_counts or bytes(4 * num_tokens)
    columns = (record.arrivals, record.token_ids, record.positions, counts)
    if tuple(map(len, columns)) != (8 * num_tokens, *[4 * num_tokens] * 3):
        return False
    widths = [4 * count for count in array("i", counts)]
    if any(width < 0 for width in widths) or not len(record.logprob_ids) == len(record.logprobs) == sum(widths):
        return False
    arrivals: list[Any] = np.frombuffer(record.arrivals, np.int64).tolist()
    tokens, positions, end = array("i", record.token_ids), array("i", record.positions), 0
    for arrival, token, position, width in zip(arrivals, tokens, positions, widths, strict=True):
        begin, end = end, end + width
        if (story := stories.get(arrival)) is not None:
            story.append(position, token, record.model, record.logprob_ids[begin:end], record.logprobs[begin:end])
    return True
