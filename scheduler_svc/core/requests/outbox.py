"""What has to go out to frontends: answers, and tokens gathered until their reader takes them. Pure."""

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from common.errors import RequestRejected
from common.messages import CoreToFrontend, Outputs, Submit, TokenDelta
from scheduler_svc.core.actions import Peer
from scheduler_svc.core.requests.journal_records import Ending, Progress
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd, StepOutput

MAX_ANSWERS = 10_000  # that wait for one frontend
MAX_TOKENS_A_MESSAGE = 2**20  # a message has 64 MiB at most, and this many take 4
MAX_STREAMS_A_MESSAGE = 2**14  # each adds some hundred bytes, an error some thousand


@dataclass(slots=True)
class _Run:
    """Tokens in a row that one model computed."""

    model: str
    tokens: "array[int]"


@dataclass(slots=True, eq=False)
class _Stream:
    """What one sequence has for its reader.

    Attributes:
        held: nothing is told before the sequence's end.
        queued: whether the stream stands in its peer's queue.
        runs: not told yet.
        told_model: what the reader was told last.
    """

    peer: Peer
    sequence: Sequence
    held: bool = False
    queued: bool = False
    runs: list[_Run] = field(default_factory=list)
    told_model: str = ""
    num_cached: int = 0
    ending: Ending | None = None

    def append(self, token: int, model: str) -> None:
        """The sequence has a new token."""
        if not self.runs or self.runs[-1].model != model:
            self.runs.append(_Run(model, array("i")))
        self.runs[-1].tokens.append(token)

    def deltas(self, max_tokens: int) -> "tuple[list[TokenDelta], _Told]":
        """What is to be told next, of so many tokens at most, and what will have been told then."""
        deltas: list[TokenDelta] = []
        told, num_told = self.told_model, 0
        for run in self.runs:
            tokens = run.tokens[: max_tokens - num_told]
            if not tokens:
                break
            deltas.append(self._delta(tokens, "" if run.model == told else run.model))
            told, num_told = run.model, num_told + len(tokens)
        is_whole = num_told == sum(len(run.tokens) for run in self.runs)
        if is_whole and (ending := self.ending) is not None:
            last = deltas.pop() if deltas else self._delta(array("i"), "")
            deltas.append(
                msgspec.structs.replace(last, finish_reason=ending.reason, error=ending.error, code=ending.code)
            )
        return deltas, _Told(self, num_told, told, is_whole)

    def _delta(self, tokens: "array[int]", model: str) -> TokenDelta:
        return TokenDelta(
            request_id=self.sequence.request_id,
            index=self.sequence.index,
            token_ids=tokens.tobytes(),
            num_cached_tokens=self.num_cached,
            model=model,
        )


@dataclass(frozen=True, slots=True)
class _Told:
    """What a message tells of a stream: so many tokens, the last of them of this model; whether that is all."""

    stream: _Stream
    num_tokens: int
    model: str
    is_whole: bool

    def apply(self) -> None:
        """It is on its way."""
        stream, left = self.stream, self.num_tokens
        stream.told_model = self.model
        while left:
            first = stream.runs[0].tokens
            taken = min(left, len(first))
            del first[:taken]
            left -= taken
            if not first:
                del stream.runs[0]


class Outbox:
    """Tokens by frontend. A slow frontend finds several in one delta; a request that does not stream finds all of a
    sequence's tokens in one."""

    def __init__(self) -> None:
        self._streams: dict[Sequence, _Stream] = {}
        self._queues: dict[Peer, list[_Stream]] = {}
        self._answers: dict[Peer, deque[CoreToFrontend]] = {}
        self._num_outputs: dict[Peer, int] = {}
        self._offered: list[_Told] = []  # what the last message that `peek` gave tells

    def answer(self, peer: Peer, message: CoreToFrontend) -> None:
        """Answer a question of `peer`. Answers go in their order, and before all tokens that wait for that peer."""
        answers = self._answers.setdefault(peer, deque())
        if len(answers) < MAX_ANSWERS:  # a frontend with so many that it has not taken does not read any more
            answers.append(message)

    def open(self, peer: Peer, submit: Submit, sequences: Iterable[Sequence]) -> None:
        """The tokens of these sequences of a request go to `peer`."""
        for sequence in sequences:
            self._streams[sequence] = _Stream(peer, sequence, held=not submit.stream)

    def attach(self, peer: Peer, sequences: list[Sequence], progress: tuple[Progress, ...]) -> None:
        """The tokens of a request's sequences, all from the first, go to `peer` now; their former reader is told.

        Args:
            progress: how far each has told so far; what comes later is pushed.
        """
        for former in {stream.peer: None for s in sequences if (stream := self._streams.get(s)) is not None}:
            if former != peer:
                self.take_over(former, sequences[0].request_id)
        self.close(sequences)
        for sequence, told in zip(sequences, progress, strict=True):
            stream = self._streams[sequence] = _Stream(
                peer,
                sequence,
                runs=[_Run(told.model, array("i", told.token_ids))] if told.token_ids else [],
                num_cached=told.num_cached or 0,
                ending=told.ending,
            )
            if told.ending is not None or stream.runs:
                self._queue(stream)

    def refuse(self, peer: Peer, request_id: str, refusal: RequestRejected) -> None:
        """A request was refused."""
        delta = TokenDelta(
            request_id=request_id,
            index=0,
            token_ids=b"",
            finish_reason="error",
            error=str(refusal)[:4096],
            code=refusal.code,
        )
        self.answer(peer, Outputs(number=0, deltas=(delta,)))

    def take_over(self, peer: Peer, request_id: str) -> None:
        """Tell a frontend that another one reads a request now."""
        self.refuse(peer, request_id, RequestRejected("the request is read by another connection now", "taken_over"))

    def push(self, output: StepOutput) -> None:
        """Sequences have new tokens; some have ended."""
        streams, model = self._streams, output.model
        for sequence, token in zip(output.sequences, output.tokens, strict=True):
            stream = streams.get(sequence)
            if stream is None:
                continue
            stream.append(token, model)
            if not (stream.queued or stream.held):
                self._queue(stream)
        for sequence in output.firsts:
            if (stream := streams.get(sequence)) is not None:
                stream.num_cached = sequence.num_cached_prompt or 0
        for end in output.ends:
            self.end(end)

    def end(self, end: SequenceEnd) -> None:
        """A sequence has ended."""
        stream = self._streams.get(end.sequence)
        if stream is None:
            return
        stream.ending = Ending.of(end)
        stream.num_cached = end.sequence.num_cached_prompt or 0
        if not stream.queued:
            self._queue(stream)

    def close(self, sequences: Iterable[Sequence]) -> None:
        """These sequences have no reader any more."""
        self._offered = []
        for sequence in sequences:
            stream = self._streams.pop(sequence, None)
            if stream is not None and stream.queued:
                self._queues[stream.peer].remove(stream)
                if not self._queues[stream.peer]:
                    del self._queues[stream.peer]

    def peers(self) -> list[Peer]:
        """Frontends that answers or tokens wait for."""
        return list(dict.fromkeys((*self._answers, *self._queues)))

    def peek(self, peer: Peer) -> CoreToFrontend | None:
        """What `peer` is to be sent next, or None. The next call may give more, unless `sent` was called."""
        number = self._num_outputs.get(peer, 0)
        if answers := self._answers.get(peer):
            answer = answers[0]
            return msgspec.structs.replace(answer, number=number) if isinstance(answer, Outputs) else answer
        if peer not in self._queues:
            return None
        deltas: list[TokenDelta] = []
        self._offered = []
        left = MAX_TOKENS_A_MESSAGE
        for stream in self._queues[peer][:MAX_STREAMS_A_MESSAGE]:
            if left <= 0:
                break
            some, told = stream.deltas(left)
            deltas += some
            left -= told.num_tokens
            self._offered.append(told)
        return Outputs(number=number, deltas=tuple(deltas))

    def sent(self, peer: Peer) -> None:
        """What `peek` gave is on its way."""
        if answers := self._answers.get(peer):
            answer = answers.popleft()
            if isinstance(answer, Outputs):
                self._num_outputs[peer] = self._num_outputs.get(peer, 0) + 1
            if not answers:
                del self._answers[peer]
            return
        if peer not in self._queues:
            return
        self._num_outputs[peer] = self._num_outputs.get(peer, 0) + 1
        done = 0
        for told in self._offered:
            told.apply()
            if told.is_whole:
                done += 1
                told.stream.queued = False
                if told.stream.ending is not None:
                    del self._streams[told.stream.sequence]
        self._offered = []
        del self._queues[peer][:done]  # only the last one offered may have more to tell
        if not self._queues[peer]:
            del self._queues[peer]

    def forget(self, peer: Peer) -> None:
        """A frontend is gone: drop what waits for it."""
        for waiting in (self._queues, self._answers, self._num_outputs):
            waiting.pop(peer, None)
        self._offered = []
        self._streams = {sequence: stream for sequence, stream in self._streams.items() if stream.peer != peer}

    def _queue(self, stream: _Stream) -> None:
        stream.queued = True
        self._queues.setdefault(stream.peer, []).append(stream)
