"""Accepted requests: their client, their reader, and, for a while, the answers of those that have ended. Pure.

A request without a reader (its frontend died, or said that its client's connection broke) is *detached*: it goes on,
and is cancelled if no client attaches to it in time. A request that the journal brought back is *unclaimed* until a
client attaches to it: it counts for no limit of its client, because its client may have come back with a new request
instead. A request that has ended is *retained* (`retention.py`), so that a client whose connection broke near the end
finds the rest; one that no client can come back for is forgotten then.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from common.errors import RequestRejected
from common.messages import Submit
from scheduler_svc.core.actions import Peer
from scheduler_svc.core.requests.absences import Absences
from scheduler_svc.core.requests.journal_records import (
    Ending,
    Progress,
    RequestRecord,
    SubmitRecord,
    have_ranks,
    list_bytes,
)
from scheduler_svc.core.requests.retention import Retention
from scheduler_svc.core.requests.returning_clients import can_return
from scheduler_svc.core.sequence import Generated, Sequence
from scheduler_svc.core.step_output import SequenceEnd


@dataclass(slots=True, eq=False)
class Request:
    """A request that was accepted.

    Attributes:
        accepted_at: in the caller's seconds, as all times here.
        peer: the frontend that reads it; None while it is detached. Only the table changes it.
        is_unclaimed: whether the journal brought it back and no client has attached to it since.
        endings: of its sequences, None for those that have not ended.
        tokenizer: hash of the tokenizer that its token ids are of; empty if it is not known.
    """

    submit: Submit
    sequences: list[Sequence]
    accepted_at: float
    peer: Peer | None
    is_unclaimed: bool = False
    ended_at: float | None = None
    endings: list[Ending | None] = field(default_factory=list)
    tokenizer: str = ""

    @property
    def id(self) -> str:
        """Id of the request."""
        return self.submit.request_id

    @property
    def is_journaled(self) -> bool:
        """Whether the journal follows it (`Sequence.is_journaled`)."""
        return self.sequences[0].is_journaled

    @is_journaled.setter
    def is_journaled(self, is_journaled: bool) -> None:
        for sequence in self.sequences:
            sequence.is_journaled = is_journaled

    def progress(self, output_of: Callable[[Sequence], Generated]) -> tuple[Progress, ...]:
        """How far each of its sequences is."""
        progress = []
        for sequence, ending in zip(self.sequences, self.endings, strict=True):
            told, num_cached = output_of(sequence), sequence.num_cached_prompt
            logprobs = told.logprob_ids, told.logprobs, told.prompt_logprob_ids, told.prompt_logprobs
            has_ranks = have_ranks(told.prompt_logprob_ids)
            progress.append(Progress(told.token_ids, sequence.model, num_cached, ending, *logprobs, has_ranks))
        return tuple(progress)

    def record(self, output_of: Callable[[Sequence], Generated], wall_offset_s: float) -> RequestRecord:
        """All that the journal has to know of the request.

        Args:
            wall_offset_s: what to add to the caller's time to get seconds since 1970.
        """
        first, accepted_at = self.sequences[0], self.accepted_at + wall_offset_s
        progress = self.progress(output_of)
        submit = SubmitRecord.of(self.submit)
        share = first.share
        places = (share.place, self.tokenizer, share.start, share.cost)
        return RequestRecord(first.arrival, accepted_at, submit, progress, True, *places)


class RequestTable:
    """Open and retained requests, by id.

    Args:
        retention: decides which that have ended are retained.

    Attributes:
        num_returning: open requests whose clients can come back for them.
    """

    def __init__(self, retention: Retention | None = None) -> None:
        self.num_returning = 0
        self._open: dict[str, Request] = {}
        self._retained: dict[str, Request] = {}
        self._retention = Retention() if retention is None else retention
        self._absences = Absences()
        self._by_peer: dict[Peer, dict[str, Request]] = {}
        self._counted: Counter[str] = Counter()  # open sequences by client, without those of unclaimed requests
        self._names: Counter[str] = Counter()  # of clients; one may be another's now, who has other requests

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    @property
    def num_open_by_name(self) -> dict[str, int]:
        """Open requests by the name of their client."""
        return dict(self._names)

    def find(self, request_id: str) -> Request | None:
        """The request, open or retained."""
        return self._open.get(request_id) or self._retained.get(request_id)

    def all(self) -> list[Request]:
        """All requests, in no order that matters."""
        return [*self._retained.values(), *self._open.values()]

    def of_peer(self, peer: Peer) -> Collection[Request]:
        """Open requests that this frontend reads, in the order in which it began to."""
        return self._by_peer.get(peer, {}).values()

    def open_of(self, client: str) -> list[Request]:
        """Open requests of a client. Looks at all open ones: for what is rare."""
        return [request for request in self._open.values() if request.submit.client == client]

    def num_counted(self, client: str) -> int:
        """Open sequences of a client that count for its limit."""
        return self._counted[client]

    def check_new(self, submit: Submit) -> None:
        """Raise RequestRejected if the id of a request is in use, or its client may not have so many sequences open."""
        if self.find(submit.request_id) is not None:
            raise RequestRejected(f"request id {submit.request_id!r} is in use", "request_exists")
        num_open, limit, name = self.num_counted(submit.client), submit.client_limit, submit.client_name
        if not limit or num_open + submit.n <= limit:
            return
        if submit.n > limit:
            raise RequestRejected(f"the request has {submit.n} sequences, the limit of {name!r} is {limit}")
        message = f"{num_open} sequences of {name!r} are open and the request has {submit.n}, the limit is {limit}"
        raise RequestRejected(message, "too_many_requests")

    def add(self, request: Request, now: float) -> None:
        """Add a request that was just accepted, or restored from the journal."""
        request.endings += [None] * (len(request.sequences) - len(request.endings))
        if can_return(request.submit):
            self._retention.opened(request.id)
        if None not in request.endings:
            self._retain(request, now)
            return
        self._open[request.id] = request
        self.num_returning += can_return(request.submit)
        self._names[request.submit.client_name] += 1
        if not request.is_unclaimed:
            self._count(request)
        if request.peer is not None:
            self._by_peer.setdefault(request.peer, {})[request.id] = request

    def attach(self, request: Request, peer: Peer) -> None:
        """A client has come back for an open request: this frontend reads it from now on."""
        self._release(request)
        request.peer = peer
        self._by_peer.setdefault(peer, {})[request.id] = request
        if request.is_unclaimed:
            request.is_unclaimed = False
            self._count(request)

    def detach(self, request: Request, wait_s: float, now: float) -> None:
        """An open request has no reader any more: it is late when its client has not come back for so long."""
        self._release(request)
        self._absences.begin(request.id, wait_s, now)

    def ended(self, end: SequenceEnd, now: float) -> Request | None:
        """A sequence has ended. Returns its request, if that has ended with it."""
        request = self._open[end.sequence.request_id]
        request.endings[end.sequence.index] = Ending.of(end)
        if not request.is_unclaimed:
            _count_down(self._counted, request.submit.client)
        if None in request.endings:
            return None
        self._release(request)
        del self._open[request.id]
        self.num_returning -= can_return(request.submit)
        _count_down(self._names, request.submit.client_name)
        self._retain(request, now)
        return request

    def late(self, now: float) -> Iterator[Request]:
        """Detached requests whose client did not come back in time."""
        return (self._open[request_id] for request_id in self._absences.late(now))

    def paused(self, seconds: float) -> None:
        """The caller has not run for so long, and could not hear of clients that came back."""
        self._absences.paused(seconds)

    def let_go(self, now: float) -> Iterator[list[str]]:
        """Forget what has been retained long enough, or is too much. See `Retention.let_go`."""
        for request_ids in self._retention.let_go(now):
            for request_id in request_ids:
                del self._retained[request_id]
            yield request_ids

    def _retain(self, request: Request, now: float) -> None:
        request.ended_at = now
        if not can_return(request.submit):
            return
        self._retained[request.id] = request
        self._retention.ended(request.id, _num_bytes(request), now)

    def _release(self, request: Request) -> None:
        """It has no reader, and does not wait for one."""
        self._absences.end(request.id)
        if request.peer is not None:
            read = self._by_peer[request.peer]
            del read[request.id]
            if not read:
                del self._by_peer[request.peer]
            request.peer = None

    def _count(self, request: Request) -> None:
        """Its sequences count for the limit of its client until they end."""
        self._counted[request.submit.client] += request.endings.count(None)


def _count_down(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def _num_bytes(request: Request) -> int:
    """Of the tokens, log-probabilities and pooled results that are retained with it, and of its constraints' lists."""
    sequences = request.sequences
    words = sum(len(s.tokens) + len(s.logprob_ids) + len(s.logprobs) for s in sequences)
    words += sum(len(s.prompt_logprob_ids) + len(s.prompt_logprobs) for s in sequences)
    others = len(request.submit.prompt) + list_bytes(request.submit.params.constraints)
    return others + sum(len(s.pooled) for s in sequences) + 4 * words
