"""What has to go out to frontends: deltas gathered until their reader takes them. Pure."""

from array import array
from dataclasses import dataclass, field

from common.errors import RequestRejected
from common.messages import FinishReason, Outputs, Submit, TokenDelta
from scheduler_svc.outcomes import SequenceEnd, StepOutput
from scheduler_svc.sequence import Sequence

Peer = bytes
Stream = tuple[str, int]  # request id, index of the sequence


@dataclass(slots=True)
class _Pending:
    """What one sequence has for its reader."""

    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    finish_reason: FinishReason | None = None
    error: str = ""
    code: str = ""
    num_cached_tokens: int = 0


@dataclass(slots=True)
class _OpenRequest:
    peer: Peer
    stream: bool
    num_open: int


class Outbox:
    """Deltas by frontend. A slow frontend finds several tokens in one delta; a request that does not stream finds
    all of a sequence's tokens in one."""

    def __init__(self) -> None:
        self._requests: dict[str, _OpenRequest] = {}
        self._pending: dict[Peer, dict[Stream, _Pending]] = {}
        self._held: dict[Stream, _Pending] = {}  # of requests that do not stream

    def opened(self, peer: Peer, submit: Submit) -> None:
        """The scheduler took the request; its deltas go to `peer`."""
        self._requests[submit.request_id] = _OpenRequest(peer, submit.stream, submit.n)

    def refused(self, peer: Peer, request_id: str, refusal: RequestRejected) -> None:
        """The scheduler refused the request."""
        pending = _Pending(finish_reason="error", error=str(refusal)[:4096], code=refusal.code)
        self._pending.setdefault(peer, {})[(request_id, 0)] = pending

    def push(self, output: StepOutput) -> None:
        """Sequences have new tokens; some have ended."""
        for sequence, token in zip(output.sequences, output.tokens, strict=True):
            pending = self._pending_of(sequence)
            if pending is not None:
                pending.tokens.append(token)
        for end in output.ends:
            self.end(end)

    def end(self, end: SequenceEnd) -> None:
        """A sequence has ended."""
        sequence = end.sequence
        pending = self._pending_of(sequence)
        if pending is None:
            return
        pending.finish_reason, pending.error, pending.code = end.reason, end.error[:4096], end.code
        pending.num_cached_tokens = sequence.num_cached_prompt or 0
        request = self._requests[sequence.request_id]
        stream = (sequence.request_id, sequence.index)
        if not request.stream:
            self._pending.setdefault(request.peer, {})[stream] = self._held.pop(stream)
        request.num_open -= 1
        if request.num_open == 0:
            del self._requests[sequence.request_id]

    def is_open(self, request_id: str) -> bool:
        """Whether the request has sequences that have not ended."""
        return request_id in self._requests

    def open_requests(self, peer: Peer) -> list[str]:
        """Ids of the frontend's requests that have not ended."""
        return [request_id for request_id, request in self._requests.items() if request.peer == peer]

    def peers(self) -> list[Peer]:
        """Frontends that something waits for."""
        return [peer for peer, deltas in self._pending.items() if deltas]

    def peek(self, peer: Peer) -> Outputs:
        """All that waits for `peer`; it stays until `sent`."""
        return Outputs(
            deltas=tuple(
                TokenDelta(
                    request_id=request_id,
                    index=index,
                    token_ids=pending.tokens.tobytes(),
                    finish_reason=pending.finish_reason,
                    error=pending.error,
                    code=pending.code,
                    num_cached_tokens=pending.num_cached_tokens,
                )
                for (request_id, index), pending in self._pending[peer].items()
            )
        )

    def sent(self, peer: Peer) -> None:
        """What `peek` gave is on its way."""
        del self._pending[peer]

    def forget(self, peer: Peer) -> list[str]:
        """The frontend is gone. Returns the ids of its open requests; nothing is sent for them any more."""
        self._pending.pop(peer, None)
        gone = self.open_requests(peer)
        for request_id in gone:
            del self._requests[request_id]
        self._held = {stream: pending for stream, pending in self._held.items() if stream[0] in self._requests}
        return gone

    def _pending_of(self, sequence: Sequence) -> _Pending | None:
        """Where the sequence's tokens wait; None if its frontend is gone."""
        request = self._requests.get(sequence.request_id)
        if request is None:
            return None
        deltas = self._pending.setdefault(request.peer, {}) if request.stream else self._held
        stream = (sequence.request_id, sequence.index)
        pending = deltas.get(stream)
        if pending is None:
            pending = deltas[stream] = _Pending(num_cached_tokens=sequence.num_cached_prompt or 0)
        return pending
