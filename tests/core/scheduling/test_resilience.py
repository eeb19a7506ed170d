"""Executors that fail, finish or have another model, and a scheduler that begins again: what becomes of sequences."""

from array import array
from collections import deque

import msgspec
import pytest

from common import messages as m
from common.errors import RequestRejected
from common.wire import int32_array
from scheduler_svc.core.executor.capacity import POOL_GRACE_S, Capacity
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.scheduling.fair_shares import SEQUENCES_A_PRIORITY
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import Earlier, Share, State
from tests.support.chores import done
from tests.support.scheduling import Scheduling, limits
from tests.support.submits import submit


def rows(plan):
    """query_len of each row."""
    return int32_array("query_lens", plan.query_lens).tolist()


def fail(run, epoch, *, died=False):
    """An executor fails while it computes the oldest plan in flight, or dies with all of them."""
    inflight = run.scheduler.executor(epoch).inflight
    run.end(run.scheduler.blame(epoch, None if died or not inflight else inflight[0].step))
    run.lose(epoch)
    run.scheduler.check()


def test_only_the_oldest_plan_is_to_blame_for_a_failed_step_and_all_of_them_for_a_death():
    for died in (False, True):
        run = Scheduling(limits())
        (first,) = run.add("first", [1, 2, 3], max_tokens=9)
        run.plan()
        (second,) = run.add("second", [4, 5, 6], max_tokens=9)
        (waiting,) = run.add("waiting", [7], max_tokens=9, priority=9)
        assert len(run.plans[1]) == 1
        run.scheduler.executor(1).limits = limits(max_batch_tokens=4)  # no room for the third in the second plan
        run.plan()
        fail(run, 1, died=died)
        assert (first.strikes, second.strikes, waiting.strikes) == (1, int(died), 0)
        run.join(limits())
        run.finish()


def test_a_prompt_that_is_not_computed_to_its_end_is_to_blame_too():
    run = Scheduling(limits(max_batch_tokens=8))
    (long,) = run.add("long", list(range(50)), max_tokens=3)
    run.plan()
    fail(run, 1)
    assert long.strikes == 1


def test_a_token_clears_all_strikes():
    run = Scheduling(limits())
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=40)
    for epoch in (1, 2):
        run.plan(epoch)
        fail(run, epoch)
        run.join(limits())
    assert sequence.strikes == 2
    run.plan(3)
    run.answer(3)
    assert (sequence.strikes, sequence.failed_on) == (0, "")
    for epoch in (3, 4):
        run.plan(epoch)
        fail(run, epoch)
        run.join(limits())
    assert sequence not in run.ends, "three failures, but not in a row"
    run.finish()


def test_from_the_second_strike_on_suspects_run_alone():
    run = Scheduling(limits())
    for i in range(4):
        run.add(str(i), [i, 5, 6], max_tokens=9)
    run.plan(1)
    fail(run, 1)
    run.join(limits())
    run.plan(2)
    assert len(rows(run.plans[2][0])) == 4, "a first failure may be the executor's own"
    fail(run, 2)
    run.join(limits())
    run.add("fresh", [9, 9], max_tokens=9)
    inflight, num_suspects = run.scheduler.executor(3).inflight, 0
    while run.plan(3) or inflight:
        computed = [sequence for plan in inflight for sequence in plan.everyone]
        if any(sequence.strikes for sequence in computed):
            assert len(computed) == 1, "nothing else is in flight with a suspect"
            num_suspects += 1
        if len(inflight) == 2 or num_suspects:
            run.answer(3)
    assert num_suspects == 4
    assert {end.reason for end in run.ends.values()} == {"length"}


def test_an_answered_chunk_acquits_if_it_gets_as_far_as_the_failed_ones():
    """Killers that come and go: the innocent is alone for one plan, whose answer clears it."""
    run = Scheduling(limits(max_batch_tokens=8))
    (innocent,) = run.add("innocent", [1] * 40, max_tokens=3)
    run.plan(1)
    run.answer(1)
    for epoch in (1, 2):
        killer = run.add(f"killer {epoch}", [2, 2], max_tokens=3, priority=-1)
        run.plan(epoch)
        fail(run, epoch)
        run.scheduler.cancel(killer)
        run.join(limits(max_batch_tokens=8))
    assert (innocent.strikes, innocent.num_written) == (2, 8)
    run.plan(3)
    assert rows(run.plans[3][0]) == [8], "it is alone"
    run.answer(3)
    assert innocent.strikes == 0
    run.end(run.scheduler.sequences.strike({innocent: 17}, "x"))
    run.plan(3)
    run.answer(3)
    assert (innocent.strikes, innocent.num_written) == (1, 16), "a shorter row may have stopped before what kills"
    run.plan(3)
    run.answer(3)
    assert innocent.strikes == 0


def test_one_that_is_killed_again_and_again_while_its_prompt_goes_on_is_no_suspect():
    """A keeper keeps its memory, so every kill finds it further than the one before."""
    run = Scheduling(limits(max_batch_tokens=8, num_blocks=128, max_model_len=512))
    pools = (m.Pool(pool="p" * 32, lease=lease, layout="", epoch=0) for lease in range(1, 99))
    run.lose(1)
    epoch = run.join(limits(max_batch_tokens=8, num_blocks=128, max_model_len=512), pool=next(pools))
    (sequence,) = run.add("long", list(range(400)), max_tokens=5)
    for _ in range(6):
        for _ in range(3):
            run.plan(epoch)
            run.answer(epoch)
        run.plan(epoch)
        memory = run.executors[epoch]
        run.end(run.scheduler.blame(epoch))
        run.lose(epoch, pool_wait_s=0.5)
        assert sequence.strikes == 1
        pool = msgspec.structs.replace(next(pools), epoch=epoch)
        epoch = run.join(memory.limits, pool=pool, memory=memory)
    run.finish()
    assert (run.scheduler.stats.recomputed_tokens, run.ends[sequence].reason) == (0, "length")


@pytest.mark.parametrize("has_keeper", [False, True])
@pytest.mark.parametrize("deadly_at", [38, 39, 60], ids=["last chunk", "first token", "later token"])
def test_a_request_that_always_kills_costs_three_executors(deadly_at: int, has_keeper: bool) -> None:
    """Its row at a position kills, whatever else is in flight; the others go on to their ends."""
    each, memory = limits(max_batch_tokens=8), None
    run = Scheduling(each)
    run.lose(1)
    (deadly,) = run.add("deadly", list(range(39)), max_tokens=100)
    others = [run.add(f"other {i}", [i] * 9, max_tokens=60)[0] for i in range(4)]
    kills, epoch = 0, 0
    while deadly not in run.ends:
        pool = m.Pool(pool="p" * 32, lease=kills + 1, layout="", epoch=epoch) if has_keeper else None
        epoch = run.join(each, name=f"victim {kills}", pool=pool, memory=memory)
        planned = run.scheduler.executor(epoch)
        ends: deque[int] = deque()  # of each plan in flight: the position after its row of the deadly one
        while not ends or ends[0] <= deadly_at:
            while run.plan(epoch) is not None:
                has_row = deadly in planned.inflight[-1].everyone
                ends.append(planned.running.num_computed(deadly) if has_row else 0)
            if ends[0] <= deadly_at:
                run.answer(epoch)
                ends.popleft()
        kills += 1
        memory = run.executors[epoch] if has_keeper else None
        run.end(run.scheduler.blame(epoch))
        run.lose(epoch, pool_wait_s=0.5 if has_keeper else None)
    assert (kills, run.ends[deadly].code) == (3, "internal_error")
    run.join(each)
    done(run.scheduler.expire(1.0))
    run.finish()
    assert [run.ends[other].reason for other in others] == ["length"] * 4


@pytest.mark.parametrize("num_suspects", [1, 3])
def test_the_others_go_on_beside_suspects(num_suspects: int) -> None:
    run = Scheduling(limits(max_batch_tokens=16, num_blocks=256, max_model_len=512))
    others = [run.add(f"other {i}", [i] * 3, max_tokens=200)[0] for i in range(4)]
    run.step()
    suspects = [run.add(f"suspect {i}", list(range(9 * i, 9 * i + 200)), max_tokens=3)[0] for i in range(num_suspects)]
    for _ in range(2):
        run.scheduler.sequences.strike(dict.fromkeys(suspects, 200), "x")
    steps, before = 0, [len(run.outputs[other]) for other in others]
    while not all(run.outputs[suspect] for suspect in suspects):
        run.step()
        steps += 1
    came = [len(run.outputs[other]) - had for other, had in zip(others, before, strict=True)]
    assert min(came) >= steps // 2 - 2
    run.finish()


def test_one_that_is_struck_twice_elsewhere_while_it_decodes_goes_on_alone():
    """Nothing of it was in flight then: its executor must not wait for an answer that nobody owes."""
    run = Scheduling(limits(), window=1)
    (suspect,) = run.add("suspect", [1, 2, 3], max_tokens=9)
    run.step()
    for _ in range(2):
        run.scheduler.sequences.strike({suspect: 0}, "")
    run.step()
    assert suspect.strikes == 0
    run.finish()


def test_a_third_failure_in_company_proves_nothing():
    run = Scheduling(limits())
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=30)
    run.plan(1)
    run.answer(1)
    (other,) = run.add("b", [4, 5], max_tokens=30)
    sequence.strikes = 2
    assert run.scheduler.sequences.strike({sequence: 0, other: 0}, "x") == []
    assert [end.sequence for end in run.scheduler.sequences.strike({sequence: 0}, "x")] == [sequence]


def test_a_suspect_does_not_starve_those_that_run():
    run = Scheduling(limits())
    (running,) = run.add("running", [1, 2, 3], max_tokens=20)
    run.step()
    (suspect,) = run.add("suspect", [4, 5, 6], max_tokens=20, priority=-1)
    for _ in range(2):
        run.scheduler.sequences.strike({suspect: 0}, "")
    run.finish()
    assert [run.ends[s].reason for s in (running, suspect)] == ["length", "length"]


def test_one_that_becomes_a_suspect_in_company_that_has_taken_the_room_waits_for_its_turn():
    """Blamed for a plan on another executor while it runs here: it was not admitted alone."""
    run = Scheduling(limits(num_blocks=8, max_batch_tokens=8, max_num_seqs=4), look_ahead=False)
    (company,) = run.add("company", [1, 2, 3], max_tokens=20)
    run.step()
    (suspect,) = run.add("suspect", [7] * 24, max_tokens=3)
    run.plan()
    assert suspect.epoch == 1
    blocks = run.scheduler.executor(1).blocks
    blocks.allocate(blocks.num_free)  # by others who run here
    for _ in range(2):
        run.scheduler.sequences.strike({suspect: 24}, "")
    while run.sent[1]:
        run.scheduler.commit(run.executors[1].run(run.sent[1].popleft()))
    run.scheduler.plan(1)
    assert (suspect.epoch, company.epoch) == (0, 1)


def test_a_suspect_is_tried_on_another_executor():
    run = Scheduling(limits())
    run.memberships[1].executor = "broken"
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=5)
    run.plan(1)
    fail(run, 1)
    assert sequence.failed_on == "broken"
    broken = run.join(limits(), name="broken")
    assert run.plan(broken) is not None, "once may be chance"
    fail(run, broken)
    broken = run.join(limits(), name="broken")
    other = run.join(limits(), name="other")
    assert run.plan(broken) is None
    assert run.plan(other) is not None
    run.answer(other)
    run.finish()


def test_one_that_is_full_keeps_nobody_from_an_idle_executor():
    """Sequences with tokens insist on their model; those behind them in the queue do not wait for it."""
    run = Scheduling(limits())
    for _ in range(2):
        run.join(limits(num_blocks=8, max_num_seqs=8), model="old")
    run.lose(1)
    for i in range(150):
        run.add(f"old{i}", [i, 1, 2, 3], max_tokens=20)
    for _ in range(60):
        run.step()
    home = next(executor.epoch for executor in run.scheduler.executors if executor.num_running)
    for sequence in [sequence for sequence in run.scheduler if sequence.state is State.WAITING]:
        sequence.tokens.append(7)  # all have begun with the old model
        sequence.model = "old"
        run.scheduler.sequences.answer_begins(sequence)
    run.lose(5 - home)
    new = run.join(limits(), model="new")
    (fresh,) = run.add("fresh", [1, 2, 3], max_tokens=5)
    run.step()
    run.step()
    assert fresh.epoch == new


def test_a_sequence_goes_on_with_its_model_as_long_as_an_executor_has_it():
    run = Scheduling()
    run.lose(1)
    for _ in range(2):
        run.join(limits(), model="old")
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=60)
    for _ in range(5):
        run.step()
    home = sequence.epoch
    new = run.join(limits(), model="new")
    run.lose(home)
    for _ in range(5):
        run.step()
    assert (sequence.epoch, sequence.model) == (5 - home, "old")
    assert run.scheduler.stats.model_changes == 0
    run.take_no_new(sequence.epoch)
    run.lose(sequence.epoch)
    run.finish()
    assert (sequence.model, run.scheduler.stats.model_changes) == ("new", 1)
    assert run.plans[new]


def test_an_executor_that_finishes_ends_what_it_has_and_takes_nothing_new():
    run = Scheduling(limits(), limits())
    (running,) = run.add("running", [1, 2, 3], max_tokens=20)
    run.step()
    home = running.epoch
    run.take_no_new(home)
    assert not run.scheduler.is_spent(home)
    fresh = [run.add(str(i), [1, 2, 3, i], max_tokens=10)[0] for i in range(6)]
    run.step()
    assert {sequence.epoch for sequence in fresh} == {3 - home}
    run.finish()
    assert run.scheduler.is_spent(home)
    assert max(len(rows(plan)) for plan in run.plans[home]) == 1


def test_a_finishing_executor_is_not_spent_before_its_last_tokens_have_landed():
    run = Scheduling(limits())
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=2)
    run.plan()
    run.plan()
    assert sequence.state is State.COMPLETING
    run.take_no_new(1)
    run.answer()
    assert not run.scheduler.is_spent(1)
    run.answer()
    assert run.scheduler.is_spent(1)


@pytest.mark.parametrize("num_steps", [0, 1, 4, 12])
def test_restored_sequences_go_on_at_their_places_with_the_same_tokens(num_steps):
    first_life = Scheduling(limits(max_num_seqs=2))
    requests = [("a", [1, 2, 3]), ("b", [4, 5]), ("c", [6])]
    sequences = [first_life.add(name, prompt, max_tokens=10)[0] for name, prompt in requests]
    for _ in range(num_steps):
        first_life.step()
    first_life.plan()  # tokens in flight are lost
    saved = [(s, first_life.scheduler.output_of(s)) for s in sequences if s not in first_life.ends]
    assert all(array("i", output.token_ids).tolist() == first_life.outputs[sequence] for sequence, output in saved)

    run = Scheduling(limits(max_num_seqs=1))
    for sequence, output in saved:
        asked = submit(sequence.request_id, sequence.tokens[: sequence.num_prompt], max_tokens=10)
        (restored,) = run.scheduler.restore(asked, sequence.arrival, [Earlier(output)], None)
        assert run.scheduler.output_of(restored) == output
        run.outputs[restored] = array("i", output.token_ids).tolist()
    (late,) = run.add("late", [7], max_tokens=2)
    assert late.arrival > max(sequence.arrival for sequence, _ in saved)
    run.finish()
    assert [sequence.request_id for sequence in run.ends] == [s.request_id for s, _ in saved] + ["late"]


def test_the_deadline_of_a_restored_request_counts_from_its_first_life():
    run = Scheduling(limits())
    run.scheduler.restore(submit("a"), 5, [Earlier()], -3.0)
    (end,) = done(run.scheduler.expire(0.0))
    assert end.code == "deadline_exceeded"


def test_a_token_that_lands_elsewhere_clears_strikes_too():
    """A chunk of its prompt is in flight on one executor, it goes on with another, and the first one fails."""
    run = Scheduling(limits(max_batch_tokens=8), limits())
    (sequence,) = run.add("a", list(range(50)), max_tokens=9)
    run.plan(1)
    run.scheduler.sequences.preempt(run.scheduler.executor(1), sequence)
    run.drain(1)
    run.plan(2)
    fail(run, 1)
    assert (sequence.strikes, sequence.epoch) == (1, 2)
    run.answer(2)
    assert sequence.strikes == 0
    run.finish()


def test_a_token_that_lands_after_a_preemption_clears_strikes_too():
    run = Scheduling(limits())
    (sequence,) = run.add("a", [1, 2, 3], max_tokens=9)
    run.plan(1)
    fail(run, 1)
    run.join(limits())
    run.plan(2)
    run.scheduler.sequences.preempt(run.scheduler.executor(2), sequence)
    assert sequence.strikes == 1
    run.answer(2)
    assert sequence.strikes == 0
    run.finish()


def test_what_fitted_before_a_restart_waits_for_an_executor_that_it_fits():
    after = Scheduler()
    (restored,) = after.restore(submit("a", [1] * 100, max_tokens=100), 0, [Earlier()], None)
    after.remember({"large": Capacity.of(limits(num_blocks=64))})
    after.add_executor(Membership(1, "small", "", limits(num_blocks=8)))
    assert done(after.expire(0.0)) == []
    assert after.plan(1) is None
    after.add_executor(Membership(2, "", "", limits(num_blocks=64)))
    assert after.plan(2) is not None
    assert restored.epoch == 2


def test_a_place_in_the_queue_outlives_the_scheduler():
    """Also one that a later release would give differently."""
    after = Scheduler()
    asked = submit("a", [1], max_tokens=5, n=2, priority=-3)
    share = Share(weight=2.0, cost=16.0, start=300.0, place=12)
    restored = after.restore(asked, 70, [Earlier(), Earlier()], None, share)
    assert [sequence.rank for sequence in restored] == [(12, 70), (20, 71)]
    (later,) = after.add(msgspec.structs.replace(asked, request_id="b", n=1))
    assert (later.start, later.rank) == (300 + 16, (316 - 3 * SEQUENCES_A_PRIORITY * 16, 72))


@pytest.mark.parametrize("is_remembered", [True, False])
def test_what_executors_could_hold_before_a_restart_counts_for_the_grace(is_remembered):
    """Without an earlier life nothing waits: what is too long is refused at once."""
    after = Scheduler()
    if is_remembered:
        after.remember({"large": Capacity.of(limits(num_blocks=64))})

    def add(name, max_tokens, now):
        return after.add(submit(name, [1] * 100, max_tokens=max_tokens), now)

    (early,) = add("early", 100, 0.0)
    after.add_executor(Membership(1, "small", "", limits(num_blocks=8)), 10.0)
    ends = done(after.expire(10.0))
    if not is_remembered:
        assert [(end.sequence, end.code) for end in ends] == [(early, "context_length_exceeded")]
        with pytest.raises(RequestRejected, match=r"the limit is 32$"):
            add("late", 100, 11.0)
        return
    assert not ends
    (late,) = add("late", 157, 11.0)
    with pytest.raises(RequestRejected, match=r"the limit is 256$"):
        add("longer", 158, 11.0)
    assert set(after.known_executors(11.0)) == {"large", "small"}
    assert done(after.expire(9.9 + POOL_GRACE_S)) == []
    ends = done(after.expire(11.0 + POOL_GRACE_S))
    assert {(end.sequence, end.code) for end in ends} == {(early, "capacity_lost"), (late, "capacity_lost")}
    assert set(after.known_executors(11.0 + POOL_GRACE_S)) == {"small"}, "it is forgotten"


def test_an_executor_that_left_in_order_is_not_remembered():
    scheduler = Scheduler()
    for epoch, name in enumerate(("stays", "is lost", "drains")):
        scheduler.add_executor(Membership(epoch, name, "", limits()))
    scheduler.remove_executor(1, 1.0)
    scheduler.executor_leaves(2, 1.0)
    scheduler.remove_executor(2, 1.0)
    assert set(scheduler.known_executors(2.0)) == {"stays", "is lost"}
    assert scheduler.largest(2.0) == 256
