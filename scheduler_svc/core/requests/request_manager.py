"""The core's side towards frontends: requests come in, tokens go out, and nobody hears what the journal lacks. Pure.

What is to be told of a request passes the ledger (on disk first) and then waits in the outbox for its reader.
"""

from dataclasses import dataclass

import msgspec

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.core.actions import Effect, Level, Peer, log
from scheduler_svc.core.observability.telemetry import Telemetry
from scheduler_svc.core.outcomes import SequenceEnd, StepOutput
from scheduler_svc.core.requests.group_commit import Batch, JournalState, Ledger
from scheduler_svc.core.requests.journal_records import Accepted, AnyRecord, Ended, Ending, Life, Progress, Stepped
from scheduler_svc.core.requests.outbox import Outbox
from scheduler_svc.core.requests.requests import Request, Requests
from scheduler_svc.core.scheduling.scheduler import Scheduler

FRONTEND_TIMEOUT_S = 10.0
RECONNECT_GRACE_S = 30.0
MAX_CRASHES = 3  # of the core in a row, with the same open requests: then one of them is why, and they are ended
SURVIVED_AFTER_S = 60.0
RESUME_WITHIN_S = 600.0  # of its last sign of life; clients of a service that was gone for longer have given up


@dataclass(frozen=True, slots=True)
class _Attachment:
    """A request that is read by another frontend from now on; `progress` is what it has told until now."""

    peer: Peer
    request: Request
    progress: tuple[Progress, ...]


Release = StepOutput | SequenceEnd | _Attachment


class FrontDesk:
    """Requests of all frontends.

    Args:
        scheduler: that runs them.
        telemetry: that is told of them.
        journal, first_batch: whether there is one, and the number of its next batch.
        wall_offset_s: what to add to the caller's time to get seconds since 1970.
        reconnect_grace_s: how long a request goes on that nobody reads.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        telemetry: Telemetry,
        journal: JournalState,
        first_batch: int,
        *,
        wall_offset_s: float = 0.0,
        reconnect_grace_s: float = RECONNECT_GRACE_S,
    ) -> None:
        self.outbox = Outbox()
        self.requests = Requests()
        self.ledger: Ledger[Release] = Ledger(journal, first_batch)
        self._scheduler = scheduler
        self._telemetry = telemetry
        self._wall_offset_s = wall_offset_s
        self._grace_s = reconnect_grace_s
        self._crashes = 0
        self._survived_at: float | None = None
        self._frontends: dict[Peer, float] = {}  # when each was last heard
        self._silent: set[Peer] = set()

    @property
    def frontends(self) -> list[Peer]:
        """Frontends that are connected."""
        return list(self._frontends)

    # --- what frontends say ---

    def heard(self, peer: Peer, now: float) -> list[Effect]:
        """A frontend has said something."""
        is_new = peer not in self._frontends
        self._frontends[peer] = now
        if peer in self._silent:
            self._silent.remove(peer)
            for request in self.requests.of_peer(peer):
                request.cancel_at = None
        return [log("info", "frontend connected", peer=peer.hex())] if is_new else []

    def submit(self, peer: Peer, submit: m.Submit, now: float) -> list[Effect]:
        """Accept or refuse a request."""
        try:
            self._check(submit)
            sequences = self._scheduler.add(submit, now)
        except RequestRejected as refusal:
            self._telemetry.request_refused(refusal.code)
            self.outbox.refuse(peer, submit.request_id, refusal)
            return [log("debug", "request refused", request=submit.request_id, code=refusal.code, reason=str(refusal))]
        request = Request(submit, sequences, now, peer, self._scheduler.knows_capacity)
        self.requests.add(request, now)
        self._telemetry.submitted(sequences, now)
        self.outbox.open(peer, submit, sequences)
        self._note([self._record(request)], [], now)
        return []

    def attach(self, peer: Peer, request_id: str, now: float) -> list[Effect]:
        """A client has come back for its request."""
        request = self.requests.find(request_id)
        if request is None:
            self.outbox.answer(peer, m.Attached(request_id=request_id, found=False))
            return []
        request.cancel_at = None
        if request.ended_at is None:
            request.peer = peer
        attachment = _Attachment(peer, request, request.progress(self._scheduler.output_of))
        self._note([], [attachment], now)
        return [log("info", "request attached", request=request_id, peer=peer.hex())]

    def detach(self, peer: Peer, request_id: str, now: float) -> list[Effect]:
        """The client of a request may come back."""
        request = self.requests.find(request_id)
        if request is None or request.ended_at is not None or request.peer != peer:
            return []
        self.outbox.close(request.sequences)
        request.peer = None
        return self._leave_alone([request], now)

    def cancel(self, peer: Peer, request_id: str, index: int, now: float) -> list[Effect]:
        """A frontend wants no more of a request, or of one of its sequences; it may not know that another reads it."""
        request = self.requests.find(request_id)
        if request is None or request.peer not in (peer, None):
            return []
        return self._cancel(request_id, index, now)

    def gone(self, peer: Peer, reason: str, now: float) -> list[Effect]:
        """The connection to a frontend broke: what its requests say is for nobody until a client comes back."""
        if self._frontends.pop(peer, None) is None:
            return []
        self._silent.discard(peer)
        requests = self.requests.of_peer(peer)
        self.outbox.forget(peer)
        for request in requests:
            request.peer = None
        level: Level = "warning" if requests else "info"
        noted = log(level, "frontend gone", peer=peer.hex(), reason=reason, requests_detached=len(requests))
        return [noted, *self._leave_alone(requests, now)]

    # --- what the scheduler gives ---

    def stepped(self, output: StepOutput, now: float) -> None:
        """A step gave tokens."""
        records: list[AnyRecord] = []
        if self.ledger.is_recording:
            records = [Stepped.of(output), *map(Ended.of, output.ends)]
        self._telemetry.stepped(output, now)
        for end in output.ends:
            self.requests.ended(end, now)
        self._note(records, [output], now)

    def ended(self, ends: list[SequenceEnd], now: float) -> list[Effect]:
        """Sequences have ended other than by a step."""
        effects: list[Effect] = []
        for end in ends:
            self._telemetry.ended(end, now)
            self.requests.ended(end, now)
            if end.reason == "error":
                effects.append(log("warning", "request failed", request=end.sequence.request_id, reason=end.error))
        if ends:
            self._note([Ended.of(end) for end in ends], [*ends], now)
        return effects

    def tick(self, now: float) -> list[Effect]:
        """End what is late: silent frontends, requests nobody came back for, a journal that is stuck."""
        effects: list[Effect] = []
        for peer, heard in list(self._frontends.items()):
            if now - heard > FRONTEND_TIMEOUT_S and peer not in self._silent:
                requests = self.requests.of_peer(peer)
                if not requests and self.outbox.peek(peer) is None:  # if it lives, it is new when it speaks again
                    effects += self.gone(peer, "silent", now)
                    continue
                self._silent.add(peer)  # it may only be frozen: its requests' ends wait for it in the outbox
                silence_s = round(now - heard, 1)
                effects.append(log("warning", "frontend silent", peer=peer.hex(), silent_s=silence_s))
                effects += self._leave_alone(requests, now)
        for request in self.requests.late(now):
            effects.append(log("info", "request cancelled: its client did not come back", request=request.id))
            effects += self._cancel(request.id, -1, now)
        for request_id in self.requests.let_go(now):
            self.ledger.let_go(request_id)
        if self._survived_at is not None and now >= self._survived_at:
            self._crashes, self._survived_at = 0, None
            self._note([Life(0)], [], now)
        if (overgrown := self.ledger.overgrown()) is not None and (found := self.requests.find(overgrown)) is not None:
            self._note([self._record(found)], [], now)
        was_ok = self.ledger.state is JournalState.OK
        self._tell(self.ledger.tick(now))
        if was_ok and self.ledger.state is JournalState.FAILED:
            effects.append(log("error", "journal stuck", consequence=_AT_RISK))
        return effects

    def paused(self, seconds: float, now: float) -> None:
        """This side has not run for so long: nobody could be heard, and clients may need that long to come back."""
        self._frontends = {peer: min(heard + seconds, now) for peer, heard in self._frontends.items()}
        for request in self.requests.all():
            if request.cancel_at is not None:
                request.cancel_at += seconds
        self.ledger.paused(seconds, now)

    # --- the journal ---

    def restore(self, saved: list[Accepted], now: float, crashes: int = 0) -> list[Effect]:
        """Take up the requests of an earlier life. Nobody reads them until a client attaches.

        Args:
            crashes: lives in a row that ended by a fault of the core. After MAX_CRASHES the open requests are ended,
                as one of them would bring it about again.
        """
        self._crashes = crashes
        self._survived_at = now + SURVIVED_AFTER_S if crashes else None
        if crashes >= MAX_CRASHES:
            given_up = [accepted.submit.request_id for accepted in saved if not accepted.has_ended]
            saved = [_given_up(accepted) for accepted in saved]
        num_open = 0
        for accepted in saved:
            request = self._restored(accepted, now)
            self.requests.add(request, now)
            num_open += request.ended_at is None
        self._telemetry.requests_restored(num_open)
        facts = {"open": num_open, "ended": len(saved) - num_open}
        effects: list[Effect] = [log("info", "requests restored from the journal", **facts)] if saved else []
        if crashes >= MAX_CRASHES:
            effects.append(log("error", "requests given up", crashes=crashes, requests=",".join(given_up)))
        return effects

    def next_batch(self, now: float) -> Batch | None:
        """What is to be written to the journal now, if anything."""
        if self.ledger.wants_reset(now):
            return self.new_journal(now)
        return self.ledger.next_batch(now)

    def new_journal(self, now: float) -> Batch:
        """A batch that replaces all that was written before."""
        return self.ledger.reset([Life(self._crashes), *map(self._record, self.requests.all())], now)

    def crashed(self) -> Batch:
        """The core has failed, and this is its end: what the journal has to know of that."""
        return self.ledger.last(Life(self._crashes + 1))

    def saved(self, number: int) -> list[Effect]:
        """A batch is on disk."""
        was_ok = self.ledger.state is JournalState.OK
        self._tell(self.ledger.saved(number))
        works_again = not was_ok and self.ledger.state is JournalState.OK
        return [log("info", "journal works again", batch=number)] if works_again else []

    def failed(self, number: int, reason: str, now: float) -> list[Effect]:
        """A batch could not be written."""
        was_ok = self.ledger.state is JournalState.OK
        self._tell(self.ledger.failed(number, now))
        failed = log("error", "journal failed", reason=reason, batch=number, consequence=_AT_RISK)
        return [failed] if was_ok else []

    # --- inside ---

    def _check(self, submit: m.Submit) -> None:
        """Refuse what could not be told from another request, or what is too much for one client."""
        if self.requests.find(submit.request_id) is not None:
            raise RequestRejected(f"request id {submit.request_id!r} is in use", "request_exists")
        num_open = self.requests.num_open(submit.client)
        if submit.client_limit and num_open >= submit.client_limit:
            message = f"{num_open} requests of {submit.client!r} are open, the limit is {submit.client_limit}"
            raise RequestRejected(message, "too_many_requests")

    def _leave_alone(self, requests: list[Request], now: float) -> list[Effect]:
        """Nobody reads these requests any more: cancel them when the grace is over, or now if there is none."""
        effects: list[Effect] = []
        for request in requests:
            request.cancel_at = now + self._grace_s
            if self._grace_s == 0:
                effects += self._cancel(request.id, -1, now)
        return effects

    def _cancel(self, request_id: str, index: int, now: float) -> list[Effect]:
        return self.ended(self._scheduler.cancel(request_id, index), now)

    def _record(self, request: Request) -> Accepted:
        return request.record(self._scheduler.output_of, self._wall_offset_s)

    def _restored(self, accepted: Accepted, now: float) -> Request:
        submit, progress = accepted.submit, accepted.progress
        accepted_at = accepted.accepted_at - self._wall_offset_s
        deadline = None if submit.timeout_s is None else accepted_at + submit.timeout_s
        outputs = [told.token_ids for told in progress]
        sequences = self._scheduler.restore(submit, accepted.arrival, outputs, deadline, fits=accepted.fits)
        for sequence, told in zip(sequences, progress, strict=True):
            sequence.model, sequence.num_cached_prompt = told.model, told.num_cached
            if told.ending is not None:
                self._scheduler.cancel(submit.request_id, sequence.index)
        self._telemetry.submitted([s for s, told in zip(sequences, progress, strict=True) if told.ending is None], now)
        return Request(submit, sequences, accepted_at, None, accepted.fits, endings=[told.ending for told in progress])

    def _note(self, records: list[AnyRecord], releases: list[Release], now: float) -> None:
        self._tell(self.ledger.add(records, releases, now))

    def _tell(self, releases: list[Release]) -> None:
        """It is on disk, or need not be."""
        for release in releases:
            match release:
                case StepOutput():
                    self.outbox.push(release)
                case SequenceEnd():
                    self.outbox.end(release)
                case _Attachment(peer, request, progress) if peer in self._frontends:
                    self._attached(peer, request, progress)

    def _attached(self, peer: Peer, request: Request, progress: tuple[Progress, ...]) -> None:
        submit = request.submit
        answer = m.Attached(
            request_id=submit.request_id,
            found=True,
            num_prompt_tokens=len(submit.prompt) // 4,
            n=submit.n,
            context=submit.context,
        )
        self.outbox.answer(peer, answer)
        if request.ended_at is not None or request.peer == peer:
            self.outbox.attach(peer, request.sequences, progress)
        else:  # somebody else came for it while the journal was written
            self.outbox.take_over(peer, request.id)


_AT_RISK = "requests accepted from now on would not survive the scheduler"


def _given_up(accepted: Accepted) -> Accepted:
    """The request, with an end for what is open."""
    message = f"the scheduler failed {MAX_CRASHES} times in a row with this request, or one that was open with it"
    ending = Ending("error", message, "internal_error")
    ended = [msgspec.structs.replace(told, ending=told.ending or ending) for told in accepted.progress]
    return msgspec.structs.replace(accepted, progress=tuple(ended))
