"""The queue gives each executor the sequences that it may run, by rank, and what waits costs nothing."""

from array import array
from functools import partial

import hypothesis.strategies as st
import pytest
from hypothesis import given

from common import messages as m
from scheduler_svc.core.executor.capacity import Capacity
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.fleet.membership import Membership
from scheduler_svc.core.scheduling.waiting_queue import WaitingQueue
from scheduler_svc.core.sequence import Sequence
from tests.support.chores import done
from tests.support.instructions import instructions_of
from tests.support.scheduling import Scheduling, limits


def sequence(arrival, place, num_positions):
    return Sequence(
        request_id=str(arrival),
        index=0,
        arrival=arrival,
        tokens=array("i", [1]),
        num_prompt=1,
        largest_token=1,
        params=m.SamplingParams(max_tokens=num_positions),
        place=place,
    )


def executor(epoch, num_blocks):
    return ExecutorState(Membership(epoch, "", "", limits(num_blocks=num_blocks, max_model_len=10_000)))


def regroup(queue, executors):
    for each in executors:
        known = Capacity.of(each.limits)
        queue.know(known.positions, known.vocabulary)
    queue.regroup(executors, 50.0)


SIZES = st.integers(1, 30)


@given(
    entries=st.lists(st.tuples(st.integers(-3, 3), SIZES), max_size=30),
    removed=st.sets(st.integers(0, 29)),
    fleets=st.lists(st.lists(SIZES, max_size=3), min_size=1, max_size=4),
)
def test_candidates_are_what_a_sorted_list_gives(entries, removed, fleets):
    """Whatever sizes executors have, and in whatever order they come and go."""
    queue = WaitingQueue()
    waiting = []
    for arrival, (place, num_positions) in enumerate(entries):
        entry = sequence(arrival, place, num_positions)
        queue.add(entry, float(arrival))
        waiting.append(entry)
    for i in sorted(removed, reverse=True):
        if i < len(waiting):
            queue.remove(waiting.pop(i))
    waiting.sort(key=lambda s: s.rank)
    for sizes in fleets:
        executors = {epoch: executor(epoch, size) for epoch, size in enumerate(sizes)}
        regroup(queue, executors.values())
        assert list(queue) == waiting
        assert queue.total(with_stranded=True) == (len(waiting), len(waiting))
        stranded = []
        for entry in queue.stranded(50.0, lambda task: 0.0):
            stranded.append(entry)
            queue.remove(entry)
        largest = max(sizes, default=0)
        assert sorted(stranded, key=lambda s: s.rank) == [s for s in waiting if s.num_positions > 4 * largest]
        for entry in stranded:
            queue.add(entry, 50.0)
        for epoch, size in enumerate(sizes):
            fitting = [s for s in waiting if s.num_positions <= 4 * size]
            assert list(queue.candidates(epoch)) == fitting
            assert all(executors[epoch] in queue.executors_for(entry) for entry in fitting)


@given(taken=st.sets(st.integers(0, 9)), num_positions=st.lists(SIZES, min_size=10, max_size=10))
def test_an_executor_may_take_sequences_while_it_goes_through_its_candidates(taken, num_positions):
    entries = [sequence(i, i, num_positions[i]) for i in range(10)]
    queue = WaitingQueue()
    regroup(queue, [executor(1, 4), executor(2, 2)])
    for entry in entries:
        queue.add(entry, 0.0)
    expected = [entry for entry in entries if entry.num_positions <= 16]
    seen = []
    for entry in queue.candidates(1):
        seen.append(entry)
        if entry.arrival in taken:
            queue.remove(entry)
    assert seen == expected
    assert [entry.arrival for entry in queue] == [
        e.arrival for e in entries if not (e in expected and e.arrival in taken)
    ]


@pytest.mark.parametrize("num_executors", [4, 32])
def test_an_executor_that_joins_costs_the_same_with_any_queue(num_executors):
    costs = []
    for num_waiting in (100, 1000):
        run = Scheduling(*(limits(max_num_seqs=1) for _ in range(num_executors)), max_waiting=10_000)
        for i in range(num_waiting):
            run.add(f"waiting {i}", [5, 6, i % 1000], max_tokens=8 + i % 100)
        scheduler = run.scheduler

        def turn(scheduler=scheduler):
            """It restarts; what follows is done once, in the next tick."""
            scheduler.remove_executor(1, 1.0)
            scheduler.add_executor(Membership(1, "", "", limits(max_num_seqs=1)), 1.0)
            done(scheduler.expire(1.0))

        costs.append(instructions_of(turn))
    few, many = costs
    assert many <= 1.01 * few, "the queue is walked"


def crowded(why, num_waiting):
    """An executor that has lanes and memory to spare but for one reason, and that many sequences that wait for it."""
    lanes, blocks, max_tokens = {
        "lanes": (2, 4096, 100),
        "memory": (8, 100, 190),
        "pool": (8, 100, 500),
        "other": (8, 4096, 100),
    }[why]
    run = Scheduling(limits(num_blocks=blocks, max_num_seqs=lanes, max_model_len=500), max_waiting=10_000)
    if why == "pool":
        run.join(limits(num_blocks=1000, max_model_len=1000))
        run.lose(2)
    if why == "other":
        run.join(limits(num_blocks=4096, max_num_seqs=1, max_model_len=500), model="another")
    for i in range(2):
        run.add(f"running {i}", [i + 1], max_tokens=190)
    for _ in range(3):
        run.step()
    for i in range(num_waiting):
        (waiting,) = run.add(f"waiting {i}", [5, 6, i % 1000], max_tokens=max_tokens)
        if why == "other":  # they have begun with a model that one executor has, all of whose lanes are held
            waiting.tokens.append(1)
            waiting.model = "another"
            run.outputs[waiting].append(1)
            run.scheduler.sequences.answer_begins(waiting)
    for _ in range(2):
        run.step()
    return run


@pytest.mark.parametrize("why", ["lanes", "memory", "pool", "other"])
def test_a_plan_costs_the_same_with_any_number_of_sequences_that_cannot_run(why):
    costs = []
    for num_waiting in (100, 1000):
        run = crowded(why, num_waiting)
        assert num_waiting - 1 <= run.scheduler.num_waiting <= num_waiting
        run.answer(1)
        costs.append(instructions_of(partial(run.scheduler.plan, 1)))
    few, many = costs
    assert many <= 1.01 * few, "the queue is walked"


def test_a_sequence_that_gets_its_first_token_while_it_waits_goes_on_with_that_model():
    run = Scheduling()
    run.lose(1)
    for model in ("one", "two"):
        run.join(limits(), model=model)
    (preempted,) = run.add("a", [1, 2, 3], max_tokens=50)
    run.plan(2)
    run.scheduler.sequences.preempt(run.scheduler.executor(2), preempted)
    waiting = run.scheduler.sequences.waiting
    assert [executor.epoch for executor in waiting.executors_for(preempted)] == [2, 3]
    run.answer(2)
    assert [executor.epoch for executor in waiting.executors_for(preempted)] == [2]
    run.finish()
