"""What has to go out to frontends: answers, and tokens gathered until their reader takes them. Pure."""

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from common.errors import RequestRejected
from common.messages import CoreToFrontend, Outputs, Submit, TokenDelta
from scheduler_svc.core.actions import Peer
from scheduler_svc.core.requests.journal_records import Ending, Progress
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd, StepOutput

MAX_ANSWERS = 10_000  # that wait for one frontend


@dataclass(slots=True, eq=False)
class _Stream:
    """What one sequence has for its reader.

    Attributes:
        held: nothing is told before the sequence's end.
        queued: whether the stream stands in its peer's queue.
        tokens, model: not told yet, and what computed them.
        told_model: what the reader was told last.
        parts: deltas of earlier models, not told yet.
    """

    peer: Peer
    sequence: Sequence
    held: bool = False
    queued: bool = False
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    model: str = ""
    told_model: str = ""
    num_cached: int = 0
    ending: Ending | None = None
    parts: list[TokenDelta] = field(default_factory=list)

    def delta(self) -> TokenDelta:
        """What is to be told of the tokens of the present model."""
        ending = self.ending
        return TokenDelta(
            request_id=self.sequence.request_id,
            index=self.sequence.index,
            token_ids=self.tokens.tobytes(),
            finish_reason=None if ending is None else ending.reason,
            error="" if ending is None else ending.error,
            code="" if ending is None else ending.code,
            num_cached_tokens=self.num_cached,
            model="" if self.model == self.told_model else self.model,
        )

    def change_model(self, model: str) -> None:
        """Tokens from now on are another model's."""
        if self.tokens:
            self.parts.append(self.delta())
            self.told_model, self.tokens = self.model, array("i")
        self.model = model


class Outbox:
    """Tokens by frontend. A slow frontend finds several in one delta; a request that does not stream finds all of a
    sequence's tokens in one."""

    def __init__(self) -> None:
        self._streams: dict[Sequence, _Stream] = {}
        self._queues: dict[Peer, list[_Stream]] = {}
        self._answers: dict[Peer, deque[CoreToFrontend]] = {}

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
                tokens=array("i", told.token_ids),
                model=told.model,
                num_cached=told.num_cached or 0,
                ending=told.ending,
            )
            if told.ending is not None or stream.tokens:
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
        self.answer(peer, Outputs(deltas=(delta,)))

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
            if stream.model != model:
                stream.change_model(model)
            stream.tokens.append(token)
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
        """What `peer` is to be sent next, or None; it stays until `sent`."""
        if answers := self._answers.get(peer):
            return answers[0]
        if peer not in self._queues:
            return None
        deltas: list[TokenDelta] = []
        for stream in self._queues[peer]:
            deltas += stream.parts
            deltas.append(stream.delta())
        return Outputs(deltas=tuple(deltas))

    def sent(self, peer: Peer) -> None:
        """What `peek` gave is on its way."""
        if answers := self._answers.get(peer):
            answers.popleft()
            if not answers:
                del self._answers[peer]
            return
        for stream in self._queues.pop(peer, ()):
            stream.queued = False
            stream.told_model = stream.model
            stream.tokens, stream.parts = array("i"), []
            if stream.ending is not None:
                del self._streams[stream.sequence]

    def forget(self, peer: Peer) -> None:
        """A frontend is gone: drop what waits for it."""
        for waiting in (self._queues, self._answers):
            waiting.pop(peer, None)
        self._streams = {sequence: stream for sequence, stream in self._streams.items() if stream.peer != peer}

    def _queue(self, stream: _Stream) -> None:
        stream.queued = True
        self._queues.setdefault(stream.peer, []).append(stream)
