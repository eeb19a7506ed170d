"""What is not on disk is not told, and no frontend waits for a disk that does not work."""

from array import array
from itertools import pairwise

import pytest

from common import messages as m
from scheduler_svc.core.requests.group_commit import (
    GATHER_S,
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    RETRY_AFTER_S,
    STUCK_AFTER_S,
    BatchFailed,
    BatchSaved,
    GroupCommit,
    JournalState,
)
from scheduler_svc.core.requests.journal_records import encode
from scheduler_svc.core.requests.journal_replay import read_batches
from tests.support.disk import Disk, end_record, request_record, step_record
from tests.support.service import Service


def test_without_a_journal_everything_is_told_at_once():
    group_commit = GroupCommit(JournalState.OFF)
    assert group_commit.add([request_record(0)], ["a"], 0.0) == ["a"]
    assert group_commit.next_batch(0.0) is None
    assert not group_commit.may_begin_anew(1e9)
    assert group_commit.lag_s(1e9) == 0.0


def test_what_needs_no_record_is_told_at_once_unless_something_waits_before_it():
    group_commit = GroupCommit(JournalState.OK)
    assert group_commit.add([], ["first"], 0.0) == ["first"]
    assert group_commit.add([request_record(0)], ["second"], 0.0) == []
    assert group_commit.add([], ["third"], 0.0) == []
    batch = group_commit.next_batch(0.0)
    assert group_commit.add([], ["fourth"], 0.0) == []
    assert group_commit.saved(batch.number) == ["second", "third"]


def test_a_batch_that_takes_too_long_is_given_up_and_its_late_result_only_ends_the_wait():
    group_commit = GroupCommit(JournalState.OK, first_number=5)
    group_commit.add([request_record(0)], ["a"], 0.0)
    stuck = group_commit.next_batch(0.0)
    assert stuck.number == 5
    group_commit.add([step_record([0], 1, [0])], ["b"], 1.0)
    assert group_commit.tick(STUCK_AFTER_S) == []
    assert group_commit.tick(STUCK_AFTER_S + 0.1) == ["a", "b"]
    assert (group_commit.state, group_commit.num_failures) == (JournalState.FAILED, 1)
    assert group_commit.add([step_record([0], 2, [1])], ["c"], 3.0) == ["c"]
    assert not group_commit.may_begin_anew(1e6), "the disk may still be busy with it"
    assert group_commit.saved(stuck.number) == []
    assert not group_commit.may_begin_anew(STUCK_AFTER_S + RETRY_AFTER_S)
    assert group_commit.may_begin_anew(STUCK_AFTER_S + RETRY_AFTER_S + 0.1)
    anew = group_commit.begin_anew([request_record(0, [1, 2])], 10.0)
    assert (anew.number, anew.begins, group_commit.num_batches) == (6, True, 0)
    assert group_commit.saved(stuck.number) == []
    assert group_commit.state is JournalState.FAILED
    group_commit.saved(anew.number)
    assert (group_commit.state, group_commit.num_batches) == (JournalState.OK, 1)


def test_the_lag_is_the_age_of_the_oldest_record_that_is_not_on_disk():
    group_commit = GroupCommit(JournalState.OK)
    assert group_commit.lag_s(7.0) == 0.0
    group_commit.add([request_record(0)], [], 10.0)
    first = group_commit.next_batch(11.0)
    group_commit.add([request_record(1)], [], 12.0)
    group_commit.add([request_record(2)], [], 13.0)
    assert group_commit.lag_s(14.0) == 4.0
    group_commit.saved(first.number)
    assert group_commit.lag_s(14.0) == 2.0
    second = group_commit.next_batch(14.0)
    assert group_commit.lag_s(15.0) == 3.0, "its records have waited for the first batch too"
    group_commit.saved(second.number)
    assert group_commit.lag_s(20.0) == 0.0


def test_the_lag_of_a_failed_journal_counts_from_what_it_lost():
    group_commit = GroupCommit(JournalState.OK)
    group_commit.add([request_record(0)], [], 10.0)
    failed = group_commit.next_batch(11.0)
    group_commit.failed(failed.number, 12.0)
    assert group_commit.lag_s(30.0) == 20.0
    again = group_commit.begin_anew([request_record(0)], 30.0)
    group_commit.failed(again.number, 31.0)
    assert group_commit.lag_s(40.0) == 30.0, "another failure does not begin anew"
    anew = group_commit.begin_anew([request_record(0)], 40.0)
    group_commit.saved(anew.number)
    assert (group_commit.state, group_commit.lag_s(41.0)) == (JournalState.OK, 0.0)
    group_commit.lost(50.0)
    assert group_commit.lag_s(53.0) == 3.0, "nothing waited"


def test_records_gather_for_a_while_before_they_are_written():
    group_commit = GroupCommit(JournalState.OK)
    assert group_commit.is_settled
    assert group_commit.due_in_s(5.0) is None
    group_commit.add([request_record(0)], ["a"], 5.0)
    assert not group_commit.is_settled
    assert group_commit.due_in_s(5.0) == 0.0, "nothing was written lately"
    first = group_commit.next_batch(5.0)
    group_commit.add([request_record(1)], ["b"], 5.0)
    assert group_commit.due_in_s(5.0) is None, "one is being written"
    group_commit.saved(first.number)
    assert group_commit.due_in_s(5.0) == pytest.approx(GATHER_S)
    assert group_commit.next_batch(5.0 + 0.9 * GATHER_S) is None
    second = group_commit.next_batch(5.0 + 1.1 * GATHER_S)
    assert group_commit.saved(second.number) == ["b"]
    assert group_commit.is_settled


def test_who_is_let_go_while_it_waits_to_be_written_again_leaves_nothing_behind():
    group_commit = GroupCommit(JournalState.OK, max_log_bytes=10)
    group_commit.add([request_record(0), request_record(1)], [], 0.0)
    group_commit.saved(group_commit.next_batch(0.0).number)
    assert group_commit.overgrown() == "r0"
    group_commit.add([request_record(0)], [], 1.0)
    group_commit.let_go("r0")
    group_commit.add([request_record(1)], [], 1.0)
    batch = group_commit.next_batch(1.0)
    assert (batch.payload, batch.keep_from) == (encode([request_record(1)]), batch.number)
    group_commit.saved(batch.number)
    assert group_commit.overgrown() == "r1"


def test_an_overgrown_journal_is_carried_forward_and_stays_bounded():
    """One request that only waits, and many short ones after it that come and go."""
    limit = 2000
    group_commit, disk, longest = GroupCommit(JournalState.OK, max_log_bytes=limit), Disk(), 0
    group_commit.add([request_record(0, [7, 8])], [], 0.0)
    for arrival in range(1, 1000):
        group_commit.add([request_record(arrival), step_record([arrival], 1, [0]), end_record(arrival, 1)], [], 0.0)
        if group_commit.overgrown() == "r0":
            group_commit.add([request_record(0, [7, 8])], [], 0.0)
        batch = group_commit.next_batch(float(arrival))
        disk.write(batch)
        group_commit.saved(batch.number)
        group_commit.let_go(f"r{arrival}")
        assert disk.read()[0] == ([7, 8], False)
        longest = max(longest, disk.num_bytes)
    assert limit < longest < limit + 500


def test_a_request_is_carried_forward_once_however_long_the_disk_takes():
    group_commit = GroupCommit(JournalState.OK, max_log_bytes=10)
    group_commit.add([request_record(0)], [], 0.0)
    first = group_commit.next_batch(0.0)
    assert group_commit.overgrown() == "r0"
    group_commit.add([request_record(0)], [], 0.0)
    assert group_commit.overgrown() is None, "it waits for the next batch already"
    group_commit.saved(first.number)
    assert group_commit.next_batch(1.0).payload == encode([request_record(0)])


def test_a_journal_is_begun_anew_in_pieces_and_what_was_before_goes_with_the_last():
    group_commit, disk = GroupCommit(JournalState.OK, first_number=2), Disk({1: encode(map(request_record, range(5)))})
    group_commit.max_requests, made = 2, []

    def records():
        for arrival in range(5):
            made.append(arrival)
            yield request_record(arrival, [9] * len(made))

    batch = group_commit.begin_anew(records(), 0.0)
    assert (made, batch.begins, batch.completes, batch.keep_from) == ([0, 1], True, False, 0), "the others are not made"
    disk.write(batch)
    assert group_commit.add([step_record([0], 9, [1])], ["a"], 0.0) == [], "it waits as ever"
    group_commit.saved(batch.number)
    assert group_commit.due_in_s(0.0) == GATHER_S
    batch = group_commit.next_batch(GATHER_S)
    assert (made, batch.begins, batch.completes, batch.keep_from) == ([0, 1, 2, 3], False, False, 0)
    disk.write(batch)
    assert group_commit.saved(batch.number) == ["a"]
    assert {arrival: len(tokens) for arrival, (tokens, _) in disk.read().items()} == {0: 2, 1: 2, 2: 3, 3: 4, 4: 0}
    batch = group_commit.next_batch(1.0)
    assert (made[-1], batch.begins, batch.completes, batch.keep_from) == (4, False, True, 2)
    disk.write(batch)
    group_commit.saved(batch.number)
    assert sorted(disk.rows) == [2, 3, 4]
    assert group_commit.due_in_s(1.0) is None


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_piece_that_fails_begins_the_journal_anew_from_the_first(fails_at):
    group_commit, now = GroupCommit(JournalState.OK), 10.0
    group_commit.max_requests = 1
    group_commit.failed(_handed(group_commit, now).number, now)
    for attempt in range(2):
        now += 10.0
        batch = group_commit.begin_anew(map(request_record, range(3)), now)
        for _ in range(3 if attempt else fails_at):
            assert group_commit.state is JournalState.FAILED
            assert group_commit.add([], ["told"], now) == ["told"]
            group_commit.saved(batch.number)
            now += 1.0
            batch = group_commit.next_batch(now)
        if not attempt:
            group_commit.failed(batch.number, now)
            assert group_commit.next_batch(now + 1.0) is None
            assert group_commit.may_begin_anew(now + 10.0)
    assert batch.completes
    assert batch.keep_from == batch.number - 3
    group_commit.saved(batch.number)
    assert group_commit.state is JournalState.OK


def test_who_is_let_go_before_its_piece_is_not_written():
    """Else it would never be forgotten."""
    service = Service(JournalState.OK, first_batch=7, max_retained=0)
    service.core.requests.group_commit.max_requests = 1
    for name in "abcd":
        service.submit(name)
    service.do(service.core.batch_written(BatchFailed(service.core.next_batch(0.0).number, "full"), 0.0))
    for name in "cd":
        service.say(m.Cancel(request_id=name))
    service.now = RETRY_AFTER_S + 1.0
    rows = [service.core.next_batch(service.now)]
    service.wait(0.1)
    while not rows[-1].completes:
        service.do(service.core.batch_written(BatchSaved(rows[-1].number), service.now))
        service.wait(0.1)
        rows.append(service.core.next_batch(service.now))
    names = [r.submit.request_id for r in read_batches([row.payload for row in rows]).requests]
    assert names == ["a", "b", "c"], "the first piece was written when d was let go"


def test_after_a_failure_a_request_is_followed_from_its_piece_on():
    """What came before that would stand behind a gap, and a life that found it would take the journal for damaged."""
    service = Service(JournalState.OK)
    core, rows = service.core, []
    core.requests.group_commit.max_requests = 1
    service.join("one")
    for name in "abc":
        service.submit(name, max_tokens=50)
    rows.append(service.write())
    service.turn(num_answers=2)
    service.do(core.batch_written(BatchFailed(core.next_batch(1.0).number, "full"), 1.0))
    service.turn(num_answers=2)
    service.wait(RETRY_AFTER_S + 1.0)
    is_whole = False
    while not is_whole:
        service.now += 1.0
        batch = core.next_batch(service.now)
        service.turn(num_answers=1)
        service.do(core.batch_written(BatchSaved(batch.number), service.now))
        rows.append(batch.payload)
        is_whole = batch.completes
        assert read_batches(rows).cut == []
        assert service.say(m.StatusQuery(query_id=1)).report.journal == "failed"
    rows.append(service.write())
    assert service.say(m.StatusQuery(query_id=1)).report.journal == "ok"
    told = [array("i", r.progress[0].token_ids).tolist() for r in read_batches(rows[1:]).requests]
    assert told == [service.tokens[b"web", name, 0] for name in "abc"]


@pytest.mark.parametrize("fails", [False, True])
def test_what_gathered_while_a_write_was_slow_goes_in_bounded_batches(fails):
    """None of them costs the service a pause; each announcement waits for its own record only."""
    group_commit, disk, told, num_told = GroupCommit(JournalState.OK), Disk(), [], []
    slow = _handed(group_commit, 0.0)
    for arrival in range(1, 1001):
        group_commit.add([request_record(arrival)], [arrival], 0.0)
    now = 1.0
    if fails:
        assert group_commit.failed(slow.number, now) == ["slow", *range(1, 1001)]
        return
    told += group_commit.saved(slow.number)
    while (batch := group_commit.next_batch(now)) is not None:
        disk.write(batch)
        told += group_commit.saved(batch.number)
        assert set(told[1:]) <= disk.read().keys()
        num_told.append(len(told))
        now += 1.0
    assert told == ["slow", *range(1, 1001)]
    assert max(after - before for before, after in pairwise([1, *num_told])) == MAX_BATCH_RECORDS


def test_long_records_fill_a_batch_sooner():
    group_commit = GroupCommit(JournalState.OK)
    for arrival in range(1, 5):
        group_commit.add([request_record(arrival, range(MAX_BATCH_BYTES // 6))], [arrival], 0.0)
    assert len(group_commit.next_batch(0.0).payload) < 2 * MAX_BATCH_BYTES


def _handed(group_commit, now):
    group_commit.add([request_record(0)], ["slow"], now)
    return group_commit.next_batch(now)
