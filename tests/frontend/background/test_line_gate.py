"""Whose line is next, how many are open, and what is kept of them."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.frontend.background.line_gate import Entrant, LineGate
from scheduler_svc.frontend.background.line_results import LineResults
from scheduler_svc.frontend.background.line_share import RECENT_S, REPORTS, LineShare
from scheduler_svc.store.records import BatchResult, Progress
from tests.frontend.links import in_event_loop
from tests.support.status_reports import executor_status, status_report

# --- the gate ---


class Turns:
    """Lines that wait at a gate, each in a task."""

    def __init__(self, gate):
        self.gate = gate
        self.entered = []
        self.tasks = []

    def come(self, owner, batch, number=1, most=0):
        entrant = Entrant(owner, batch, number, most)

        async def enter():
            await self.gate.enter(entrant)
            self.entered.append(entrant)

        self.tasks.append(asyncio.create_task(enter()))
        return self.tasks[-1], entrant

    async def settle(self):
        for _ in range(5):
            await asyncio.sleep(0)

    async def let_go(self):
        """Let lines leave in their order until no more come; says in which order they came."""
        gone = 0
        await self.settle()
        while gone < len(self.entered):
            self.gate.leave(self.entered[gone])
            gone += 1
            await self.settle()
        return [(entrant.owner, entrant.batch_id) for entrant in self.entered]


@in_event_loop
async def test_owners_take_turns_and_so_do_their_batches():
    turns = Turns(LineGate(1))
    for owner, batch in [("z", "9")] + [("a", "1")] * 3 + [("a", "2")] * 2 + [("b", "3")] * 2:
        turns.come(owner, batch)
    a1, a2, b3 = ("a", "1"), ("a", "2"), ("b", "3")
    assert await turns.let_go() == [("z", "9"), a1, b3, a2, b3, a1, a2, a1]
    assert turns.gate.num_open == 0


@in_event_loop
async def test_no_more_are_open_than_the_limit_which_may_change():
    turns = Turns(LineGate(3))
    for _ in range(10):
        turns.come("a", "1")
    await turns.settle()
    assert turns.gate.num_open == 3
    turns.gate.set_limit(5)
    await turns.settle()
    assert turns.gate.num_open == 5
    turns.gate.set_limit(1)
    turns.gate.leave(turns.entered[0])
    await turns.settle()
    assert turns.gate.num_open == 4
    for task in turns.tasks:
        task.cancel()


@in_event_loop
async def test_a_large_line_waits_for_room_and_is_not_overtaken():
    turns = Turns(LineGate(4))
    turns.come("a", "1", 3)
    turns.come("b", "2", 100)
    turns.come("c", "3", 1)
    assert await turns.let_go() == [("a", "1"), ("b", "2"), ("c", "3")]


@in_event_loop
async def test_an_owner_at_its_limit_holds_nobody_up():
    turns = Turns(LineGate(10))
    for _ in range(3):
        turns.come("a", "1", most=1)
    turns.come("b", "2")
    await turns.settle()
    assert [entrant.owner for entrant in turns.entered] == ["a", "b"]
    assert len(await turns.let_go()) == 4


@in_event_loop
async def test_sequences_of_a_line_count_for_the_limit_of_its_owner():
    """As they do at the core. A line of more than the limit has all of it."""
    turns = Turns(LineGate(100))
    for number in (3, 2, 9, 1):
        turns.come("a", "1", number, most=4)
    turns.come("b", "2")
    opened = []
    for gone in range(5):
        await turns.settle()
        opened.append([entrant.num_sequences for entrant in turns.entered])
        turns.gate.leave(turns.entered[gone])
    assert opened[0] == [3, 1]
    assert opened[1:] == [[3, 1, 2], [3, 1, 2], [3, 1, 2, 9], [3, 1, 2, 9, 1]]
    turns.come("a", "1", 4, most=4)
    await turns.settle()
    assert turns.gate.num_open == 4, "nothing of those that have left counts any more"


@in_event_loop
async def test_another_leaves_before_a_line_that_is_given_up_learns_of_it():
    turns = Turns(LineGate(1))
    turns.come("a", "1")
    given_up, _ = turns.come("a", "1")
    turns.come("a", "2")
    await turns.settle()
    given_up.cancel()
    turns.gate.leave(turns.entered[0])
    await turns.settle()
    assert given_up.cancelled()
    assert [entrant.batch_id for entrant in turns.entered] == ["1", "2"]
    turns.gate.leave(turns.entered[1])
    assert turns.gate.num_open == 0


@in_event_loop
async def test_a_line_that_is_given_up_takes_nothing():
    turns = Turns(LineGate(1))
    _, entrant = turns.come("a", "1")
    second, _ = turns.come("a", "1")
    await turns.settle()
    third, _ = turns.come("b", "2")
    second.cancel()
    await turns.settle()
    turns.gate.leave(entrant)
    turns.gate.set_limit(1)
    third.cancel()  # it was let in a moment ago, and has not heard of it
    await turns.settle()
    assert turns.gate.num_open == 0
    assert not turns.gate.is_waiting


# --- how many ---


def report(lanes, *, running=0, waiting=0, finished=0, free=100, uptime_s=1.0):
    executors = [executor_status(max_num_seqs=each, num_blocks=100, free_blocks=free) for each in lanes]
    facts = {"running": running, "waiting": waiting, "requests_finished": finished, "uptime_s": uptime_s}
    return status_report(executors=executors, **facts)


def test_some_lanes_stay_free_and_most_beside_requests():
    share = LineShare(0.0)
    assert share.open_sequences(report([64]), 0, 0, 1.0) == 56
    assert share.open_sequences(report([64], running=30), 30, 0, 2.0) == 56
    assert share.open_sequences(report([64], running=31), 30, 0, 3.0) == 1
    assert share.open_sequences(report([64, 64, 64], running=31), 30, 0, 3.0) == 3
    assert share.open_sequences(report([64], running=10, finished=21), 10, 20, 3.0 + RECENT_S / 2) == 1
    assert share.open_sequences(report([64], running=10, finished=31), 10, 30, 3.0 + RECENT_S) == 56
    assert share.open_sequences(report([64, 64], running=127), 0, 30, 3.0 + RECENT_S) == 1


def test_requests_that_come_and_go_between_two_reports_are_seen():
    share = LineShare(0.0)
    assert share.open_sequences(report([64]), 0, 0, 1.0) == 56
    assert share.open_sequences(report([64], running=8, finished=1), 8, 0, 2.0) == 1


def test_requests_that_came_while_no_batch_ran_are_not_taken_for_recent_ones():
    share = LineShare(0.0)
    assert share.open_sequences(report([64]), 0, 0, 1.0) == 56
    assert share.open_sequences(report([64], finished=500), 0, 0, 1.0 + RECENT_S) == 56
    assert share.open_sequences(report([64], running=5, finished=501), 5, 0, 2.0 + RECENT_S) == 1


def test_own_lines_on_their_way_are_not_taken_for_requests():
    share = LineShare(0.0)
    for own, over, running, finished in [(8, 0, 0, 0), (8, 0, 8, 0), (8, 0, 3, 5), (8, 5, 8, 5), (0, 13, 0, 13)]:
        seen = report([64], running=running, finished=finished)
        assert share.open_sequences(seen, own, over, 1.0) == 56, (own, over)


def test_a_scheduler_that_starts_anew_counts_anew():
    share = LineShare(0.0)
    share.open_sequences(report([64], finished=1000, uptime_s=50.0), 0, 0, 1.0)
    for look in range(REPORTS + 1):
        assert share.open_sequences(report([64], running=5, uptime_s=1.0 + look), 5, 10, 2.0 + look) == 56
    assert share.open_sequences(report([64], running=5, finished=1, uptime_s=9.0 + REPORTS), 5, 10, 10.0 + REPORTS) == 1


def test_memory_is_left_free_and_one_line_is_always_open():
    share = LineShare(0.0)
    assert share.open_sequences(report([64], running=9, free=24), 9, 0, 1.0) == 9
    assert share.open_sequences(report([]), 0, 0, 1.0) == 1
    assert share.open_sequences(report([64], running=3000, waiting=500), 0, 0, 2.0) == 1


# --- what is kept ---


def result(line, size=10):
    return BatchResult(line, str(line), False, b"x" * size)


def test_progress_is_the_first_line_without_a_result():
    results = LineResults(Progress(7, 1))
    for line in (1, 2, 3):
        results.begin(line, 7 * line, 7 * line + 7)
    results.add(result(2))
    assert results.take() == ([result(2)], Progress(7, 1))
    results.add(result(1))
    assert results.take() == ([result(1)], Progress(21, 3))
    results.skip(3)
    assert results.take() == ([], Progress(28, 4))


def test_a_group_is_bounded_and_no_line_begins_beyond_a_limit():
    results = LineResults(Progress(0, 0))
    for line in range(9):
        results.begin(line, line, line + 1)
        results.add(result(line, 2**20))
    assert not results.has_room
    group, progress = results.take()
    assert ([each.line for each in group], progress) == ([0], Progress(0, 0)), "others of lower lines wait"
    assert len(results.take()[0]) == 1


@given(st.lists(st.integers(0, 5), max_size=40), st.randoms())
def test_a_worker_that_dies_anywhere_leaves_no_line_out_and_does_none_twice(dies_after, rng):
    """What is written is kept, and the next worker begins at the progress that was written with it."""
    num_lines, written, progress = 12, {}, Progress(0, 0)
    for turns in [*dies_after, 10**6]:
        results, todo, open_lines = LineResults(progress), iter(range(progress.next_line, num_lines)), []
        for _ in range(turns):
            line = next(todo, None)
            if line is not None:
                results.begin(line, line, line + 1)
                if line in written:
                    results.skip(line)
                else:
                    open_lines.append(line)
            if open_lines and rng.random() < 0.6:
                results.add(result(open_lines.pop(rng.randrange(len(open_lines)))))
            if rng.random() < 0.5:
                group, reached = results.take()
                assert not {each.line for each in group} & written.keys(), "computed twice"
                written |= {each.line: each for each in group}
                progress = max(progress, reached, key=lambda place: place.next_line)
                assert set(range(progress.next_line)) <= written.keys()
            if len(written) == num_lines:
                return
    pytest.fail("it never came to its end")
