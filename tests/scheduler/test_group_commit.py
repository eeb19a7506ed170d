"""What is not on disk is not told, and no frontend waits for a disk that does not work."""

import pytest

from scheduler_svc.core.requests.group_commit import GATHER_S, RETRY_AFTER_S, STUCK_AFTER_S, GroupCommit, JournalState
from scheduler_svc.core.requests.journal_records import encode
from tests.support.disk import Disk, end_record, request_record, step_record


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
    assert (anew.number, anew.reset, group_commit.num_batches) == (6, True, 0)
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
