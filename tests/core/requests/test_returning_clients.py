"""Which requests go on after a restart of the scheduler, for how long, and what they cost those that come meanwhile."""

import pytest
from msgspec.structs import replace

from common import messages as m
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.requests.journal_records import encode
from scheduler_svc.core.requests.journal_replay import read_batches
from scheduler_svc.core.requests.request_manager import RECONNECT_GRACE_S
from scheduler_svc.core.requests.retention import RETAIN_S
from scheduler_svc.core.requests.returning_clients import RETURN_WITHIN_S
from tests.support.chores import tick
from tests.support.service import Service, restart, undisturbed

DID_NOT = "request cancelled: its client did not come back"


def life(*requests, num_answers=3, **config):
    """What the journal has of a scheduler that died in the middle of these requests."""
    service = Service(JournalState.OK, **config)
    service.join("one")
    for request_id, fields in requests:
        service.submit(request_id, **({"max_tokens": 50} | fields))
    rows = [service.write()]
    service.turn(num_answers=num_answers)
    return [*rows, service.write()]


def wait(service, seconds):
    """Time goes by, and the frontend lives."""
    while seconds > 0.0:
        service.wait(min(seconds, 20.0))
        service.say(m.FrontendHello(pid=1))
        seconds -= 20.0


def cancelled(service, event=DID_NOT):
    return [line.facts["request"] for line in service.events(event)]


def test_what_no_client_can_come_back_for_is_dropped():
    """A journal of an earlier release has such requests: open ones, and ended ones."""
    rows = life(("ghost", {"n": 2}), ("ended", {"max_tokens": 1}), ("kept", {}), num_answers=4)
    records = read_batches(rows).requests
    plain = [replace(r, submit=replace(r.submit, is_resumable=r.submit.request_id == "kept")) for r in records]
    service, batch = restart([encode(plain)])
    assert service.events("requests restored from the journal")[0].facts == {"open": 1, "ended": 0}
    assert [sequence.request_id for sequence in service.core.scheduler] == ["kept"]
    assert service.core.requests.table.num_open_by_name == {"": 1}
    assert service.metric("baton_requests_restored_total") == 1
    assert not service.say(m.Attach(request_id="ended")).found
    assert [r.submit.request_id for r in read_batches([batch.payload]).requests] == ["kept"]


@pytest.mark.parametrize("grace_s", [0.0, RECONNECT_GRACE_S, 2 * RETURN_WITHIN_S])
def test_a_resumable_request_waits_for_its_client(grace_s):
    """Longer than for a client whose connection broke in a running service: first it has to find the service again."""
    service, _ = restart(life(("a", {"is_resumable": True})), reconnect_grace_s=grace_s)
    service.wait(max(RETURN_WITHIN_S, grace_s) - 1.0)
    assert [sequence.request_id for sequence in service.core.scheduler] == ["a"]
    service.wait(2.0)
    assert list(service.core.scheduler) == []
    assert cancelled(service) == ["a"]


def test_who_comes_back_in_time_reads_on_and_may_break_off_again():
    service, _ = restart(life(("a", {"is_resumable": True}), ("b", {"is_resumable": True})))
    service.wait(RETURN_WITHIN_S - 1.0)
    for request_id in "ab":
        assert service.say(m.Attach(request_id=request_id)).found
    service.say(m.Detach(request_id="b"))
    wait(service, RECONNECT_GRACE_S - 1.0)
    assert cancelled(service) == []
    wait(service, 2.0)
    assert cancelled(service) == ["b"]
    service.join("two")
    service.turn()
    service.write()
    service.flush()
    assert service.tokens[b"web", "a", 0] == undisturbed(50)


def test_time_in_which_the_scheduler_stood_still_is_not_the_clients():
    service, _ = restart(life(("a", {"is_resumable": True})))
    service.now += RETURN_WITHIN_S + 5.0
    service.do(tick(service.core, service.now))
    assert cancelled(service) == []
    service.wait(RETURN_WITHIN_S)
    assert cancelled(service) == ["a"]


def test_who_retries_instead_of_resuming_is_not_refused_for_what_it_left_behind():
    alice = {"client": "alice", "client_limit": 2}
    resumable = alice | {"is_resumable": True}
    service, _ = restart(life(("a", alice), ("b", resumable)))
    service.submit("retry", is_resumable=True, **alice)
    service.say(m.Attach(request_id="b"), peer=b"web2")
    service.submit("one too many", **alice)
    service.flush()
    assert service.endings == {(b"web", "one too many", 0): "too_many_requests"}, "the retry, and the one that is read"


def test_prompts_of_one_request_are_found_again_as_long_as_one_of_them_is_open():
    """Also those that ended before the restart; a cancel reaches those that have not."""
    fields = {"is_resumable": True, "context": b"two prompts"}
    rows = life(("r-0", fields | {"max_tokens": 1}), ("r-1", {"is_resumable": True}))
    service, _ = restart(rows, reconnect_grace_s=1e6)
    service.wait(RETAIN_S + 1.0)
    assert service.say(m.Attach(request_id="r-0")).found
    assert service.say(m.Attach(request_id="r-1")).found
    for request_id in ("r-0", "r-1"):
        service.say(m.Cancel(request_id=request_id))
    assert list(service.core.scheduler) == []
    service.write()
    service.flush()
    assert service.endings == {(b"web", "r-0", 0): "length", (b"web", "r-1", 0): "cancelled"}


def test_a_prompt_is_not_forgotten_before_its_siblings_have_ended():
    service = Service()
    service.join("one")
    service.submit("r-0", max_tokens=2)
    service.turn()
    service.lose("one")
    service.submit("r-1")
    wait(service, RETAIN_S + 1.0)
    assert service.say(m.Attach(request_id="r-0")).found
    service.say(m.Cancel(request_id="r-1"))
    wait(service, RETAIN_S - 1.0)
    assert service.say(m.Attach(request_id="r-0")).found
    wait(service, 2.0)
    assert not service.say(m.Attach(request_id="r-0")).found
    assert not service.say(m.Attach(request_id="r-1")).found
