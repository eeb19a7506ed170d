"""What clients have asked for outlives the scheduler: written once a second, and read by the next life."""

from scheduler_svc.core.requests.group_commit import BatchSaved, JournalState
from scheduler_svc.core.requests.journal_records import SharesRecord
from scheduler_svc.core.requests.journal_replay import read_batches
from scheduler_svc.core.requests.log_length import LIFE_KEEPS
from scheduler_svc.core.requests.record_frames import unframe
from scheduler_svc.core.requests.request_manager import SHARES_EVERY_S
from tests.support.service import Service


def journaled() -> Service:
    service = Service(JournalState.OK)
    service.join("one")
    return service


def sequence_of(service: Service, request_id: str):
    return next(s for s in service.core.scheduler if s.request_id == request_id)


def shares_of(payload: bytes):
    """What a batch says of shares."""
    return [read_batches([payload]).shares] if any(b"shares" in record for record in unframe(payload)[0]) else []


def next_life(payloads: list[bytes]) -> Service:
    contents = read_batches(payloads)
    after = Service(JournalState.OK)
    after.do(after.core.restore(contents.requests, after.now, contents.life, contents.shares))
    return after


def test_the_next_life_goes_on_with_accounts_and_virtual_time():
    service = journaled()
    service.submit("a", client="alice", max_tokens=60)
    service.submit("b", client="alice", max_tokens=60)
    service.submit("c", client="bob", weight=2.0)
    payloads = service.write_all()
    service.turn(num_answers=8)
    service.wait(SHARES_EVERY_S)
    service.submit("d", client="alice", max_tokens=60)
    service.wait(SHARES_EVERY_S)
    payloads += service.write_all()
    shares, starts = service.core.scheduler.sequences.shares, {s.request_id: s.start for s in service.core.scheduler}
    after = next_life(payloads)
    again = after.core.scheduler.sequences.shares
    assert {s.request_id: s.start for s in after.core.scheduler} == starts
    assert again.virtual_time >= shares.virtual_time > 0
    for each in (service, after):
        each.submit("e", client="alice")
    assert sequence_of(after, "e").rank == sequence_of(service, "e").rank
    assert sequence_of(after, "e").start > starts["d"]


def test_what_has_changed_is_written_once_a_second_and_all_of_it_where_a_journal_begins():
    service = journaled()
    service.submit("a", client="alice")
    service.submit("b", client="bob")
    service.wait(SHARES_EVERY_S / 10)
    (first,) = [told for payload in service.write_all() for told in shares_of(payload)]
    assert {account.client for account in first.accounts} == {"alice", "bob"}
    service.submit("c", client="bob")
    service.wait(SHARES_EVERY_S / 2)
    assert not [told for payload in service.write_all() for told in shares_of(payload)], "not again in this second"
    service.wait(SHARES_EVERY_S)
    (second,) = [told for payload in service.write_all() for told in shares_of(payload)]
    assert [account.client for account in second.accounts] == ["bob"]
    begun = service.core.new_journal(service.now)
    assert {account.client for account in read_batches([begun.payload]).shares.accounts} == {"alice", "bob"}


def test_nothing_is_written_of_addresses_or_while_nothing_changes():
    service = journaled()
    service.submit("a", address="192.0.2.7")
    service.wait(SHARES_EVERY_S)
    payloads = service.write_all()
    service.submit("b", address="192.0.2.7")
    service.wait(3 * SHARES_EVERY_S)
    payloads += service.write_all()
    assert not any(told.accounts for payload in payloads for told in shares_of(payload))
    assert not any(b"192.0.2.7" in payload for payload in payloads)
    assert b"192.0.2.7" not in repr([request.submit for request in service.core.requests.table.all()]).encode()


def test_changes_are_written_whole_again_before_the_batches_before_them_go():
    service = journaled()
    service.submit("a", client="alice", is_resumable=False)
    service.turn()
    service.write_all()
    kept_from, whole = 0, 0
    for i in range(3 * LIFE_KEEPS):
        service.wait(SHARES_EVERY_S)
        service.submit(f"b{i}", client="bob", is_resumable=False)
        service.turn()
        batch = service.core.next_batch(service.now)
        assert batch is not None
        kept_from = max(kept_from, batch.keep_from)
        (told,) = shares_of(batch.payload) or [SharesRecord(is_whole=False)]
        whole += {account.client for account in told.accounts} == {"alice", "bob"}
        service.do(service.core.batch_written(BatchSaved(batch.number), service.now))
    assert whole >= 2
    assert kept_from > LIFE_KEEPS
