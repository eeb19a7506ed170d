"""The queue gives each executor the sequences that it may run, by rank, and what waits costs nothing."""

from array import array
from functools import partial

import hypothesis.strategies as st
import pytest
from hypothesis import given

from common import messages as m
from scheduler_svc.core.scheduling.waiting_queue import WaitingQueue
from scheduler_svc.core.sequence import Sequence
from tests.support.instructions import instructions_of
from tests.support.rig import Rig, limits

EPOCHS = [(), (1,), (2,), (1, 2), (1, 2, 3)]


def sequence(arrival, place):
    return Sequence(
        request_id=str(arrival),
        index=0,
        arrival=arrival,
        tokens=array("i", [1]),
        num_prompt=1,
        largest_token=1,
        params=m.SamplingParams(max_tokens=1),
        place=place,
    )


@given(
    entries=st.lists(st.tuples(st.integers(-3, 3), st.sampled_from(EPOCHS)), max_size=30),
    removed=st.sets(st.integers(0, 29)),
    regrouped=st.lists(st.sampled_from(EPOCHS), min_size=30, max_size=30),
)
def test_candidates_are_what_a_sorted_list_gives(entries, removed, regrouped):
    epochs_of = {}
    queue = WaitingQueue(lambda sequence: epochs_of[sequence])
    waiting = []
    for arrival, (place, epochs) in enumerate(entries):
        entry = sequence(arrival, place)
        epochs_of[entry] = epochs
        is_first = all(entry.rank < other.rank for other in waiting if epochs_of[other] == epochs)
        assert queue.add(entry) == is_first
        waiting.append(entry)
    for i in sorted(removed, reverse=True):
        if i < len(waiting):
            queue.remove(waiting.pop(i))
    for _ in range(2):
        waiting.sort(key=lambda s: s.rank)
        assert list(queue) == waiting
        assert len(queue) == len(waiting)
        assert queue.stranded() == [s for s in waiting if epochs_of[s] == ()]
        for epoch in (1, 2, 3):
            assert list(queue.candidates(epoch)) == [s for s in waiting if epoch in epochs_of[s]]
        epochs_of.update(zip(waiting, regrouped, strict=False))
        queue.regroup()


@given(taken=st.sets(st.integers(0, 9)), groups=st.lists(st.sampled_from(EPOCHS[1:]), min_size=10, max_size=10))
def test_an_executor_may_take_sequences_while_it_goes_through_its_candidates(taken, groups):
    entries = [sequence(i, i) for i in range(10)]
    queue = WaitingQueue(lambda sequence: groups[sequence.arrival])
    for entry in entries:
        queue.add(entry)
    expected = [entry for entry in entries if 1 in groups[entry.arrival]]
    seen = []
    for entry in queue.candidates(1):
        seen.append(entry)
        if entry.arrival in taken:
            queue.remove(entry)
    assert seen == expected
    assert [entry.arrival for entry in queue] == [
        e.arrival for e in entries if not (e in expected and e.arrival in taken)
    ]


def crowded(why, num_waiting):
    """An executor that has lanes and memory to spare but for one reason, and that many sequences that wait for it."""
    lanes, blocks, max_tokens = {
        "lanes": (2, 4096, 100),
        "memory": (8, 100, 190),
        "pool": (8, 100, 500),
        "other": (8, 4096, 100),
    }[why]
    rig = Rig(limits(num_blocks=blocks, max_num_seqs=lanes, max_model_len=500), max_waiting=10_000)
    if why == "pool":
        rig.join(limits(num_blocks=1000, max_model_len=1000))
        rig.lose(2)
    if why == "other":
        rig.join(limits(num_blocks=4096, max_num_seqs=1, max_model_len=500), model="another")
    for i in range(2):
        rig.add(f"running {i}", [i + 1], max_tokens=190)
    for _ in range(3):
        rig.step()
    for i in range(num_waiting):
        (waiting,) = rig.add(f"waiting {i}", [5, 6, i % 1000], max_tokens=max_tokens)
        if why == "other":  # they have begun with a model that one executor has, all of whose lanes are held
            waiting.tokens.append(1)
            waiting.model = "another"
            rig.outputs[waiting].append(1)
    if why == "other":
        rig.scheduler.sequences.waiting.regroup()
    for _ in range(2):
        rig.step()
    return rig


@pytest.mark.parametrize("why", ["lanes", "memory", "pool", "other"])
def test_a_plan_costs_the_same_with_any_number_of_sequences_that_cannot_run(why):
    costs = []
    for num_waiting in (100, 1000):
        rig = crowded(why, num_waiting)
        assert num_waiting - 1 <= rig.scheduler.num_waiting <= num_waiting
        rig.answer(1)
        costs.append(instructions_of(partial(rig.scheduler.plan, 1)))
    few, many = costs
    assert many <= 1.01 * few, "the queue is walked"


def test_a_sequence_that_gets_its_first_token_while_it_waits_goes_on_with_that_model():
    rig = Rig(limits(), limits())
    rig.memberships[1].model, rig.memberships[2].model = "one", "two"
    (preempted,) = rig.add("a", [1, 2, 3], max_tokens=50)
    rig.plan(1)
    rig.scheduler.sequences.preempt(rig.scheduler.executor(1), preempted)
    assert rig.scheduler.sequences.waiting.epochs_for(preempted) == (1, 2)
    rig.answer(1)
    assert rig.scheduler.sequences.waiting.epochs_for(preempted) == (1,)
    rig.finish()
