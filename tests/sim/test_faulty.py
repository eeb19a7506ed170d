"""Services with a known fault each: the simulator finds it within some hundred runs, or it would prove nothing."""

from dataclasses import replace
from functools import partial

import msgspec
import pytest

from common import messages as m
from scheduler_svc.core.core import Core
from scheduler_svc.core.executor import plan_answer
from scheduler_svc.core.executor.block_manager import BlockManager
from scheduler_svc.core.executor.capacity import Capacities, TaskCapacities
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.fleet import fleet
from scheduler_svc.core.fleet.fleet import Fleet
from scheduler_svc.core.fleet.step_clock import StepClock
from scheduler_svc.core.observability.service_counters import ServiceCounters
from scheduler_svc.core.requests import journal_replay, record_frames, recovery, request_manager, request_table
from scheduler_svc.core.requests.announcements import Acceptance
from scheduler_svc.core.requests.group_commit import GroupCommit
from scheduler_svc.core.requests.journal_time import Stamp
from scheduler_svc.core.requests.outbox import Outbox
from scheduler_svc.core.requests.request_manager import RequestManager
from scheduler_svc.core.requests.request_table import RequestTable
from scheduler_svc.core.scheduling import admission, sequences, suspects
from scheduler_svc.core.scheduling.fair_shares import Account, FairShares
from scheduler_svc.core.scheduling.needs import Kind, Needs
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.scheduling.sequences import Sequences
from scheduler_svc.core.scheduling.stats import Moves
from scheduler_svc.core.scheduling.suspects import MAX_STRIKES, Suspects
from scheduler_svc.core.scheduling.waiting_queue import WaitingQueue
from scheduler_svc.core.sequence import Sequence, State
from tests.sim.disk import Disk
from tests.sim.planting import Faults, check_found, enter

FAULTS: Faults = []
fault = partial(enter, FAULTS)


# --- pooled results ---


@fault("tasks")
def runs_sequences_whatever_their_task(monkeypatch):
    monkeypatch.setattr(Kind, "has", lambda self, needs: needs.positions <= self.positions)


@fault("tasks", seed=28)
def takes_a_result_that_is_not_in_the_journal_for_told(monkeypatch):
    monkeypatch.setattr(journal_replay._Story, "had_result", lambda self, request: False)


@fault("tasks")
def gives_results_to_the_wrong_sequences(monkeypatch):
    take = plan_answer.take_results

    def shifted(asked, values):
        return take(asked._replace(sequences=[*asked.sequences[1:], asked.sequences[0]]), values)

    monkeypatch.setattr(plan_answer, "take_results", shifted)


# --- keys ---


@fault("revocations")
def ends_what_others_have_open_with_a_key(monkeypatch):
    monkeypatch.setattr(RequestTable, "open_of", lambda self, client: [*self._open.values()][:1])


@fault("revocations")
def ends_only_what_is_read_when_a_key_is_revoked(monkeypatch):
    open_of = RequestTable.open_of
    monkeypatch.setattr(RequestTable, "open_of", lambda self, client: [r for r in open_of(self, client) if r.peer])


# --- shares ---


@fault("calm")
def has_an_account_for_each_priority(monkeypatch):
    share_for = FairShares.share_for

    def split(self, submit):
        share = share_for(self, msgspec.structs.replace(submit, client=f"{submit.client} {submit.priority}"))
        return share._replace(account=f"{submit.client} {submit.priority}")

    monkeypatch.setattr(FairShares, "share_for", split)


@fault("calm")
def charges_a_request_as_one_sequence(monkeypatch):
    share_for = FairShares.share_for

    def cheap(self, submit):
        share = share_for(self, submit)
        return share._replace(cost=share.cost / submit.n)

    monkeypatch.setattr(FairShares, "share_for", cheap)


@fault("calm")
def forgets_weights(monkeypatch):
    share_for = FairShares.share_for
    monkeypatch.setattr(FairShares, "share_for", lambda self, submit: share_for(self, submit)._replace(weight=4.0))


@fault("calm")
def moves_back_whom_answers_that_ended_early_are_given_back(monkeypatch):
    monkeypatch.setattr(Account, "next_start", property(lambda self: self.finish))


@fault("calm")
def takes_a_lane_from_nobody(monkeypatch):
    giver = admission.Admission._giver

    def to_those_that_run(self, executor, sequence, spared=()):
        return giver(self, executor, sequence, spared) if sequence.state is State.RUNNING else None

    monkeypatch.setattr(admission.Admission, "_giver", to_those_that_run)


@fault("restarts")
def begins_each_life_at_no_virtual_time(monkeypatch):
    restore = FairShares.restore

    def anew(self, virtual_time, *others):
        restore(self, 0.0, *others)

    monkeypatch.setattr(FairShares, "restore", anew)


@fault("restarts")
def gives_restored_requests_new_places(monkeypatch):
    new_sequences = sequences.new_sequences

    def moved(*arguments):
        *others, share = arguments
        return new_sequences(*others, share._replace(start=share.start + 1.0))

    restore = Sequences.restore

    def restored(self, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(sequences, "new_sequences", moved)
            return restore(self, *arguments)

    monkeypatch.setattr(Sequences, "restore", restored)


# --- the journal ---


@fault("journal")
def tells_before_it_is_saved(monkeypatch):
    add = GroupCommit.add

    def add_and_tell(self, records, releases, now):
        return [*add(self, records, [], now), *releases]

    monkeypatch.setattr(GroupCommit, "add", add_and_tell)


@fault("journal", seed=115)
def says_that_it_accepted_before_that_is_saved(monkeypatch):
    note = RequestManager._note

    def note_and_tell(self, records, announcements, now):
        hasty = [each for each in announcements if isinstance(each, Acceptance)]
        self._tell(hasty)
        note(self, records, [each for each in announcements if each not in hasty], now)

    monkeypatch.setattr(RequestManager, "_note", note_and_tell)


@fault("journal")
def lets_go_of_what_is_needed(monkeypatch):
    next_batch = GroupCommit.next_batch

    def forgetful(self, now):
        batch = next_batch(self, now)
        return None if batch is None else batch._replace(keep_from=batch.number)

    monkeypatch.setattr(GroupCommit, "next_batch", forgetful)


@fault("restarts")
def forgets_the_old_journal_with_the_first_piece_of_the_new_one(monkeypatch):
    begin = GroupCommit._begin

    def hasty(self, now, **begins):
        batch = begin(self, now, **begins)
        return batch._replace(keep_from=batch.number) if batch.begins else batch

    monkeypatch.setattr(GroupCommit, "_begin", hasty)


@fault("journal")
def does_not_begin_anew_after_a_failure(monkeypatch):
    monkeypatch.setattr(GroupCommit, "may_begin_anew", lambda self, now: False)


@fault("journal")
def restores_without_the_last_token(monkeypatch):
    restore = Scheduler.restore

    def forgetful(self, submit, arrival, earlier, *others, **more):
        cut = [replace(had, output=replace(had.output, token_ids=had.output.token_ids[:-4])) for had in earlier]
        return restore(self, submit, arrival, cut, *others, **more)

    monkeypatch.setattr(Scheduler, "restore", forgetful)


# --- clients that never return ---


@fault("ghosts")
def goes_on_with_what_no_client_can_come_back_for(monkeypatch):
    for module in (request_manager, request_table):
        monkeypatch.setattr(module, "can_return", lambda submit: True)


@fault("ghosts")
def waits_for_ever_for_clients_of_an_earlier_life(monkeypatch):
    restore = RequestManager.restore

    def patient(self, *arguments):
        self._return_s = 1e9
        return restore(self, *arguments)

    monkeypatch.setattr(RequestManager, "restore", patient)


@fault("ghosts")
def counts_what_clients_left_behind(monkeypatch):
    def counted(self, client):
        return sum(request.endings.count(None) for request in self.open_of(client))

    monkeypatch.setattr(RequestTable, "num_counted", counted)


@fault("calm")
def counts_requests_instead_of_sequences(monkeypatch):
    monkeypatch.setattr(RequestTable, "num_counted", lambda self, client: len(self.open_of(client)))


@fault("files", seed=19)
def never_looks_at_its_file(monkeypatch):
    monkeypatch.setattr(Disk, "_look", lambda self: None)


@fault("files", seed=55)
def goes_on_after_a_loss(monkeypatch):
    monkeypatch.setattr(GroupCommit, "lost", lambda self, now: [])


@fault("files")
def tells_ages_by_the_wall_alone(monkeypatch):
    monkeypatch.setattr(Stamp, "age_s", lambda self, clocks: max(0.0, clocks.wall_s - self.wall_s))


@fault("files", seed=250)
def takes_the_walls_time_for_the_journals(monkeypatch):
    monkeypatch.setattr(Stamp, "wall_offset_s", lambda self, clocks: clocks.wall_s - clocks.monotonic_s)


@fault("files")
def believes_damaged_records(monkeypatch):
    def gullible(batch):
        lengths = record_frames._lengths(batch) or ()
        ends = [12 + 4 * len(lengths) + sum(lengths[: i + 1]) + 8 * (i + 1) for i in range(len(lengths))]
        return [batch[end - length : end] for end, length in zip(ends, lengths, strict=True)], 0

    monkeypatch.setattr(journal_replay, "unframe", gullible)


@fault("files", seed=35)
def goes_on_after_a_gap(monkeypatch):
    def append(self, position, token, model, logprob_ids, logprobs):
        self.tokens.append(token)
        self.logprob_ids += logprob_ids
        self.logprobs += logprobs
        self.model = model

    monkeypatch.setattr(journal_replay._Story, "append", append)


@fault("journal")
def forgets_log_probabilities_of_prompts(monkeypatch):
    generated = recovery.Generated
    monkeypatch.setattr(recovery, "Generated", lambda *columns: generated(*columns[:3]))


# --- executors ---


@fault("hostile")
def takes_tokens_of_another_epoch(monkeypatch):
    receive = Fleet.receive

    def gullible(self, peer, message, now):
        member = self._members.get(peer)
        if member is not None and isinstance(message, m.StepResult):
            message = msgspec.structs.replace(message, epoch=member.epoch)
        return receive(self, peer, message, now)

    monkeypatch.setattr(Fleet, "receive", gullible)


@fault("hangs")
def never_notices_a_hung_executor(monkeypatch):
    monkeypatch.setattr(StepClock, "overdue", lambda self, now: None)


@fault("kills")
def never_notices_silence(monkeypatch):
    monkeypatch.setattr(fleet, "LOSS_TIMEOUT_S", 1e9)


@fault("kills")
def never_notices_a_broken_connection(monkeypatch):
    monkeypatch.setattr(Core, "executor_gone", lambda self, peer, now: [])


@fault("drains")
def gives_a_draining_executor_plans(monkeypatch):
    monkeypatch.setattr(ExecutorState, "is_draining", False)


@fault("drains")
def gives_a_finishing_executor_sequences(monkeypatch):
    monkeypatch.setattr(ExecutorState, "is_leaving", ExecutorState.is_draining)


@fault("upgrades")
def goes_on_with_any_model(monkeypatch):
    needs_of = Needs.of
    monkeypatch.setattr(Needs, "of", lambda sequence, grammars: needs_of(sequence, grammars)._replace(model=""))


# --- pools that differ ---


@fault("pools")
def gives_a_default_all_of_the_largest_pool(monkeypatch):
    monkeypatch.setattr(TaskCapacities, "default_max_tokens", lambda self, num_prompt, max_tokens: max_tokens)


@fault("pools")
def waits_for_ever_for_a_pool_that_is_gone(monkeypatch):
    monkeypatch.setattr(WaitingQueue, "stranded", lambda self, since, others_since: ())


@fault("pools")
def gives_up_a_pool_too_early(monkeypatch):
    init = Capacities.__init__
    monkeypatch.setattr(Capacities, "__init__", lambda self, grace_s, *more: init(self, grace_s / 3, *more))


@fault("pools", seed=40)
def does_not_shorten_what_was_a_default(monkeypatch):
    def ended(self, sequence, ready):
        return [self.end(sequence, "error", code="capacity_lost")]

    monkeypatch.setattr(Sequences, "_give_up_length", ended)


@fault("pools")
def forgets_a_pool_as_soon_as_it_is_gone(monkeypatch):
    monkeypatch.setattr(TaskCapacities, "largest", lambda self, now: self.ready or (self._seen if self.is_known else 0))


@fault("pools")
def never_hears_that_an_executor_leaves(monkeypatch):
    def unheard(self, epoch, now, *, in_order=True):
        self.capacities.left(epoch, now, in_order=in_order)

    monkeypatch.setattr(Sequences, "executor_leaves", unheard)


# --- libraries of grammars ---


@fault("grammars")
def masks_by_any_library(monkeypatch):
    monkeypatch.setattr(Sequence, "has_grammar", False)


# --- strikes ---


@fault("poison")
def blames_nobody(monkeypatch):
    monkeypatch.setattr(Scheduler, "blame", lambda self, *arguments, **more: [])


@fault("poison")
def never_runs_a_suspect_alone(monkeypatch):
    for module in (admission, suspects):
        monkeypatch.setattr(module, "is_suspect", lambda sequence: False)


@fault("poison")
def ends_the_earlier_one(monkeypatch):
    strike = Suspects.strike

    def hasty(self, involved, executor):
        strike(self, involved, executor)
        return [sequence for sequence in involved if sequence.strikes >= MAX_STRIKES]

    never_runs_a_suspect_alone(monkeypatch)
    monkeypatch.setattr(Suspects, "strike", hasty)


@fault("spaced")
def never_forgets_a_strike(monkeypatch):
    monkeypatch.setattr(Suspects, "answered", lambda self, rows: None)


# --- rows without numbers ---


@fault("numberless")
def takes_tokens_that_were_computed_with_none(monkeypatch):
    monkeypatch.setattr(plan_answer, "_awaits_token", lambda sequence: sequence.state is not State.FINISHED)


@fault("numberless")
def ends_what_has_no_numbers_once(monkeypatch):
    def hasty(self, executor, sequence):
        return [self.end(sequence, "error", "no numbers", "internal_error")]

    monkeypatch.setattr(Sequences, "doubt", hasty)


@fault("numberless")
def forgets_that_it_was_in_doubt(monkeypatch):
    monkeypatch.setattr(Sequences, "settle", lambda self, sequence: None)


# --- late rows ---


@fault("masks")
def forgets_the_rows_that_are_in_flight_behind_a_late_one(monkeypatch):
    late = Sequences.mask_was_late

    def forgetful(self, executor, sequence):
        late(self, executor, sequence)
        sequence.num_inflight = sequence.num_void = 0

    monkeypatch.setattr(Sequences, "mask_was_late", forgetful)


@fault("masks")
def goes_on_behind_a_late_row_without_starting_its_lane_anew(monkeypatch):
    monkeypatch.setattr(Sequences, "mask_was_late", lambda self, executor, sequence: None)


@fault("masks")
def ends_what_has_a_late_mask(monkeypatch):
    def hasty(self, executor, sequence):
        self.end(sequence, "error", "late", "internal_error")

    monkeypatch.setattr(Sequences, "mask_was_late", hasty)


# --- sequences ---


@fault("kills")
def forgets_the_last_token_of_a_resumed_sequence(monkeypatch):
    remove_executor = Scheduler.remove_executor

    def forgetful(self, epoch, now, pool_wait_s=None):
        resumed = remove_executor(self, epoch, now, pool_wait_s)
        for sequence in resumed:
            if sequence.num_output:
                sequence.tokens.pop()
        return resumed

    monkeypatch.setattr(Scheduler, "remove_executor", forgetful)


@fault("everything")
def measures_no_pause_of_a_preempted_sequence(monkeypatch):
    moved = ServiceCounters.moved
    monkeypatch.setattr(ServiceCounters, "moved", lambda self, moves, now: moved(self, Moves(moves.admitted), now))


@fault("calm")
def keeps_the_blocks_of_a_cancelled_sequence(monkeypatch):
    cancel = Scheduler.cancel

    def leaky(self, sequences):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(BlockManager, "release", lambda self, table: None)
            return cancel(self, sequences)

    monkeypatch.setattr(Scheduler, "cancel", leaky)


@fault("calm")
def lets_requests_outlive_their_deadline(monkeypatch):
    monkeypatch.setattr(Scheduler, "expire", lambda self, now: [])


# --- readers ---


@fault("calm")
def tells_no_frontend_that_it_accepted(monkeypatch):
    monkeypatch.setattr(Outbox, "accepted", lambda self, peer, request_id: None)


@fault("calm")
def says_twice_that_it_accepted(monkeypatch):
    accepted = Outbox.accepted

    def talkative(self, peer, request_id):
        for _ in range(2):
            accepted(self, peer, request_id)

    monkeypatch.setattr(Outbox, "accepted", talkative)


@fault("calm", seed=26)
def says_that_it_accepted_what_it_refused(monkeypatch):
    refuse = Outbox.refuse

    def contradicting(self, peer, request_id, refusal):
        if refusal.code != "taken_over":
            self.accepted(peer, request_id)
        refuse(self, peer, request_id, refusal)

    monkeypatch.setattr(Outbox, "refuse", contradicting)


@fault("calm")
def skips_a_token_for_who_attaches(monkeypatch):
    attach = Outbox.attach

    def skipping(self, peer, sequences, progress):
        shorter = tuple(msgspec.structs.replace(told, token_ids=told.token_ids[4:]) for told in progress)
        attach(self, peer, sequences, shorter)

    monkeypatch.setattr(Outbox, "attach", skipping)


@fault("frontends")
def tells_a_slow_reader_twice(monkeypatch):
    sent = Outbox.sent

    def doubling(self, peer):
        queue = [(stream, stream.tokens[:]) for stream in self._queues.get(peer, ()) if stream.ending is None]
        sent(self, peer)
        for stream, tokens in queue:
            if len(tokens) > 2 and not stream.queued:
                stream.tokens = tokens

    monkeypatch.setattr(Outbox, "sent", doubling)


@fault("frontends", seed=33)
def lets_a_former_reader_detach(monkeypatch):
    detach = RequestManager.detach

    def careless(self, peer, request_id, now):
        request = self.table.find(request_id)
        return detach(self, peer if request is None else request.peer, request_id, now)

    monkeypatch.setattr(RequestManager, "detach", careless)


@fault("calm", seed=26)
def never_cancels_what_nobody_reads(monkeypatch):
    monkeypatch.setattr(RequestTable, "late", lambda self, now: iter(()))


@fault("calm")
def remembers_what_has_ended_for_ever(monkeypatch):
    monkeypatch.setattr(RequestTable, "let_go", lambda self, now: iter(()))


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "seed", "patch"), FAULTS, ids=[patch.__name__ for *_, patch in FAULTS])
def test_the_fault_is_found(profile, seed, patch, monkeypatch):
    patch(monkeypatch)
    check_found(profile, seed)
