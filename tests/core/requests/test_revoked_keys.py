"""A client is the id of its key: what it has open ends with the key, and no namesake of it comes to it."""

import pytest
from msgspec.structs import replace

from common import messages as m
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.requests.journal_records import encode
from scheduler_svc.core.requests.journal_replay import read_batches
from scheduler_svc.core.requests.returning_clients import RETURN_WITHIN_S
from tests.support.service import Service, restart

ANN = {"client": "a" * 32, "client_name": "ann"}
NAMESAKE = {"client": "b" * 32, "client_name": "ann"}
ENDED = "requests ended: key revoked"


def test_a_revocation_ends_what_the_client_has_open_and_nothing_else():
    service = Service()
    service.join("one")
    service.submit("runs", **ANN)
    service.submit("plain", is_resumable=False, n=2, **ANN)
    service.submit("waits", **ANN)
    service.submit("away", **ANN)
    service.say(m.Detach(request_id="away"))
    service.submit("hers", **NAMESAKE)
    service.submit("nobody's")
    service.turn(num_answers=1)
    service.say(m.Revoke(client=ANN["client"]))
    service.wait(0.2)
    service.flush()
    ended = {request_id: code for (_, request_id, _), code in service.endings.items()}
    assert ended == dict.fromkeys(("runs", "plain", "waits"), "invalid_api_key")
    assert {sequence.request_id for sequence in service.core.scheduler} == {"hers", "nobody's"}
    assert [line.facts for line in service.events(ENDED)] == [{"client": "ann", "id": ANN["client"], "requests": 4}]
    service.turn()
    assert service.endings[b"web", "hers", 0] == "length"
    service.say(m.Revoke(client=ANN["client"]))  # each frontend says so
    assert len(service.events(ENDED)) == 1
    assert not service.core.requests.table.open_of(ANN["client"])


def left_behind(*requests, by_names=False):
    """What the journal has of a scheduler that died in the middle of these requests."""
    service = Service(JournalState.OK)
    service.join("one")
    for request_id, client in requests:
        service.submit(request_id, max_tokens=50, **client)
    rows = [service.write()]
    service.turn(num_answers=3)
    rows.append(service.write())
    if not by_names:
        return rows
    records = [
        replace(r, submit=replace(r.submit, client=r.submit.client_name, client_name=""))
        for r in read_batches(rows).requests
    ]
    return [encode(records)]


def test_a_revocation_ends_what_waits_for_its_client_after_a_restart():
    service, _ = restart(left_behind(("hers", ANN), ("other", NAMESAKE)))
    service.say(m.Revoke(client=ANN["client"]))
    service.wait(0.2)
    assert [sequence.request_id for sequence in service.core.scheduler] == ["other"]


def test_a_journal_by_names_is_taken_over_for_those_that_have_keys():
    """That of the release before: what is open goes on under the id of its key, where its client asks for it."""
    rows = left_behind(("ann/chat-1-0", ANN), ("bob/chat-2-0", {"client_name": "bob"}), ("chat-3-0", {}), by_names=True)
    ids = {"ann": "1" * 32, "carol": "2" * 32}
    service, batch = restart(rows, client_ids=ids)
    assert {sequence.request_id for sequence in service.core.scheduler} == {f"{'1' * 32}/chat-1-0", "chat-3-0"}
    assert service.core.requests.table.num_open_by_name == {"ann": 1, "": 1}
    assert [line.facts for line in service.events(ENDED)] == [{"requests": "bob/chat-2-0"}]
    attached = service.say(m.Attach(request_id=f"{'1' * 32}/chat-1-0"))
    assert attached.found
    assert not service.say(m.Attach(request_id="ann/chat-1-0")).found

    again, _ = restart([batch.payload], client_ids=ids | {"ann": "3" * 32, "bob": "4" * 32})
    assert {s.request_id for s in again.core.scheduler} == {f"{'1' * 32}/chat-1-0", "chat-3-0"}, "once"


def test_a_list_without_keys_ends_all_that_a_name_has():
    service, batch = restart(left_behind(("ann/chat-1-0", ANN), ("chat-2-0", {}), by_names=True), client_ids={})
    assert [sequence.request_id for sequence in service.core.scheduler] == ["chat-2-0"]
    again, _ = restart([batch.payload], client_ids={"ann": "2" * 32})
    assert [sequence.request_id for sequence in again.core.scheduler] == ["chat-2-0"], "she came later"


@pytest.mark.parametrize("ids", [None, {"ann": "1" * 32}])
def test_a_start_without_keys_ends_nothing(ids):
    """The next start may have the keys again."""
    service, batch = restart(left_behind(("ann/chat-1-0", ANN), by_names=True))
    assert [sequence.request_id for sequence in service.core.scheduler] == ["ann/chat-1-0"]
    assert not service.events(ENDED)
    service, _ = restart([batch.payload], client_ids=ids)
    expected = f"{'1' * 32}/chat-1-0" if ids else "ann/chat-1-0"
    assert [sequence.request_id for sequence in service.core.scheduler] == [expected]
    service.wait(RETURN_WITHIN_S + 1.0)
    assert not [*service.core.scheduler], "nobody came for it"
