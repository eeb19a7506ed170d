"""A frontend is told once of each streamed request that was accepted, as soon as the journal has it."""

from array import array

import pytest

from common import messages as m
from scheduler_svc.core.requests.group_commit import BatchFailed, BatchSaved, JournalState
from scheduler_svc.core.requests.outbox import Outbox
from tests.support.service import Service
from tests.support.submits import PROMPT


def accepted(service, peer=b"web"):
    """Names in each Accepted that a frontend was sent."""
    return [said.request_ids for said in service.said.get(peer, []) if isinstance(said, m.Accepted)]


@pytest.mark.parametrize("journal", [JournalState.OFF, JournalState.OK])
def test_a_request_that_waits_for_an_executor_is_told_of_once_it_is_on_disk(journal):
    service = Service(journal)
    service.submit("a", n=2)
    if journal is JournalState.OK:
        batch = service.core.next_batch(service.now)
        service.flush()
        assert accepted(service) == []
        service.do(service.core.batch_written(BatchSaved(batch.number), service.now))
        service.flush()
    assert accepted(service) == [("a",)]
    service.join("one")
    service.turn()
    if journal is JournalState.OK:
        service.write()
        service.flush()
    assert service.endings == {(b"web", "a", 0): "length", (b"web", "a", 1): "length"}
    assert accepted(service) == [("a",)]


def test_neither_a_refused_request_nor_one_that_does_not_stream_is_told_of():
    service = Service()
    service.submit("whole", stream=False)
    service.submit("a", client="alice", client_limit=1)
    service.submit("b", client="alice", client_limit=1)
    service.submit("a")
    assert accepted(service) == [("a",)]
    assert service.endings == {(b"web", "b", 0): "too_many_requests", (b"web", "a", 0): "request_exists"}


def test_a_journal_that_fails_keeps_no_request_from_being_accepted():
    service = Service(JournalState.OK)
    service.submit("a")
    batch = service.core.next_batch(service.now)
    service.submit("b")
    service.do(service.core.batch_written(BatchFailed(batch.number, "disk full"), service.now))
    service.flush()
    service.submit("c")
    assert accepted(service) == [("a", "b"), ("c",)]


def test_the_order_is_acceptance_tokens_end():
    service, told = Service(JournalState.OK), []
    service.join("one")
    service.submit("a", max_tokens=2)
    service.turn()
    service.submit("b")
    service.say(m.Cancel(request_id="b"))
    for _ in range(3):
        service.now += 1.0
        if (batch := service.core.next_batch(service.now)) is not None:
            service.do(service.core.batch_written(BatchSaved(batch.number), service.now))
    while (message := service.core.next_output(b"web")) is not None:
        told.append(message)
        service.core.output_sent(b"web")
    acceptance, outputs = told
    assert acceptance == m.Accepted(request_ids=("a", "b"))
    assert [(delta.request_id, delta.finish_reason) for delta in outputs.deltas] == [
        ("a", "length"),
        ("b", "cancelled"),
    ]


@pytest.mark.parametrize("leaves", [True, False])
def test_a_frontend_whose_client_went_elsewhere_while_the_journal_wrote_is_not_told(leaves):
    service = Service(JournalState.OK)
    service.submit("a")
    batch = service.core.next_batch(service.now)
    if leaves:
        service.do(service.core.frontend_gone(b"web", service.now))
    service.say(m.Attach(request_id="a"), peer=b"web2")
    service.do(service.core.batch_written(BatchSaved(batch.number), service.now))
    service.write()
    service.flush()
    attached = m.Attached(request_id="a", found=True, prompt=array("i", PROMPT).tobytes(), n=1)
    assert (accepted(service), service.said[b"web2"]) == ([], [attached])
    assert service.endings == ({} if leaves else {(b"web", "a", 0): "taken_over"})


def test_requests_that_their_frontend_has_not_heard_of_share_messages():
    outbox, names = Outbox(), [f"r{i}" for i in range(m.MAX_ACCEPTED_A_MESSAGE + 2)]
    for name in names:
        outbox.accepted(b"p", name)
    outbox.answer(b"p", m.DrainReply(query_id=1, epoch=2))
    outbox.accepted(b"p", "last")
    told = []
    while (message := outbox.peek(b"p")) is not None:
        told.append(message)
        outbox.sent(b"p")
    first, second, _, last = told
    assert (*first.request_ids, *second.request_ids) == tuple(names)
    assert (len(first.request_ids), last.request_ids) == (m.MAX_ACCEPTED_A_MESSAGE, ("last",))


def test_what_is_added_to_a_message_that_could_not_be_sent_is_sent_with_it():
    outbox = Outbox()
    outbox.accepted(b"p", "a")
    assert outbox.peek(b"p") == m.Accepted(request_ids=("a",))
    outbox.accepted(b"p", "b")
    assert outbox.peek(b"p") == m.Accepted(request_ids=("a", "b"))
    outbox.sent(b"p")
    assert outbox.peers() == []
