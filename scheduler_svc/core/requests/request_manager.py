"""Requests of all frontends: they come in, and tokens go out. Pure.

What is to be told of a request passes the group commit (on disk first), if its client can come back for it, and then
waits in the outbox for its reader.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import cast

import msgspec

from common import messages as m
from common.errors import RequestRejected
from common.vocabulary import Vocabulary
from scheduler_svc.core.actions import Action, EndFrontend, Level, Peer, log_line
from scheduler_svc.core.requests import log_lines
from scheduler_svc.core.requests.accounts import Accounts
from scheduler_svc.core.requests.announcements import Acceptance, Announcement, Attachment
from scheduler_svc.core.requests.frontends import END_AFTER_S, Frontends
from scheduler_svc.core.requests.group_commit import (
    BatchSaved,
    GroupCommit,
    JournalBatch,
    JournalLost,
    JournalResult,
    JournalState,
)
from scheduler_svc.core.requests.journal_records import (
    AccountRecord,
    AnyRecord,
    EndRecord,
    LifeRecord,
    Progress,
    RequestRecord,
    SharesRecord,
    step_records,
)
from scheduler_svc.core.requests.log_length import LIFE, SHARES
from scheduler_svc.core.requests.outbox import Outbox
from scheduler_svc.core.requests.recovery import (
    KEY_REVOKED,
    CrashCount,
    life_record,
    of_these_clients,
    of_this_tokenizer,
    remembered,
    restored,
)
from scheduler_svc.core.requests.request_counters import RequestCounters
from scheduler_svc.core.requests.request_table import Request, RequestTable
from scheduler_svc.core.requests.retention import MAX_RETAINED, Retention
from scheduler_svc.core.requests.returning_clients import RETURN_WITHIN_S, can_return
from scheduler_svc.core.scheduling.fair_shares import SavedAccount
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.step_output import SequenceEnd, StepOutput

RECONNECT_GRACE_S = 30.0
LIFE_EVERY_S = 0.1
SHARES_EVERY_S = 1.0
MAX_TOLD_AT_ONCE = 128  # announcements: what more are released together is told as a chore
NO_LIFE, NO_SHARES = LifeRecord(0), SharesRecord()
AT_RISK = "requests accepted from now on would not survive the scheduler"


class RequestManager:
    """Requests of all frontends.

    Args:
        scheduler: runs them.
        counters: count what happens to them.
        journal, first_batch: whether there is one, and the number of its next batch.
        wall_offset_s: what to add to the caller's time to get the time on the journal's timeline.
        vocabularies: by task, that of the model that is served; none where it is not known.
        client_ids: of all API keys, by their names, for a journal of a release without ids; None if nobody needs a key.
        reconnect_grace_s: how long a request without a reader goes on.
        return_within_s: how long a restored one waits for its client at least.
        end_frontend_after_s: how long a frontend may be silent before it is ended.
        max_retained: requests that have ended and are kept for clients that come back.

    Attributes:
        frontends: that are connected.
        table: the requests that are open or retained.
        group_commit: holds announcements back until the journal has their records.
        outbox: what waits for frontends.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        counters: RequestCounters,
        journal: JournalState,
        first_batch: int,
        *,
        wall_offset_s: float = 0.0,
        vocabularies: Mapping[m.Task, Vocabulary] | None = None,
        client_ids: Mapping[str, str] | None = None,
        reconnect_grace_s: float = RECONNECT_GRACE_S,
        return_within_s: float = RETURN_WITHIN_S,
        end_frontend_after_s: float = END_AFTER_S,
        max_retained: int = MAX_RETAINED,
    ) -> None:
        self.frontends = Frontends(end_frontend_after_s)
        self.outbox = Outbox()
        self.table = RequestTable(Retention(max_retained))
        self.group_commit: GroupCommit[Announcement] = GroupCommit(journal, first_batch)
        self._accounts = Accounts()
        self._scheduler = scheduler
        self._counters = counters
        self._wall_offset_s = wall_offset_s
        self._vocabularies = vocabularies or {}
        self._client_ids = client_ids
        self._grace_s = reconnect_grace_s
        self._return_s = max(return_within_s, reconnect_grace_s)
        self._crash_count = CrashCount()
        self._life_noted: LifeRecord | None = NO_LIFE  # None: it has to be noted again
        self._life_due = float("-inf")
        self._shares = scheduler.sequences.shares
        self._shares_due = float("-inf")
        self._are_shares_whole = False  # whether the journal has all accounts
        self._revoked: deque[str] = deque()  # clients that may still have requests in the table
        self._gone: deque[Peer] = deque()  # frontends that still have requests in the table
        self._untold: deque[Announcement] = deque()

    # --- what frontends say ---

    def heard(self, peer: Peer, now: float) -> list[Action]:
        """A frontend has said something."""
        is_new = self.frontends.heard(peer, now)
        return [log_line("info", "frontend connected", peer=peer.hex())] if is_new else []

    def submit(self, peer: Peer, submit: m.Submit, now: float) -> list[Action]:
        """Accept or refuse a request."""
        try:
            self.table.check_new(submit)
            asked = self._accounts.check(submit, now)
            sequences = self._scheduler.add(asked, now)
        except RequestRejected as refusal:
            return self._refuse(peer, submit, refusal, now)
        # A default max_tokens may have been cut, and nobody is to know any more where the request came from.
        submit = msgspec.structs.replace(asked, params=sequences[0].params, address="")
        self._accounts.pay(submit, now)
        self._accounts.settle(submit, asked.most_tokens - submit.most_tokens, 0, now)
        self._counters.request_taken(submit)
        self._tell_limits(peer, submit, now, is_accepted=True)
        vocabulary = self._vocabularies.get(submit.params.task)
        request = Request(submit, sequences, now, peer, tokenizer=vocabulary.tokenizer if vocabulary else "")
        self._enter(request, now)
        self._counters.submitted(sequences, now)
        self.outbox.open(peer, submit, sequences)
        announcements: list[Announcement] = [Acceptance(peer, request)] if submit.stream else []
        if request.is_journaled:
            self._note([self._record(request)], announcements, now)
        else:
            self._tell(announcements)
        return []

    def attach(self, peer: Peer, request_id: str, now: float) -> list[Action]:
        """A client has come back for its request."""
        request = self.table.find(request_id)
        if request is None:
            self.outbox.answer(peer, m.Attached(request_id=request_id, found=False))
            return []
        if request.ended_at is None:
            self.table.attach(request, peer)
        attachment = Attachment(peer, request, request.progress(self._scheduler.output_of))
        if request.is_journaled:
            self._note([], [attachment], now)
        else:
            self._tell([attachment])
        return [log_line("info", "request attached", request=request_id, peer=peer.hex())]

    def detach(self, peer: Peer, request_id: str, now: float) -> list[Action]:
        """The client of a request is away, and may come back."""
        request = self.table.find(request_id)
        if request is None or request.ended_at is not None or request.peer != peer:
            return []
        self.outbox.close(request.sequences)
        return self._leave_alone(request, now)

    def cancel(self, peer: Peer, request_id: str, index: int, now: float) -> list[Action]:
        """A frontend wants no more of a request, or of one of its sequences.

        The frontend may not know that another one reads the request by now; then nothing is cancelled.
        """
        request = self.table.find(request_id)
        if request is None or (request.peer not in (peer, None) and request.peer in self.frontends):
            return []
        return self._cancel(request_id, index, now)

    def revoke(self, client: str) -> list[Action]:
        """Have `chores` end all that a client has open: its key was revoked."""
        if client in self._revoked or not (requests := self.table.open_of(client)):
            return []
        self._revoked.append(client)
        name = requests[0].submit.client_name
        return [log_line("warning", "requests ended: key revoked", client=name, id=client, requests=len(requests))]

    def gone(self, peer: Peer, reason: str, now: float) -> list[Action]:
        """The connection to a frontend broke: its requests have no reader until a client comes back."""
        if not self.frontends.remove(peer):
            return []
        num_requests = len(self.table.of_peer(peer))
        self.outbox.forget(peer)
        self._gone.append(peer)
        level: Level = "warning" if num_requests else "info"
        noted = log_line(level, "frontend gone", peer=peer.hex(), reason=reason, requests_detached=num_requests)
        return [noted]

    # --- what the scheduler gives ---

    def stepped(self, output: StepOutput, now: float) -> None:
        """A step gave tokens."""
        journaled, plain = self._parts(output)
        self._counters.stepped(output, now)
        for end in output.ends:
            self._sequence_ended(end, now)
        if plain is not None:
            self._tell([plain])
        if journaled is not None:
            self._note(step_records(journaled), [journaled], now)

    def ended(self, ends: list[SequenceEnd], now: float) -> list[Action]:
        """Sequences have ended other than by a step."""
        for end in ends:
            self._counters.ended(end, now)
            self._sequence_ended(end, now)
            if end.sequence.is_journaled:
                self._note([EndRecord.of(end)], [end], now)
            else:
                self._tell([end])
        return log_lines.failures(ends)

    @property
    def has_untold(self) -> bool:
        """Whether announcements are left for `chores` to tell."""
        return bool(self._untold)

    def chores(self, now: float) -> Iterator[list[Action]]:
        """Do what is due and may be much, a little at each step. What the caller leaves undone the next call finds."""
        self._note_shares(now)
        for peer, silence_s in self.frontends.newly_silent(now):  # it is busy, or frozen: nothing ends for that
            facts = {"peer": peer.hex(), "pid": self.frontends.pid(peer), "silent_s": round(silence_s, 1)}
            yield [log_line("warning", "frontend silent", **facts)]
        for peer, _ in self.frontends.hanging(now):
            end = EndFrontend(peer, self.frontends.pid(peer))
            yield [*self.gone(peer, "it hangs and is ended", now), end]
        while self._revoked:
            for request in self.table.open_of(self._revoked[0]):
                yield self.ended(self._scheduler.fail(request.sequences, KEY_REVOKED, "invalid_api_key"), now)
            self._revoked.popleft()
        while self._gone:
            for request in [*self.table.of_peer(self._gone[0])]:
                yield self._leave_alone(request, now)
            self._gone.popleft()
        while self._untold:
            self._tell_next()
            yield []
        while (late := next(self.table.late(now), None)) is not None:
            noted = log_line("info", "request cancelled: its client did not come back", request=late.id)
            yield [noted, *self._cancel(late.id, -1, now)]
        for request_ids in self.table.let_go(now):
            for request_id in request_ids:
                self.group_commit.let_go(request_id)
            yield []
        for _ in self.group_commit.chores():
            yield []

    def tick(self, now: float) -> list[Action]:
        """Do what is due and never much: find a journal that is stuck or too long."""
        actions: list[Action] = []
        overgrown = self.group_commit.overgrown()
        if self._crash_count.survived(now) or overgrown == LIFE:
            self._life_noted, self._life_due = None, now
        if overgrown == SHARES:
            self._are_shares_whole, self._shares_due = False, now
        if overgrown is not None and (request := self.table.find(overgrown)) is not None:
            self._note([self._record(request)], [], now)
        was_ok = self.group_commit.state is JournalState.OK
        self._tell(self.group_commit.tick(now))
        if was_ok and self.group_commit.state is JournalState.FAILED:
            actions.append(log_line("error", "journal stuck", consequence=AT_RISK))
        return actions

    def paused(self, seconds: float, now: float) -> None:
        """This side has not run for so long: it could not hear, and clients may need that long to come back."""
        self.frontends.paused(seconds, now)
        self.table.paused(seconds)
        self.group_commit.paused(seconds, now)

    # --- the journal ---

    def restore(
        self,
        records: list[RequestRecord],
        now: float,
        life: LifeRecord = NO_LIFE,
        shares: SharesRecord = NO_SHARES,
    ) -> list[Action]:
        """Take up the requests of an earlier life, which wait for their clients. A journal of an earlier release has
        some whose clients cannot come back: these are dropped.

        Args:
            life: what was known beside requests. After `MAX_CRASHES` the open requests are ended, because one of them
                would bring the fault about again.
        """
        saved = (SavedAccount(*msgspec.structs.astuple(account)) for account in shares.accounts)
        self._shares.restore(shares.virtual_time, shares.mean_cost, saved)
        self._scheduler.remember(remembered(life, records), cast("tuple[m.Task, ...]", life.tasks))
        records = [record for record in records if can_return(record.submit)]
        records, given_up = self._crash_count.begin(life.crashes, records, now)
        records, foreign = of_this_tokenizer(records, self._vocabularies)
        records, keyless = of_these_clients(records, self._client_ids)
        num_open = 0
        for record in records:
            request = restored(record, self._scheduler, self._wall_offset_s)
            endings = zip(request.sequences, request.endings, strict=True)
            open_ones = [sequence for sequence, ending in endings if ending is None]
            self._counters.submitted(open_ones, now, is_restored=True)
            request.is_unclaimed = True
            self._enter(request, now)
            if request.ended_at is None:
                num_open += 1
                self.table.detach(request, self._return_s, now)
        self._counters.requests_restored(num_open)
        facts = {"open": num_open, "ended": len(records) - num_open}
        actions: list[Action] = [log_line("info", "requests restored from the journal", **facts)] if records else []
        if foreign:
            actions.append(log_line("warning", "requests ended: their tokenizer is gone", requests=",".join(foreign)))
        if keyless:
            actions.append(log_line("warning", "requests ended: key revoked", requests=",".join(keyless)))
        if given_up is not None:
            actions.append(log_line("error", "requests given up", crashes=life.crashes, requests=",".join(given_up)))
        return actions

    def next_batch(self, now: float) -> JournalBatch | None:
        """What is to be written to the journal now, if anything."""
        if self.group_commit.may_begin_anew(now):
            return self.new_journal(now)
        self._note_life(now)
        return self.group_commit.next_batch(now)

    def new_journal(self, now: float) -> JournalBatch:
        """The first of the batches that replace all that was written before."""
        return self.group_commit.begin_anew(self._all_records(now), now)

    def crashed(self) -> JournalBatch:
        """The last batch of a core that has failed: the next life has to know of it."""
        executors = (self._life_noted or NO_LIFE).executors
        return self.group_commit.last_batch(LifeRecord(self._crash_count.crashes + 1, executors))

    def batch_written(self, result: JournalResult, now: float) -> list[Action]:
        """The journal tells what became of a batch, or of itself."""
        before = self.group_commit.state
        self._tell(self.group_commit.take(result, now))
        if self.group_commit.state is before:
            return []
        if isinstance(result, BatchSaved):
            return [log_line("info", "journal works again", batch=result.number)]
        event = "journal lost" if isinstance(result, JournalLost) else "journal failed"
        return [log_line("error", event, reason=result.reason, consequence=AT_RISK)]

    # --- inside ---

    def _refuse(self, peer: Peer, submit: m.Submit, refusal: RequestRejected, now: float) -> list[Action]:
        refusal.with_traceback(None)  # its frames may refer to it: only the collector would free them
        if submit.charge is None and refusal.code != "request_exists":  # the first prompt has paid for it
            self._accounts.settle(submit, submit.most_tokens, 0, now)
        self._counters.request_refused(refusal.code)
        self._tell_limits(peer, submit, now, is_accepted=False)
        self.outbox.refuse(peer, submit.request_id, refusal)
        facts = {"request": submit.request_id, "code": refusal.code, "reason": str(refusal)}
        return [log_line("debug", "request refused", **facts)]

    def _tell_limits(self, peer: Peer, submit: m.Submit, now: float, *, is_accepted: bool) -> None:
        if (limits := self._accounts.limits(submit, now, is_accepted=is_accepted)) is not None:
            self.outbox.answer(peer, limits)

    def _sequence_ended(self, end: SequenceEnd, now: float) -> None:
        if (request := self.table.ended(end, now)) is not None:
            num_output = sum(sequence.num_output for sequence in request.sequences)
            self._accounts.ended(request.submit, num_output, now)
            self._counters.request_ended(request.submit, num_output)

    def _enter(self, request: Request, now: float) -> None:
        """A request begins, or is taken up again. Here it is decided whether the journal has it."""
        request.is_journaled = can_return(request.submit)
        self.table.add(request, now)

    def _parts(self, output: StepOutput) -> tuple[StepOutput | None, StepOutput | None]:
        """What the journal has to have of a step before it is told, and what is told at once."""
        num_journaled = self.table.num_returning
        if num_journaled == 0 or not self.group_commit.is_recording:
            return None, output
        is_all = num_journaled == self.table.num_open and self.group_commit.state is JournalState.OK
        return (output, None) if is_all else output.split()

    def _all_records(self, now: float) -> Iterator[AnyRecord]:
        """What a journal that is begun anew has to have, each request as it is when it is asked for.

        After a failure the journal lacks something of every request. It follows each again from its record on: what
        came before that would stand behind a gap.
        """
        requests = [request for request in self.table.all() if can_return(request.submit)]
        if self.group_commit.state is JournalState.FAILED:
            for sequence in (each for request in requests for each in request.sequences):
                sequence.is_journaled = False
        for request in requests:
            if self.table.find(request.id) is request:  # or it was let go meanwhile
                request.is_journaled = True
                yield self._record(request)
        yield self._life(now)
        yield self._shares_record(now, is_whole=True)

    def _life(self, now: float) -> LifeRecord:
        """What the next life is to know beside requests."""
        self._life_due = now + LIFE_EVERY_S
        executors, tasks = self._scheduler.known_executors(now), self._scheduler.sequences.capacities.taken
        self._life_noted = life_record(self._crash_count.crashes, executors, tasks)
        return self._life_noted

    def _note_life(self, now: float) -> None:
        """Note that in the journal if it has changed, ten times a second at most."""
        if now >= self._life_due and self.group_commit.is_recording:
            before = self._life_noted
            if (life := self._life(now)) != before:
                self._note([life], [], now)

    def _shares_record(self, now: float, *, is_whole: bool) -> SharesRecord:
        self._shares_due, self._are_shares_whole = now + SHARES_EVERY_S, True
        accounts = self._shares.saved(is_whole=is_whole)
        records = tuple(AccountRecord(*account) for account in accounts)
        return SharesRecord(self._shares.virtual_time, self._shares.cost.value, records, is_whole)

    def _note_shares(self, now: float) -> None:
        """Note in the journal what clients have asked for, once a second at most, if requests of keys have come."""
        if now >= self._shares_due and self.group_commit.is_recording:
            record = self._shares_record(now, is_whole=not self._are_shares_whole)
            if record.accounts:
                self._note([record], [], now)

    def _leave_alone(self, request: Request, now: float) -> list[Action]:
        """A request has lost its reader: cancel it when the grace is over, or now if there is none."""
        self.table.detach(request, self._grace_s, now)
        return [] if self._grace_s else self._cancel(request.id, -1, now)

    def _cancel(self, request_id: str, index: int, now: float) -> list[Action]:
        request = self.table.find(request_id)
        sequences = request.sequences if request is not None else []
        return self.ended(self._scheduler.cancel(s for s in sequences if index in (-1, s.index)), now)

    def _record(self, request: Request) -> RequestRecord:
        return request.record(self._scheduler.output_of, self._wall_offset_s)

    def _note(self, records: list[AnyRecord], announcements: list[Announcement], now: float) -> None:
        self._tell(self.group_commit.add(records, announcements, now))

    def _tell(self, announcements: list[Announcement]) -> None:
        """What these announcements say is on disk, or need not be: put them into the outbox, after all before them."""
        if not announcements:
            return
        is_first = not self._untold
        self._untold += announcements
        if is_first:
            for _ in range(min(MAX_TOLD_AT_ONCE, len(self._untold))):
                self._tell_next()

    def _tell_next(self) -> None:
        match announcement := self._untold.popleft():
            case StepOutput():
                self.outbox.push(announcement)
            case SequenceEnd():
                self.outbox.end(announcement)
            case Acceptance(peer, request) if peer in self.frontends and request.peer in (peer, None):
                self.outbox.accepted(peer, request.id)
            case Attachment(peer, request, progress) if peer in self.frontends:
                self._attached(peer, request, progress)

    def _attached(self, peer: Peer, request: Request, progress: tuple[Progress, ...]) -> None:
        submit = request.submit
        answer = m.Attached(
            request_id=submit.request_id,
            found=True,
            prompt=submit.prompt,
            n=submit.n,
            context=submit.context,
        )
        self.outbox.answer(peer, answer)
        if request.ended_at is not None or request.peer == peer:
            self.outbox.attach(peer, request.sequences, progress)
        else:  # another frontend came for the request while the journal was written
            self.outbox.take_over(peer, request.id)
