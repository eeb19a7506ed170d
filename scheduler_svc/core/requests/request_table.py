"""Accepted requests: their client, their reader, and, for a while, the answers of those that have ended. Pure.

A request without a reader (its frontend died, or said that its client's connection broke) is *detached*: it goes on,
and is cancelled if no client attaches to it within the reconnect grace. A request that has ended is *retained*, so that
a client whose connection broke near the end finds the rest.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from common.errors import RequestRejected
from common.messages import Submit
from scheduler_svc.core.actions import Peer
from scheduler_svc.core.requests.journal_records import Ending, Progress, RequestRecord
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd

RETAIN_S = 300.0
MAX_RETAINED = 10_000  # requests
MAX_RETAINED_TOKENS = 8 * 2**20  # of prompts and outputs: 32 MiB


@dataclass(slots=True, eq=False)
class Request:
    """A request that was accepted.

    Attributes:
        accepted_at: in the caller's seconds, as all times here.
        fits: whether there was an executor that could run it when it was accepted.
        peer: the frontend that reads it; None while it is detached.
        cancel_at: when it is cancelled if it is still detached; None for never. Requests that the journal brought back
            have None: their clients may need longer than a grace to find the service again.
        endings: of its sequences, None for those that have not ended.
    """

    submit: Submit
    sequences: list[Sequence]
    accepted_at: float
    peer: Peer | None
    fits: bool
    cancel_at: float | None = None
    ended_at: float | None = None
    endings: list[Ending | None] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Id of the request."""
        return self.submit.request_id

    def progress(self, output_of: Callable[[Sequence], bytes]) -> tuple[Progress, ...]:
        """How far each of its sequences is."""
        return tuple(
            Progress(output_of(sequence), sequence.model, sequence.num_cached_prompt, ending)
            for sequence, ending in zip(self.sequences, self.endings, strict=True)
        )

    def record(self, output_of: Callable[[Sequence], bytes], wall_offset_s: float) -> RequestRecord:
        """All that the journal has to know of the request.

        Args:
            wall_offset_s: what to add to the caller's time to get seconds since 1970.
        """
        first, accepted_at = self.sequences[0], self.accepted_at + wall_offset_s
        progress = self.progress(output_of)
        return RequestRecord(first.arrival, accepted_at, self.submit, progress, self.fits, first.place)


class RequestTable:
    """Open and retained requests, by id."""

    def __init__(self) -> None:
        self._open: dict[str, Request] = {}
        self._retained: OrderedDict[str, Request] = OrderedDict()
        self._retained_tokens = 0
        self._clients: Counter[str] = Counter()

    @property
    def clients(self) -> dict[str, int]:
        """Open requests by the name of their client."""
        return dict(self._clients)

    def find(self, request_id: str) -> Request | None:
        """The request, open or retained."""
        return self._open.get(request_id) or self._retained.get(request_id)

    def all(self) -> list[Request]:
        """All requests, in no order that matters."""
        return [*self._retained.values(), *self._open.values()]

    def of_peer(self, peer: Peer) -> list[Request]:
        """Open requests that this frontend reads."""
        return [request for request in self._open.values() if request.peer == peer]

    def num_open(self, client: str) -> int:
        """Open requests of a client."""
        return self._clients[client]

    def check_new(self, submit: Submit) -> None:
        """Raise RequestRejected if the id of a request is in use, or the request is one too many for its client."""
        if self.find(submit.request_id) is not None:
            raise RequestRejected(f"request id {submit.request_id!r} is in use", "request_exists")
        num_open = self.num_open(submit.client)
        if submit.client_limit and num_open >= submit.client_limit:
            message = f"{num_open} requests of {submit.client!r} are open, the limit is {submit.client_limit}"
            raise RequestRejected(message, "too_many_requests")

    def add(self, request: Request, now: float) -> None:
        """Add a request that was just accepted, or restored from the journal."""
        request.endings += [None] * (len(request.sequences) - len(request.endings))
        if None in request.endings:
            self._open[request.id] = request
            self._clients[request.submit.client] += 1
        else:
            self._retain(request, now)

    def ended(self, end: SequenceEnd, now: float) -> None:
        """A sequence has ended."""
        request = self._open[end.sequence.request_id]
        request.endings[end.sequence.index] = Ending.of(end)
        if None not in request.endings:
            del self._open[request.id]
            self._clients[request.submit.client] -= 1
            if not self._clients[request.submit.client]:
                del self._clients[request.submit.client]
            self._retain(request, now)

    def late(self, now: float) -> list[Request]:
        """Detached requests whose client did not come back in time."""
        return [r for r in self._open.values() if r.cancel_at is not None and r.cancel_at <= now]

    def let_go(self, now: float) -> list[str]:
        """Forget what has been retained long enough, or is too much. Returns the ids."""
        gone = []
        while self._retained:
            request = next(iter(self._retained.values()))
            assert request.ended_at is not None, "it is retained"
            too_many = len(self._retained) > MAX_RETAINED or self._retained_tokens > MAX_RETAINED_TOKENS
            if request.ended_at + RETAIN_S > now and not too_many:
                break
            del self._retained[request.id]
            self._retained_tokens -= _num_tokens(request)
            gone.append(request.id)
        return gone

    def _retain(self, request: Request, now: float) -> None:
        request.ended_at, request.cancel_at, request.peer = now, None, None
        self._retained[request.id] = request
        self._retained_tokens += _num_tokens(request)


def _num_tokens(request: Request) -> int:
    return len(request.submit.prompt) // 4 + sum(len(sequence.tokens) for sequence in request.sequences)
