"""Reads requests back from the journal's records, whatever has become of some of them. Pure.

A record that is damaged is passed over, and the others count. Each token says which of its sequence's it is, so that a
sequence notices what it lost: it is taken up with the tokens before the gap, as after a power cut. A token without the
log-probabilities that its request asked for is such a gap, and so is one before all those of the prompt.

Pooled results are not in the journal: a client that comes back for one that had come has it computed again.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from scheduler_svc.core.requests.journal_records import (
    AnyRecord,
    Ending,
    EndRecord,
    LifeRecord,
    Progress,
    PromptRecord,
    RequestRecord,
    SharesRecord,
    StepRecord,
    SubmitRecord,
    have_ranks,
)
from scheduler_svc.core.requests.record_frames import unframe

_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


@dataclass(frozen=True)
class Contents:
    """What a journal says.

    Attributes:
        requests: as the journal left them, in the order of their arrival; where an id was used again, the newest.
        life: the last LifeRecord; of no crashes and no executors without one.
        shares: of all clients, as the last SharesRecords tell them.
        num_damaged: records that could not be read.
        cut: ids of the requests that lost tokens or an end by that; those that were lost whole have no name any more.
    """

    requests: list[RequestRecord]
    life: LifeRecord
    shares: SharesRecord
    num_damaged: int
    cut: list[str]


@dataclass(slots=True)
class _Prompt:
    """Log-probabilities of one sequence's prompt.

    Attributes:
        width: bytes of either column, for each position; 0 if it wants none.
        num_wanted: positions.
        ids, values: int32 and float32 [covered positions, the request's `prompt_logprobs`].
    """

    width: int
    num_wanted: int
    ids: bytearray
    values: bytearray

    @classmethod
    def of(cls, told: Progress, submit: SubmitRecord, index: int) -> "_Prompt":
        """As it was when its request was written: the positions that have both columns."""
        width = 0 if index else 4 * submit.params.prompt_logprobs
        num_wanted = len(submit.prompt) // 4 - 1 if width else 0
        columns = (told.prompt_logprob_ids, told.prompt_logprobs)
        num_covered = min(num_wanted, *(len(column) // width for column in columns)) if width else 0
        ids, values = (bytearray(column[: width * num_covered]) for column in columns)
        return cls(width, num_wanted, ids, values)

    @property
    def num_covered(self) -> int:
        return len(self.ids) // self.width if self.width else 0

    @property
    def is_whole(self) -> bool:
        return self.num_covered == self.num_wanted

    def append(self, record: PromptRecord) -> bool:
        """Take what is new in a record. Returns False, and changes nothing, if there is a gap before it or its columns
        do not fit."""
        num_told, rest = divmod(len(record.logprob_ids), self.width or 1)
        fits = not rest and len(record.logprobs) == len(record.logprob_ids)
        if not fits or not 0 <= record.first <= self.num_covered or record.first + num_told > self.num_wanted:
            return False
        new_from = self.width * (self.num_covered - record.first)
        self.ids += record.logprob_ids[new_from:]
        self.values += record.logprobs[new_from:]
        return True


@dataclass(slots=True)
class _Story:
    """What has been read of one sequence.

    Attributes:
        logprob_bytes: of either column of log-probabilities, for each token.
        prompt: its log-probabilities.
        logprob_ids, logprobs: int32 and float32 [tokens, the request's `logprobs`].
        is_cut: whether it lacks a token, or an end, that it had.
    """

    logprob_bytes: int
    prompt: _Prompt
    tokens: "array[int]"
    logprob_ids: bytearray
    logprobs: bytearray
    model: str
    num_cached: int | None
    ending: Ending | None
    is_cut: bool = False

    @classmethod
    def of(cls, told: Progress, submit: SubmitRecord, index: int) -> "_Story":
        """A sequence as it was when its request was written: the tokens that have all their log-probabilities."""
        columns, width = (told.logprob_ids, told.logprobs), 4 * submit.params.logprobs
        prompt = _Prompt.of(told, submit, index)
        num_tokens = len(told.token_ids) // 4 if prompt.is_whole else 0
        if width:
            num_tokens = min(num_tokens, *(len(column) // width for column in columns))
        token_ids = told.token_ids[: 4 * num_tokens]
        ids, values = (bytearray(column[: width * num_tokens]) for column in columns)
        kept = (token_ids, ids, values, prompt.ids, prompt.values)
        before = (told.token_ids, *columns, told.prompt_logprob_ids, told.prompt_logprobs)
        is_cut = [*map(len, kept)] != [*map(len, before)]
        ending = None if is_cut else told.ending
        return cls(width, prompt, array("i", token_ids), ids, values, told.model, told.num_cached, ending, is_cut)

    def append(self, position: int, token: int, model: str, logprob_ids: bytes, logprobs: bytes) -> None:
        """A token that came when the sequence had so many, with its log-probabilities."""
        if position == len(self.tokens) and len(logprob_ids) == self.logprob_bytes and self.prompt.is_whole:
            self.tokens.append(token)
            self.logprob_ids += logprob_ids
            self.logprobs += logprobs
            self.model = model
        self.is_cut |= position >= len(self.tokens)

    def prompted(self, record: PromptRecord) -> None:
        """Log-probabilities of its prompt came."""
        if not self.prompt.append(record):
            self.is_cut = True
        elif not self.tokens:
            self.model = record.model

    def end(self, record: EndRecord) -> None:
        """The sequence ended; how, counts if it has all its tokens, and all log-probabilities of its prompt."""
        self.is_cut |= (record.num_tokens, record.num_covered) != (len(self.tokens), self.prompt.num_covered)
        if not self.is_cut:
            self.num_cached, self.ending = record.num_cached, record.ending

    def told(self, request: RequestRecord) -> Progress:
        ending = None if self.had_result(request) else self.ending or self._own_end(request)
        logprob_ids, logprobs = bytes(self.logprob_ids), bytes(self.logprobs)
        prompt = bytes(self.prompt.ids), bytes(self.prompt.values)
        told = (self.tokens.tobytes(), self.model, self.num_cached, ending, logprob_ids, logprobs)
        return Progress(*told, *prompt, have_ranks(self.prompt.ids))

    def had_result(self, request: RequestRecord) -> bool:
        """Whether it ended with a pooled result."""
        return request.submit.params.pooling != "none" and self.ending is not None and self.ending.reason == "stop"

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
    life, shares, num_damaged = LifeRecord(0), SharesRecord(), 0
    for payload in payloads:
        for record in _decode(payload):
            match record:
                case RequestRecord():
                    requests[record.arrival] = record
                    for i, told in enumerate(record.progress):
                        stories[record.arrival + i] = _Story.of(told, record.submit, i)
                case StepRecord():
                    num_damaged += not _replay_step(record, stories)
                case PromptRecord():
                    if (story := stories.get(record.arrival)) is not None:
                        story.prompted(record)
                case EndRecord():
                    if (story := stories.get(record.arrival)) is not None:
                        story.end(record)
                case LifeRecord():
                    life = record
                case SharesRecord():
                    shares = _merged(shares, record)
                case None:
                    num_damaged += 1
    newest = {request.submit.request_id: arrival for arrival, request in sorted(requests.items())}
    kept = [requests[arrival] for arrival in sorted(newest.values())]
    cut = [r.submit.request_id for r in kept if any(stories[r.arrival + i].is_cut for i in range(len(r.progress)))]
    return Contents([_with_progress(request, stories) for request in kept], life, shares, num_damaged, cut)


def _merged(before: SharesRecord, record: SharesRecord) -> SharesRecord:
    """What two records say, one after the other."""
    known = {} if record.is_whole else {(account.client, account.yields): account for account in before.accounts}
    known |= {(account.client, account.yields): account for account in record.accounts}
    virtual_time = max(before.virtual_time, record.virtual_time)
    return SharesRecord(virtual_time, record.mean_cost, tuple(known.values()))


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
