"""What has to go out to frontends: answers, and tokens gathered until their reader takes them. Pure."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from common.errors import RequestRejected
from common.messages import MAX_ACCEPTED_A_MESSAGE, Accepted, CoreToFrontend, Outputs, Submit, TokenDelta
from scheduler_svc.core.actions import Peer
from scheduler_svc.core.requests.journal_records import Progress
from scheduler_svc.core.requests.token_stream import TokenStream
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd, StepLogprobs, StepOutput

MAX_ANSWERS = 10_000  # that wait for one frontend


class MessageLimits(NamedTuple):
    """What one message to a frontend has at most.

    Attributes:
        token_bytes: of tokens, log-probabilities and pooled results; a message has 64 MiB at most.
        streams: each takes some microseconds, and some hundred bytes, an error some thousand.
        accepted: ids of requests.
    """

    token_bytes: int = 4 * 2**20
    streams: int = 2**10
    accepted: int = MAX_ACCEPTED_A_MESSAGE


ONE_MESSAGE = MessageLimits()


class Outbox:
    """Tokens by frontend. A slow frontend finds several in one delta; a request that does not stream finds all of a
    sequence's tokens in one."""

    def __init__(self, limits: MessageLimits = ONE_MESSAGE) -> None:
        self._limits = limits
        self._streams: dict[Sequence, TokenStream] = {}
        self._read_by: dict[Peer, dict[Sequence, None]] = {}
        self._queues: dict[Peer, list[TokenStream]] = {}
        self._answers: dict[Peer, deque[CoreToFrontend | list[str]]] = {}  # a list: ids of an Accepted
        self._num_outputs: dict[Peer, int] = {}
        self._offered: list[TokenStream] = []  # streams that the last message of `peek` tells everything of
        self._offered_in_part: tuple[TokenStream, int] | None = None  # one of which it tells so many bytes

    def answer(self, peer: Peer, message: CoreToFrontend | list[str]) -> None:
        """Answer a question of `peer`, or tell it of requests that were accepted: a list is their ids, and may grow.

        Answers go in their order, and before all tokens that wait for that peer.
        """
        answers = self._answers.setdefault(peer, deque())
        if len(answers) < MAX_ANSWERS:  # a frontend with so many that it has not taken does not read any more
            answers.append(message)

    def accepted(self, peer: Peer, request_id: str) -> None:
        """A request of `peer` was accepted. Those that it has not read of yet come in one message."""
        answers = self._answers.get(peer)
        last = answers[-1] if answers else None
        if isinstance(last, list) and len(last) < self._limits.accepted:
            last.append(request_id)
        else:
            self.answer(peer, [request_id])

    def open(self, peer: Peer, submit: Submit, sequences: Iterable[Sequence]) -> None:
        """The tokens of these sequences of a request go to `peer`."""
        for sequence in sequences:
            self._enter(TokenStream(peer, sequence, held=not submit.stream))

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
            stream = TokenStream.after(peer, sequence, told)
            self._enter(stream)
            if told.ending is not None or stream.tokens or stream.earlier:
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
            retry_after_s=refusal.retry_after_s,
        )
        self.answer(peer, Outputs(number=0, deltas=(delta,)))

    def take_over(self, peer: Peer, request_id: str) -> None:
        """Tell a frontend that another one reads a request now."""
        self.refuse(peer, request_id, RequestRejected("the request is read by another connection now", "taken_over"))

    def push(self, output: StepOutput) -> None:
        """Sequences have new tokens, or log-probabilities of their prompts; some have ended."""
        streams, queues, model = self._streams, self._queues, output.model
        for came in output.prompt_logprobs:
            if (stream := streams.get(came.sequence)) is not None:
                stream.add_prompt(came.ids, came.values)
                if not (stream.queued or stream.held):
                    self._queue(stream)
        for sequence, token in zip(output.sequences, output.tokens, strict=True):
            stream = streams.get(sequence)
            if stream is None:
                continue
            if stream.model != model:
                stream.change_model(model)
            stream.tokens.append(token)
            if not (stream.queued or stream.held):  # as `_queue` does: to call it for each token takes longer
                stream.queued = True
                if (queue := queues.get(stream.peer)) is None:
                    queue = queues[stream.peer] = []
                queue.append(stream)
        if output.logprobs is not None:
            self._push_logprobs(output.sequences, output.logprobs)
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
        stream.end(end)
        if not stream.queued:
            self._queue(stream)

    def close(self, sequences: Iterable[Sequence]) -> None:
        """These sequences have no reader any more."""
        self._forget_offer()
        for sequence in sequences:
            if (stream := self._streams.get(sequence)) is None:
                continue
            self._drop(stream)
            if stream.queued:
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
            if isinstance(answer, list):
                return Accepted(request_ids=tuple(answer))
            return msgspec.structs.replace(answer, number=number) if isinstance(answer, Outputs) else answer
        if peer not in self._queues:
            return None
        deltas: list[TokenDelta] = []
        self._offered, self._offered_in_part = [], None
        left = self._limits.token_bytes
        for stream in self._queues[peer][: self._limits.streams]:
            num_bytes = len(stream.tokens) * stream.token_bytes + len(stream.pooled)
            if not stream.earlier and num_bytes <= left:  # nearly always
                deltas.append(stream.last_delta(stream.told_model))
                self._offered.append(stream)
                left -= num_bytes
                continue
            if stream.pooled:
                break  # it is told whole, and any fits a message of its own
            if (num_bytes := stream.num_bytes) > left:
                if some := stream.tell_some(left):
                    deltas += some
                    self._offered_in_part = stream, left
                break
            deltas += stream.tell_all()
            self._offered.append(stream)
            left -= num_bytes
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
        for stream in self._offered:
            stream.queued = False
            stream.told_all()
            if stream.ending is not None:
                self._drop(stream)
        if self._offered_in_part is not None:
            stream, max_bytes = self._offered_in_part
            stream.told_some(max_bytes)
        del self._queues[peer][: len(self._offered)]
        if not self._queues[peer]:
            del self._queues[peer]
        self._forget_offer()

    def forget(self, peer: Peer) -> None:
        """A frontend is gone: drop what waits for it."""
        for waiting in (self._queues, self._answers, self._num_outputs):
            waiting.pop(peer, None)
        self._forget_offer()
        for sequence in self._read_by.pop(peer, {}):
            del self._streams[sequence]

    def _push_logprobs(self, sequences: list[Sequence], came: StepLogprobs) -> None:
        """What came with the last token of each of these."""
        ids, values = came.ids.tobytes(), came.values.tobytes()
        ends = (4 * np.cumsum(came.counts)).tolist()
        for i in np.flatnonzero(came.counts).tolist():
            if (stream := self._streams.get(sequences[i])) is not None:
                begin, end = ends[i - 1] if i else 0, ends[i]
                stream.logprob_ids += ids[begin:end]
                stream.logprobs += values[begin:end]

    def _enter(self, stream: TokenStream) -> None:
        self._streams[stream.sequence] = stream
        self._read_by.setdefault(stream.peer, {})[stream.sequence] = None

    def _drop(self, stream: TokenStream) -> None:
        del self._streams[stream.sequence]
        read = self._read_by[stream.peer]
        del read[stream.sequence]
        if not read:
            del self._read_by[stream.peer]

    def _queue(self, stream: TokenStream) -> None:
        stream.queued = True
        self._queues.setdefault(stream.peer, []).append(stream)

    def _forget_offer(self) -> None:
        self._offered, self._offered_in_part = [], None
