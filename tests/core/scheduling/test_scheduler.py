"""Who runs when: order, priority, fairness, preemption and its bound, deadlines, limits, placement, drain."""

import tracemalloc

import pytest

from common.errors import RequestRejected
from common.wire import int32_array
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.scheduling.fair_shares import SEQUENCES_A_PRIORITY
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import State
from tests.support.chores import done
from tests.support.scheduling import Scheduling, limits
from tests.support.submits import submit


def rows(plan):
    """query_len of each row."""
    return int32_array("query_lens", plan.query_lens).tolist()


def test_first_come_first_served():
    run = Scheduling(limits(max_num_seqs=2))
    sequences = [run.add(str(i), [i] * 5, max_tokens=6)[0] for i in range(6)]
    run.finish()
    assert list(run.ends) == sequences


def test_a_lower_priority_value_goes_first_and_is_preempted_last():
    run = Scheduling(limits(max_num_seqs=1))
    (running,) = run.add("running", [9], max_tokens=4)
    run.plan()
    (late,) = run.add("late", [1], max_tokens=2, priority=0)
    (urgent,) = run.add("urgent", [2], max_tokens=2, priority=-5)
    (idle,) = run.add("idle", [3], max_tokens=2, priority=7)
    run.finish()
    assert list(run.ends) == [running, urgent, late, idle]


def test_a_long_prompt_does_not_starve_decodes_and_decodes_do_not_starve_a_prompt():
    """Every plan has a row for each sequence that decodes, and at least an eighth of its tokens for prompts."""
    budget = 16
    run = Scheduling(limits(num_blocks=256, max_batch_tokens=budget, max_num_seqs=64, max_model_len=400))
    assert len(run.scheduler.executor(1).running.lanes.phases) == budget - budget // 8 == 14
    for i in range(13):
        run.add(str(i), [i], max_tokens=60)
    run.add("long", [i % 1000 for i in range(150)], max_tokens=4)
    run.finish()
    crowded = run.plans[1][1:50]  # all thirteen decode, and the prompt of 150 tokens is being computed
    assert all(sorted(rows(plan)) == [1] * 13 + [3] for plan in crowded[:-1])


def test_admission_that_looks_ahead_preempts_nobody_when_lengths_are_known():
    for look_ahead in (True, False):
        run = Scheduling(limits(num_blocks=40, max_num_seqs=32), look_ahead=look_ahead)
        for i in range(32):
            run.add(str(i), [i] * 9, max_tokens=40)
        run.finish()
        assert (run.scheduler.stats.preemptions == 0) == look_ahead


def test_a_sequence_that_comes_back_computes_its_last_token_for_the_first_time():
    run = Scheduling(limits(block_size=1, num_blocks=30), window=1)
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=20)
    for _ in range(5):
        run.step()
    run.scheduler.sequences.preempt(run.scheduler.executor(1), sequence)
    run.step()
    assert run.scheduler.stats.recomputed_tokens == 0, "all that was written is cached"
    known = 3 + len(run.outputs[sequence])
    run.lose(1)
    run.join(limits())
    run.step()
    assert run.scheduler.stats.recomputed_tokens == known - 1


def test_one_that_was_often_preempted_comes_back_beside_others():
    """It is never given the pool for itself: with all the blocks that it may ever need set aside, it computed alone."""
    run = Scheduling(limits(num_blocks=24, max_model_len=96), look_ahead=False)
    (chat,) = run.add("chat", [7] * 4, max_tokens=90, stop_token_ids=(999,))
    for _ in range(6):
        while chat.epoch == 0:
            run.step()
        run.scheduler.sequences.preempt(run.scheduler.executor(1), chat)
    (other,) = run.add("other", [1] * 8, max_tokens=80, priority=-1, stop_token_ids=(999,))
    while run.sent[1]:
        run.answer()
    run.plan()
    assert (chat.epoch, other.epoch) == (1, 1)
    run.finish()


def test_a_prompt_takes_the_blocks_of_a_newer_decode_that_sits_out():
    """Found by the fuzzer: a prompt in chunks and a decode behind it in rank that fill the pool between them."""
    run = Scheduling(
        limits(num_blocks=24, block_size=1, max_batch_tokens=3, max_model_len=24), window=1, look_ahead=False
    )
    (humble,) = run.add("humble", [1, 2, 3], max_tokens=20, priority=1)
    for _ in range(3):
        run.step()
    (urgent,) = run.add("urgent", list(range(100, 117)), max_tokens=3)
    run.finish(max_steps=500)
    assert run.scheduler.stats.preemptions == 1
    assert list(run.ends) == [urgent, humble]


def test_deadlines():
    run = Scheduling(limits(max_num_seqs=1))
    (running,) = run.add("running", [1], max_tokens=200, timeout_s=5.0, now=100.0)
    (waiting,) = run.add("waiting", [1], timeout_s=1.0, now=100.0)
    (free,) = run.add("free", [1])
    run.step()
    run.end(done(run.scheduler.expire(100.9)))
    assert not run.ends
    run.end(done(run.scheduler.expire(101.0)))
    assert list(run.ends) == [waiting]
    run.step()
    run.end(done(run.scheduler.expire(105.0)))
    assert run.ends[running].code == "deadline_exceeded"
    assert running.state is State.FINISHED
    run.finish()
    assert run.ends[free].reason == "length"


@pytest.mark.parametrize(("has_begun", "max_tokens", "epoch"), [(False, 1, 2), (False, 8, 2), (True, 8, 1)])
def test_a_prompt_is_work_for_its_executor_until_its_first_token_has_come(has_begun, max_tokens, epoch):
    run = Scheduling(*[limits(num_blocks=200, max_model_len=200, max_batch_tokens=100)] * 2)
    (long,) = run.add("long", list(range(1, 61)), max_tokens=max_tokens)
    (other,) = run.add("other", [70, 71, 72, 73], max_tokens=20)
    if has_begun:
        run.step()
    else:
        for each in (1, 2):
            run.plan(each)
    assert (long.epoch, other.epoch) == (1, 2)
    (new,) = run.add("new", [80, 81, 82, 83])
    for each in (1, 2):
        run.plan(each)
    assert new.epoch == epoch
    run.finish()


def test_a_full_queue_refuses_and_forgets():
    run = Scheduling(limits(max_num_seqs=1), max_waiting=3)
    run.add("a", [1], n=3)
    with pytest.raises(RequestRejected, match="3 sequences are waiting, the limit is 3") as caught:
        run.add("b", [1])
    assert (caught.value.code, caught.value.retry_after_s) == ("queue_full", 1)
    with pytest.raises(RequestRejected) as caught:
        run.add("b", [1], n=2, now=10.0)
    assert caught.value.retry_after_s == 30, "none left in 10 s, and three ask for a place"
    run.plan()
    run.add("b", [1])
    run.finish()


def test_a_stop_token_costs_at_most_the_token_in_flight():
    run = Scheduling(limits())
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=100)
    run.finish()
    fifth = run.outputs[sequence][4]
    again = Scheduling(limits())
    (stopped,) = again.add("a", [1, 2, 3], max_tokens=100, stop_token_ids=(fifth,))
    again.finish()
    assert again.ends[stopped].reason == "stop"
    assert again.executors[1].computed_tokens == 3 + len(again.outputs[stopped]) - 1 + 1


def test_a_stop_token_beyond_the_columns_is_still_found():
    run = Scheduling(limits())
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=50)
    run.finish()
    third = run.outputs[sequence][2]
    many = (*(t for t in range(900, 950) if t not in run.outputs[sequence]), third)
    again = Scheduling(limits())
    (stopped,) = again.add("a", [1, 2, 3], max_tokens=50, stop_token_ids=many)
    again.finish()
    assert again.outputs[stopped] == run.outputs[sequence][:3]


# --- several executors ---


def test_a_sequence_goes_where_its_prefix_is_cached():
    run = Scheduling(limits(), limits())
    prefix = list(range(40))
    (first,) = run.add("first", prefix, max_tokens=2)
    run.finish()
    home = next(epoch for epoch, plans in run.plans.items() if plans)
    for i in range(3):
        run.add(f"again{i}", [*prefix, 900 + i], max_tokens=2)
        run.finish()
    assert not run.plans[3 - home]
    assert run.scheduler.stats.cached_prompt_tokens == 3 * 40
    assert first in run.ends


def test_prompts_that_nobody_has_cached_share_the_caches_of_idle_executors():
    run = Scheduling(limits(), limits(), limits())
    for i in range(6):
        run.add(str(i), [i] * 20, max_tokens=2)
        run.finish()
    assert len({run.scheduler.executor(epoch).blocks.num_cached for epoch in (1, 2, 3)}) == 1


def test_a_full_executor_does_not_keep_sequences_that_an_idle_one_could_run():
    """All share a prefix that the first one has cached, and all will outgrow it."""
    run = Scheduling(limits(max_model_len=200), limits(max_model_len=200))
    for i in range(12):
        run.add(str(i), [1, 2, 3, 4, 5, 6, 7, 8, 100 + i], max_tokens=100)
    run.finish()
    assert min(len(plans) for plans in run.plans.values()) > 100


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_when_the_refused_head_goes_the_next_one_is_asked_again(how):
    run = Scheduling(limits(num_blocks=40))
    run.add("long", [1, 2, 3], max_tokens=100)
    run.step()
    refused = run.add("refused", [4] * 20, max_tokens=80, timeout_s=1.0)
    (small,) = run.add("small", [5, 6, 7], max_tokens=3)
    run.step()
    assert small.state is State.WAITING
    run.end(run.scheduler.cancel(refused) if how == "cancel" else done(run.scheduler.expire(2.0)))
    run.step()
    assert small.state is not State.WAITING
    run.finish()


def test_tokens_in_flight_on_a_hung_executor_do_not_keep_others_from_working():
    run = Scheduling(limits(), limits())
    (stuck,) = run.add("stuck", [1, 2, 3], max_tokens=50)
    run.step()
    run.plan(1)
    run.scheduler.sequences.preempt(run.scheduler.executor(1), stuck)
    assert stuck.num_inflight > 0
    (fresh,) = run.add("fresh", [4, 5, 6], max_tokens=5)
    run.scheduler.sequences.waiting.place(fresh, 2)  # as if its prefix were cached there
    while fresh not in run.ends:
        assert run.plan(2) is not None
        run.answer(2)
    assert stuck.state is State.WAITING
    run.finish()


def test_where_an_answer_is_late_nothing_waits_beside_an_idle_executor():
    """A step hangs, or is the first and compiles kernels: this may take two minutes."""
    run = Scheduling(limits(), limits(), window=1)
    prefix = list(range(40))
    run.add("first", prefix, max_tokens=50)
    run.step()
    home = next(epoch for epoch, plans in run.plans.items() if plans)
    run.plan(home)
    (fresh,) = run.add("fresh", [*prefix, 900], max_tokens=5)
    assert run.plan(3 - home) is None, "its prefix is cached at home"
    run.memberships[home].is_late = True
    assert run.plan(3 - home) is not None
    assert fresh.epoch == 3 - home
    run.finish()


def test_where_all_answers_are_late_they_are_waited_for():
    run = Scheduling(limits(), limits())
    for membership in run.memberships.values():
        membership.is_late = True
    run.add("a", [1, 2, 3])
    run.finish()


def test_what_only_a_large_executor_can_hold_waits_for_one_and_holds_up_nobody():
    run = Scheduling(limits(num_blocks=256, max_model_len=1024), limits(num_blocks=16, max_model_len=64))
    for i in range(100):
        run.add(f"large {i}", [i] * 70, max_tokens=20)
    run.lose(1)
    (small,) = run.add("small", [1, 2, 3], max_tokens=5)
    while run.step():
        pass
    assert list(run.ends) == [small]
    run.join(limits(num_blocks=256, max_model_len=1024))
    run.finish()


def test_an_executor_of_a_smaller_vocabulary_does_not_end_what_others_could_say():
    run = Scheduling(limits(vocab_size=1000))
    (known,) = run.add("known", [400], max_tokens=3)
    (unknown,) = run.add("unknown", [700], max_tokens=3)
    run.lose(1)
    run.join(limits(vocab_size=500))
    while run.step():
        pass
    assert run.ends[known].reason == "length"
    assert unknown not in run.ends, "the executor that it was accepted for may come back"


def test_a_request_whose_steps_always_fail_ends_alone():
    """An executor that fails on one token: the request that has it gets three strikes, the others prove themselves."""
    run = Scheduling(limits(num_blocks=256, max_batch_tokens=40))
    poison = 666
    good = [run.add(f"good {i}", [i, i + 1, i + 2] * (1 + i % 9), max_tokens=20)[0] for i in range(8)]
    (bad,) = run.add("bad", [*range(60), poison, *range(5)], max_tokens=20)
    good += [run.add(f"late {i}", [i, 5, i], max_tokens=20)[0] for i in range(8)]
    epoch, failures = 1, 0
    for _ in range(2000):
        while run.plan(epoch) is not None:
            pass
        if not run.sent[epoch]:
            break
        has_row = bad in run.scheduler.executor(epoch).inflight[0].everyone  # an answer may have that token, too
        if has_row and poison in int32_array("token_ids", run.sent[epoch][0].token_ids):
            failures += 1
            run.end(run.scheduler.blame(epoch))
            run.lose(epoch)
            epoch = run.join(limits(num_blocks=256, max_batch_tokens=40))
        else:
            run.answer(epoch)
    assert failures == 3
    assert (run.ends[bad].reason, run.ends[bad].code) == ("error", "internal_error")
    assert {run.ends[sequence].reason for sequence in good} == {"length"}
    assert all(run.outputs[sequence] == run.expected(sequence) for sequence in good)


def test_losses_that_are_nobodys_fault_are_no_strikes():
    run = Scheduling(limits())
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=60)
    epoch = 1
    for _ in range(10):
        run.step()
        run.plan(epoch)
        run.lose(epoch)
        epoch = run.join(limits())
    run.finish()
    assert sequence.strikes == 0


def test_a_request_that_cannot_fit_makes_no_copies_of_its_prompt():
    scheduler = Scheduler()
    scheduler.add_executor(Membership(1, "one", "m", limits()))
    asked = submit("r", [5] * 400_000, max_tokens=1, n=128)
    tracemalloc.start()
    with pytest.raises(RequestRejected, match="the limit is"):
        scheduler.add(asked)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(asked.prompt)


def test_priority_is_a_place_in_the_queue_that_never_changes_and_starves_nobody():
    """However many of the highest priority come, one that waits is overtaken by a bounded number of them."""
    run = Scheduling(limits(max_num_seqs=1))
    (running,) = run.add("running", [9], max_tokens=1)
    run.plan()
    (patient,) = run.add("patient", [1], max_tokens=1)
    place, overtaken_by = patient.rank, 2 * SEQUENCES_A_PRIORITY
    for i in range(3 * overtaken_by):
        run.add(f"urgent {i}", [2], max_tokens=1, priority=-2)
    assert patient.rank == place
    run.finish()
    ends = list(run.ends)
    assert ends[0] is running
    assert ends.index(patient) == overtaken_by
