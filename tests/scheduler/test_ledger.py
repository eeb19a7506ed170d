"""Nobody is told what is not on disk, and nobody waits for a disk that does not work."""

import pytest

from scheduler_svc.core.requests.group_commit import GATHER_S, RETRY_AFTER_S, STUCK_AFTER_S, JournalState, Ledger
from scheduler_svc.core.requests.journal_records import Ended, Ending, encode
from tests.support.disk import Disk, accepted, stepped


def test_without_a_journal_everything_is_told_at_once():
    ledger = Ledger(JournalState.OFF)
    assert ledger.add([accepted(0)], ["a"], 0.0) == ["a"]
    assert ledger.next_batch(0.0) is None
    assert not ledger.wants_reset(1e9)
    assert ledger.lag_s(1e9) == 0.0


def test_what_needs_no_record_is_told_at_once_unless_something_waits_before_it():
    ledger = Ledger(JournalState.OK)
    assert ledger.add([], ["first"], 0.0) == ["first"]
    assert ledger.add([accepted(0)], ["second"], 0.0) == []
    assert ledger.add([], ["third"], 0.0) == []
    batch = ledger.next_batch(0.0)
    assert ledger.add([], ["fourth"], 0.0) == []
    assert ledger.saved(batch.number) == ["second", "third"]


def test_a_batch_that_takes_too_long_is_given_up_and_its_late_result_only_ends_the_wait():
    ledger = Ledger(JournalState.OK, first_number=5)
    ledger.add([accepted(0)], ["a"], 0.0)
    stuck = ledger.next_batch(0.0)
    assert stuck.number == 5
    ledger.add([stepped([0], 1)], ["b"], 1.0)
    assert ledger.tick(STUCK_AFTER_S) == []
    assert ledger.tick(STUCK_AFTER_S + 0.1) == ["a", "b"]
    assert (ledger.state, ledger.num_failures) == (JournalState.FAILED, 1)
    assert ledger.add([stepped([0], 2)], ["c"], 3.0) == ["c"]
    assert not ledger.wants_reset(1e6), "the disk may still be busy with it"
    assert ledger.saved(stuck.number) == []
    assert not ledger.wants_reset(STUCK_AFTER_S + RETRY_AFTER_S)
    assert ledger.wants_reset(STUCK_AFTER_S + RETRY_AFTER_S + 0.1)
    anew = ledger.reset([accepted(0, [1, 2])], 10.0)
    assert (anew.number, anew.reset, ledger.num_batches) == (6, True, 0)
    assert ledger.saved(stuck.number) == []
    assert ledger.state is JournalState.FAILED
    ledger.saved(anew.number)
    assert (ledger.state, ledger.num_batches) == (JournalState.OK, 1)


def test_the_lag_is_the_age_of_the_oldest_record_that_is_not_on_disk():
    ledger = Ledger(JournalState.OK)
    assert ledger.lag_s(7.0) == 0.0
    ledger.add([accepted(0)], [], 10.0)
    first = ledger.next_batch(11.0)
    ledger.add([accepted(1)], [], 12.0)
    ledger.add([accepted(2)], [], 13.0)
    assert ledger.lag_s(14.0) == 4.0
    ledger.saved(first.number)
    assert ledger.lag_s(14.0) == 2.0
    second = ledger.next_batch(14.0)
    assert ledger.lag_s(15.0) == 3.0, "its records have waited for the first batch too"
    ledger.saved(second.number)
    assert ledger.lag_s(20.0) == 0.0


def test_records_gather_for_a_while_before_they_are_written():
    ledger = Ledger(JournalState.OK)
    assert ledger.is_settled
    assert ledger.due_in_s(5.0) is None
    ledger.add([accepted(0)], ["a"], 5.0)
    assert not ledger.is_settled
    assert ledger.due_in_s(5.0) == 0.0, "nothing was written lately"
    first = ledger.next_batch(5.0)
    ledger.add([accepted(1)], ["b"], 5.0)
    assert ledger.due_in_s(5.0) is None, "one is being written"
    ledger.saved(first.number)
    assert ledger.due_in_s(5.0) == pytest.approx(GATHER_S)
    assert ledger.next_batch(5.0 + 0.9 * GATHER_S) is None
    second = ledger.next_batch(5.0 + 1.1 * GATHER_S)
    assert ledger.saved(second.number) == ["b"]
    assert ledger.is_settled


def test_who_is_let_go_while_it_waits_to_be_written_again_leaves_nothing_behind():
    ledger = Ledger(JournalState.OK, max_log_bytes=10)
    ledger.add([accepted(0), accepted(1)], [], 0.0)
    ledger.saved(ledger.next_batch(0.0).number)
    assert ledger.overgrown() == "r0"
    ledger.add([accepted(0)], [], 1.0)
    ledger.let_go("r0")
    ledger.add([accepted(1)], [], 1.0)
    batch = ledger.next_batch(1.0)
    assert (batch.payload, batch.keep_from) == (encode([accepted(1)]), batch.number)
    ledger.saved(batch.number)
    assert ledger.overgrown() == "r1"


def test_an_overgrown_journal_is_carried_forward_and_stays_bounded():
    """One request that only waits, and many short ones after it that come and go."""
    limit = 2000
    ledger, disk, longest = Ledger(JournalState.OK, max_log_bytes=limit), Disk(), 0
    ledger.add([accepted(0, [7, 8])], [], 0.0)
    for arrival in range(1, 1000):
        ledger.add([accepted(arrival), stepped([arrival], 1), Ended(arrival, 0, Ending("stop"))], [], 0.0)
        if ledger.overgrown() == "r0":
            ledger.add([accepted(0, [7, 8])], [], 0.0)
        batch = ledger.next_batch(float(arrival))
        disk.write(batch)
        ledger.saved(batch.number)
        ledger.let_go(f"r{arrival}")
        assert disk.read()[0] == ([7, 8], False)
        longest = max(longest, disk.num_bytes)
    assert limit < longest < limit + 500


def test_a_request_is_carried_forward_once_however_long_the_disk_takes():
    ledger = Ledger(JournalState.OK, max_log_bytes=10)
    ledger.add([accepted(0)], [], 0.0)
    first = ledger.next_batch(0.0)
    assert ledger.overgrown() == "r0"
    ledger.add([accepted(0)], [], 0.0)
    assert ledger.overgrown() is None, "it waits for the next batch already"
    ledger.saved(first.number)
    assert ledger.next_batch(1.0).payload == encode([accepted(0)])
