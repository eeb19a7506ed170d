"""Services with a known fault each: the simulator finds it within some hundred runs, or it would prove nothing."""

from array import array
from dataclasses import replace
from functools import partial
from itertools import accumulate

import msgspec
import pytest

from common import messages as m
from scheduler_svc.core.core import Core
from scheduler_svc.core.executor import executor_state, plan_answer
from scheduler_svc.core.executor.block_manager import BlockManager
from scheduler_svc.core.executor.capacity import Capacities, TaskCapacities
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.fleet import fleet
from scheduler_svc.core.fleet.fleet import Fleet
from scheduler_svc.core.fleet.step_clock import StepClock
from scheduler_svc.core.observability.service_counters import ServiceCounters
from scheduler_svc.core.requests import journal_replay, recovery, request_manager, request_table
from scheduler_svc.core.requests.announcements import Acceptance
from scheduler_svc.core.requests.group_commit import GroupCommit
from scheduler_svc.core.requests.journal_time import Stamp
from scheduler_svc.core.requests.outbox import Outbox
from scheduler_svc.core.requests.record_frames import unframe
from scheduler_svc.core.requests.request_manager import RequestManager
from scheduler_svc.core.requests.request_table import RequestTable
from scheduler_svc.core.requests.token_stream import TokenStream
from scheduler_svc.core.scheduling import admission, placement, sequences, suspects
from scheduler_svc.core.scheduling.admission import Admission
from scheduler_svc.core.scheduling.fair_shares import Account, FairShares
from scheduler_svc.core.scheduling.needs import Kind, Needs
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.scheduling.sequences import Sequences
from scheduler_svc.core.scheduling.stats import Moves
from scheduler_svc.core.scheduling.suspects import MAX_STRIKES, Suspects
from scheduler_svc.core.scheduling.waiting_queue import WaitingQueue
from scheduler_svc.core.sequence import Sequence
from tests.sim.disk import Disk
from tests.sim.planting import Faults, check_applies, check_found, enter, planted

FAULTS: Faults = []
fault = partial(enter, FAULTS)


# --- pooled results ---


@fault("tasks")
def runs_sequences_whatever_their_task():
    yield Kind, "has", lambda self, needs: needs.positions <= self.positions


@fault("tasks", seed=109)
def takes_a_result_that_is_not_in_the_journal_for_told():
    yield journal_replay._Story, "had_result", lambda self, request: False


@fault("tasks", seed=10)
def gives_results_to_the_wrong_sequences():
    take = plan_answer.take_results

    def shifted(asked, values):
        return take(asked._replace(sequences=[*asked.sequences[1:], asked.sequences[0]]), values)

    yield plan_answer, "take_results", shifted


# --- keys ---


@fault("revocations", seed=59)
def ends_what_others_have_open_with_a_key():
    yield RequestTable, "open_of", lambda self, client: [r for r in self.all() if r.ended_at is None][:1]


@fault("revocations", seed=150)
def ends_only_what_is_read_when_a_key_is_revoked():
    open_of = RequestTable.open_of
    yield RequestTable, "open_of", lambda self, client: [r for r in open_of(self, client) if r.peer]


# --- shares ---


@fault("calm", seed=11)
def has_an_account_for_each_priority():
    share_for = FairShares.share_for

    def split(self, submit):
        share = share_for(self, msgspec.structs.replace(submit, client=f"{submit.client} {submit.priority}"))
        return share._replace(account=f"{submit.client} {submit.priority}")

    yield FairShares, "share_for", split


@fault("calm")
def charges_a_request_as_one_sequence():
    share_for = FairShares.share_for

    def cheap(self, submit):
        share = share_for(self, submit)
        return share._replace(cost=share.cost / submit.n)

    yield FairShares, "share_for", cheap


@fault("calm")
def forgets_weights():
    share_for = FairShares.share_for
    yield FairShares, "share_for", lambda self, submit: share_for(self, submit)._replace(weight=4.0)


@fault("calm", seed=15)
def moves_back_whom_answers_that_ended_early_are_given_back():
    yield Account, "next_start", property(lambda self: self.finish)


@fault("calm", seed=290)
def takes_a_lane_from_nobody():
    may_admit = Admission.may_admit
    yield Admission, "may_admit", lambda self, executor: executor.running.has_free_lane and may_admit(self, executor)


@fault("restarts")
def begins_each_life_at_no_virtual_time():
    restore = FairShares.restore

    def anew(self, virtual_time, *others):
        restore(self, 0.0, *others)

    yield FairShares, "restore", anew


@fault("restarts", seed=7)
def gives_restored_requests_new_places():
    new_sequences = sequences.new_sequences

    def moved(*arguments):
        *others, share = arguments
        return new_sequences(*others, share._replace(start=share.start + 1.0))

    restore = Sequences.restore

    def restored(self, *arguments):
        with planted([(sequences, "new_sequences", moved)]):
            return restore(self, *arguments)

    yield Sequences, "restore", restored


# --- the journal ---


@fault("journal", seed=47)
def tells_before_it_is_saved():
    add = GroupCommit.add

    def add_and_tell(self, records, releases, now):
        return [*add(self, records, [], now), *releases]

    yield GroupCommit, "add", add_and_tell


@fault("journal", seed=115)
def says_that_it_accepted_before_that_is_saved():
    add = GroupCommit.add

    def add_and_tell(self, records, announcements, now):
        hasty = [each for each in announcements if isinstance(each, Acceptance)]
        return [*hasty, *add(self, records, [each for each in announcements if each not in hasty], now)]

    yield GroupCommit, "add", add_and_tell


@fault("journal", seed=5)
def lets_go_of_what_is_needed():
    next_batch = GroupCommit.next_batch

    def forgetful(self, now):
        batch = next_batch(self, now)
        return None if batch is None else batch._replace(keep_from=batch.number)

    yield GroupCommit, "next_batch", forgetful


@fault("restarts", seed=10)
def forgets_the_old_journal_with_the_first_piece_of_the_new_one():
    begin_anew = GroupCommit.begin_anew

    def hasty(self, records, now):
        batch = begin_anew(self, records, now)
        return batch._replace(keep_from=batch.number)

    yield GroupCommit, "begin_anew", hasty


@fault("journal")
def does_not_begin_anew_after_a_failure():
    yield GroupCommit, "may_begin_anew", lambda self, now: False


@fault("journal", seed=5)
def restores_without_the_last_token():
    restore = Scheduler.restore

    def forgetful(self, submit, arrival, earlier, *others, **more):
        cut = [replace(had, output=replace(had.output, token_ids=had.output.token_ids[:-4])) for had in earlier]
        return restore(self, submit, arrival, cut, *others, **more)

    yield Scheduler, "restore", forgetful


# --- clients that never return ---


@fault("ghosts", seed=10)
def goes_on_with_what_no_client_can_come_back_for():
    for module in (request_manager, request_table):
        yield module, "can_return", lambda submit: True


@fault("ghosts", seed=8)
def waits_for_ever_for_clients_of_an_earlier_life():
    init = RequestManager.__init__

    def patient(self, *arguments, **settings):
        init(self, *arguments, **settings | {"return_within_s": 1e9})

    yield RequestManager, "__init__", patient


@fault("ghosts", seed=8)
def counts_what_clients_left_behind():
    def counted(self, client):
        return sum(request.endings.count(None) for request in self.open_of(client))

    yield RequestTable, "num_counted", counted


@fault("calm", seed=33)
def counts_requests_instead_of_sequences():
    yield RequestTable, "num_counted", lambda self, client: len(self.open_of(client))


@fault("files", seed=19)
def never_looks_at_its_file():
    yield Disk, "look", lambda self: None


@fault("files", seed=55)
def goes_on_after_a_loss():
    yield GroupCommit, "lost", lambda self, now: []


@fault("files")
def tells_ages_by_the_wall_alone():
    yield Stamp, "age_s", lambda self, clocks: max(0.0, clocks.wall_s - self.wall_s)


@fault("files", seed=250)
def takes_the_walls_time_for_the_journals():
    yield Stamp, "wall_offset_s", lambda self, clocks: clocks.wall_s - clocks.monotonic_s


@fault("files", seed=45)
def believes_damaged_records():
    def gullible(batch):
        """Look at no checksum, unless the lengths cannot be true."""
        end_of_table = 4 + int.from_bytes(batch[:4], "little")
        table = batch[12:end_of_table]
        lengths = array("I", table) if len(table) % 4 == 0 else []
        if len(batch) != 2 * end_of_table + sum(lengths) + 8 * len(lengths):
            return unframe(batch)
        ends = [end_of_table + total + 8 * (i + 1) for i, total in enumerate(accumulate(lengths))]
        return [batch[end - length : end] for end, length in zip(ends, lengths, strict=True)], 0

    yield journal_replay, "unframe", gullible


@fault("files", seed=45)
def goes_on_after_a_gap():
    def append(self, position, token, model, logprob_ids, logprobs):
        self.tokens.append(token)
        self.logprob_ids += logprob_ids
        self.logprobs += logprobs
        self.model = model

    yield journal_replay._Story, "append", append


@fault("journal", seed=8)
def forgets_log_probabilities_of_prompts():
    generated = recovery.Generated
    yield recovery, "Generated", lambda *columns: generated(*columns[:3])


# --- executors ---


@fault("hostile", seed=9)
def takes_tokens_of_another_epoch():
    receive = Fleet.receive

    def gullible(self, peer, message, now):
        member = next((member for member in self if member.peer == peer), None)
        if member is not None and isinstance(message, m.StepResult):
            message = msgspec.structs.replace(message, epoch=member.epoch)
        return receive(self, peer, message, now)

    yield Fleet, "receive", gullible


@fault("hangs", seed=8)
def never_notices_a_hung_executor():
    yield StepClock, "overdue", lambda self, now: None


@fault("kills")
def never_notices_silence():
    yield fleet, "LOSS_TIMEOUT_S", 1e9


@fault("kills", seed=121)
def never_notices_a_broken_connection():
    yield Core, "executor_gone", lambda self, peer, now: []


@fault("drains")
def gives_a_draining_executor_plans():
    yield ExecutorState, "is_draining", False


@fault("drains")
def gives_a_finishing_executor_sequences():
    yield ExecutorState, "is_leaving", ExecutorState.is_draining


@fault("upgrades")
def goes_on_with_any_model():
    needs_of = Needs.of
    yield Needs, "of", lambda sequence, grammars: needs_of(sequence, grammars)._replace(model="")


# --- pools that differ ---


@fault("pools")
def gives_a_default_all_of_the_largest_pool():
    yield TaskCapacities, "default_max_tokens", lambda self, num_prompt, max_tokens: max_tokens


@fault("pools", seed=5)
def waits_for_ever_for_a_pool_that_is_gone():
    yield WaitingQueue, "stranded", lambda self, since, others_since: ()


@fault("pools")
def gives_up_a_pool_too_early():
    init = Capacities.__init__
    yield Capacities, "__init__", lambda self, grace_s, *more: init(self, grace_s / 3, *more)


@fault("pools", seed=40)
def does_not_shorten_what_was_a_default():
    def ended(self, sequence, ready):
        return [self.end(sequence, "error", code="capacity_lost")]

    yield Sequences, "_give_up_length", ended


@fault("pools")
def forgets_a_pool_as_soon_as_it_is_gone():
    yield TaskCapacities, "largest", lambda self, now: self.ready or (self.seen if self.is_known else 0)


@fault("pools")
def never_hears_that_an_executor_leaves():
    def unheard(self, epoch, now, *, in_order=True):
        self.capacities.left(epoch, now, in_order=in_order)

    yield Sequences, "executor_leaves", unheard


# --- libraries of grammars ---


@fault("grammars")
def masks_by_any_library():
    yield Sequence, "has_grammar", False


# --- strikes ---


@fault("poison")
def blames_nobody():
    yield Scheduler, "blame", lambda self, *arguments, **more: []


@fault("poison")
def never_runs_a_suspect_alone():
    for module in (admission, suspects):
        yield module, "is_suspect", lambda sequence: False


@fault("poison")
def ends_the_earlier_one():
    strike = Suspects.strike

    def hasty(self, involved, executor):
        strike(self, involved, executor)
        return [sequence for sequence in involved if sequence.strikes >= MAX_STRIKES]

    yield from never_runs_a_suspect_alone()
    yield Suspects, "strike", hasty


@fault("spaced", seed=40)
def never_forgets_a_strike():
    yield Suspects, "answered", lambda self, rows: None


# --- rows without numbers ---


@fault("numberless", seed=8)
def takes_tokens_that_were_computed_with_none():
    take_answer = executor_state.take_answer

    def gullible(plan, *others):
        for sequence in plan.sequences:
            sequence.num_void = 0
        return take_answer(plan, *others)

    yield executor_state, "take_answer", gullible


@fault("numberless")
def ends_what_has_no_numbers_once():
    def hasty(self, executor, sequence):
        return [self.end(sequence, "error", "no numbers", "internal_error")]

    yield Sequences, "doubt", hasty


@fault("numberless")
def forgets_that_it_was_in_doubt():
    yield Sequences, "settle", lambda self, sequence: None


# --- late rows ---


@fault("masks")
def forgets_the_rows_that_are_in_flight_behind_a_late_one():
    late = Sequences.mask_was_late

    def forgetful(self, executor, sequence):
        late(self, executor, sequence)
        sequence.num_inflight = sequence.num_void = 0

    yield Sequences, "mask_was_late", forgetful


@fault("masks")
def goes_on_behind_a_late_row_without_starting_its_lane_anew():
    yield Sequences, "mask_was_late", lambda self, executor, sequence: None


@fault("masks")
def ends_what_has_a_late_mask():
    def hasty(self, executor, sequence):
        self.end(sequence, "error", "late", "internal_error")

    yield Sequences, "mask_was_late", hasty


# --- sequences ---


@fault("kills", seed=6)
def forgets_the_last_token_of_a_resumed_sequence():
    remove_executor = Scheduler.remove_executor

    def forgetful(self, epoch, now, pool_wait_s=None):
        resumed = remove_executor(self, epoch, now, pool_wait_s)
        for sequence in resumed:
            if sequence.num_output:
                sequence.tokens.pop()
        return resumed

    yield Scheduler, "remove_executor", forgetful


@fault("everything")
def measures_no_pause_of_a_preempted_sequence():
    moved = ServiceCounters.moved
    yield ServiceCounters, "moved", lambda self, moves, now: moved(self, Moves(moves.admitted), now)


@fault("calm", seed=17)
def keeps_the_blocks_of_a_cancelled_sequence():
    cancel = Scheduler.cancel

    def leaky(self, sequences):
        with planted([(BlockManager, "release", lambda self, table: None)]):
            return cancel(self, sequences)

    yield Scheduler, "cancel", leaky


@fault("calm", seed=16)
def lets_requests_outlive_their_deadline():
    yield Scheduler, "expire", lambda self, now: []


# --- where and when sequences run ---


@fault("calm")
def computes_one_step_at_a_time():
    yield Scheduler, "may_plan", lambda self, epoch: not self.executor(epoch).inflight


@fault("calm")
def leaves_those_out_that_are_in_the_step_before():
    plan = Scheduler.plan

    def idle(self, epoch):
        executor = self.executor(epoch)
        decodes = executor.inflight and executor.inflight[-1].num_decodes
        return None if decodes else plan(self, epoch)

    yield Scheduler, "plan", idle


@fault("crowds")
def does_not_ask_what_is_cached():
    yield ExecutorState, "cached_tokens", lambda self, sequence, first_keys: 0


@fault("crowds")
def goes_to_the_first_executor():
    yield placement, "place", lambda sequence, room, avoid="": next(iter(room.executors.values()), None)


@fault("crowds")
def goes_to_its_prefix_however_busy_that_executor_is():
    place = placement.place

    def blind(sequence, room, avoid=""):
        return place(sequence, replace(room, loads=dict.fromkeys(room.loads, 0.0), least=0.0), avoid)

    yield placement, "place", blind


# --- readers ---


@fault("calm")
def tells_no_frontend_that_it_accepted():
    yield Outbox, "accepted", lambda self, peer, request_id: None


@fault("calm")
def says_twice_that_it_accepted():
    accepted = Outbox.accepted

    def talkative(self, peer, request_id):
        for _ in range(2):
            accepted(self, peer, request_id)

    yield Outbox, "accepted", talkative


@fault("calm", seed=26)
def says_that_it_accepted_what_it_refused():
    refuse = Outbox.refuse

    def contradicting(self, peer, request_id, refusal):
        if refusal.code != "taken_over":
            self.accepted(peer, request_id)
        refuse(self, peer, request_id, refusal)

    yield Outbox, "refuse", contradicting


@fault("calm")
def skips_a_token_for_who_attaches():
    attach = Outbox.attach

    def skipping(self, peer, sequences, progress):
        shorter = tuple(msgspec.structs.replace(told, token_ids=told.token_ids[4:]) for told in progress)
        attach(self, peer, sequences, shorter)

    yield Outbox, "attach", skipping


@fault("frontends")
def tells_a_slow_reader_twice():
    told_all = TokenStream.told_all

    def doubling(self):
        tokens = self.tokens
        told_all(self)
        if len(tokens) > 2 and self.ending is None:
            self.tokens = tokens

    yield TokenStream, "told_all", doubling


@fault("frontends", seed=47)
def lets_a_former_reader_detach():
    detach = RequestManager.detach

    def careless(self, peer, request_id, now):
        request = self.table.find(request_id)
        return detach(self, peer if request is None else request.peer, request_id, now)

    yield RequestManager, "detach", careless


@fault("calm", seed=64)
def never_cancels_what_nobody_reads():
    yield RequestTable, "late", lambda self, now: iter(())


@fault("calm")
def remembers_what_has_ended_for_ever():
    yield RequestTable, "let_go", lambda self, now: iter(())


@pytest.mark.parametrize("fault", [fault for *_, fault in FAULTS], ids=lambda fault: fault.__name__)
def test_the_fault_can_be_planted(fault):
    check_applies(fault)


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "seed", "fault"), FAULTS, ids=[fault.__name__ for *_, fault in FAULTS])
def test_the_fault_is_found(profile, seed, fault):
    check_found(fault, profile, seed)
