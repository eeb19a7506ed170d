"""Requests that no client can come back for wait for no disk, and take no room from those of others."""

import shutil
import time
from array import array

import pytest

from common import messages as m
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.requests.group_commit import BatchFailed, BatchSaved, JournalState
from scheduler_svc.core.requests.journal_replay import read_batches
from scheduler_svc.core.requests.retention import RETAIN_S
from scheduler_svc.server.core_process import CoreProcess
from scheduler_svc.server.journal import Journal
from tests.server.journals.write import FOLDER
from tests.support.chores import tick
from tests.support.service import Service, undisturbed
from tests.support.submits import submit


def told(service, name):
    """Everything that clients have of a request."""
    return {
        key: (service.tokens[key], service.logprobs[key], service.prompt_logprobs[key], service.endings.get(key))
        for key in service.tokens
        if key[1] == name
    }


def test_a_plain_request_is_not_in_the_journal_and_does_not_wait_for_it():
    service = Service(JournalState.OK)
    service.join("one")
    service.submit("a", is_resumable=False)
    assert [said.request_ids for said in service.said[b"web"] if isinstance(said, m.Accepted)] == [("a",)]
    service.turn()
    assert service.tokens[b"web", "a", 0] == undisturbed()
    service.submit("b", is_resumable=False)
    service.say(m.Cancel(request_id="b"))
    assert service.endings == {(b"web", "a", 0): "length", (b"web", "b", 0): "cancelled"}
    assert service.core.is_settled
    batch = service.core.next_batch(1.0)
    assert read_batches([batch.payload]).requests == []
    service.core.batch_written(BatchSaved(batch.number), 1.0)
    assert service.core.next_batch(1.5) is None, "only executors are remembered"


@pytest.mark.parametrize("plain", [{}, {"logprobs": 2}, {"prompt_logprobs": 1, "logprobs": 1}])
@pytest.mark.parametrize("kept", [{}, {"logprobs": 3}, {"prompt_logprobs": 2}])
def test_of_one_step_plain_tokens_are_told_at_once_and_the_others_when_they_are_on_disk(plain, kept):
    alone = Service()
    alone.join("one")
    service = Service(JournalState.OK)
    service.join("one")
    for each in (service, alone):
        each.submit("plain", is_resumable=False, n=2, **plain)
        each.submit("kept", n=2, **kept)
        each.submit("another", is_resumable=False, max_tokens=3)
    alone.turn()
    rows = [service.write()]
    service.turn()
    assert told(service, "plain") == told(alone, "plain")
    assert told(service, "another") == told(alone, "another")
    assert told(service, "kept") == {}
    rows.append(service.write())
    service.flush()
    assert told(service, "kept") == told(alone, "kept")
    (saved,) = read_batches(rows).requests
    assert saved.submit.request_id == "kept"
    for index, progress in enumerate(saved.progress):
        tokens, logprobs, prompt_logprobs, _ = told(alone, "kept")[b"web", "kept", index]
        assert array("i", progress.token_ids).tolist() == tokens
        assert [*zip(array("i", progress.logprob_ids), array("f", progress.logprobs), strict=True)] == logprobs
        values = array("f", progress.prompt_logprobs).tolist()
        assert values == [value for _, value in prompt_logprobs]


def test_while_the_journal_does_not_work_both_are_told_at_once():
    service = Service(JournalState.OK)
    service.join("one")
    service.submit("kept")
    service.do(service.core.batch_written(BatchFailed(service.core.next_batch(0.0).number, "full"), 0.0))
    service.submit("plain", is_resumable=False)
    service.turn()
    assert service.tokens == {(b"web", name, 0): undisturbed() for name in ("plain", "kept")}


def test_a_plain_request_that_is_read_by_another_frontend_waits_for_no_disk():
    service = Service(JournalState.OK)
    service.join("one")
    service.submit("kept")
    service.submit("a", is_resumable=False)
    service.turn(num_answers=3)
    assert service.say(m.Attach(request_id="a"), peer=b"web2").found
    service.turn()
    assert service.tokens[b"web2", "a", 0] == undisturbed()


@pytest.mark.parametrize("journal", [JournalState.OFF, JournalState.OK])
def test_a_plain_request_that_has_ended_is_gone(journal):
    service = Service(journal)
    service.join("one")
    service.submit("a", max_tokens=2, is_resumable=False)
    service.turn()
    assert not service.say(m.Attach(request_id="a")).found
    service.submit("a", is_resumable=False)
    service.turn()
    assert service.tokens[b"web", "a", 0] == undisturbed(), "its id is free"
    assert service.core.requests.table.all() == []


def test_limits_count_plain_requests():
    service = Service(JournalState.OK)
    alice = {"client": "alice", "client_limit": 2, "is_resumable": False}
    for name in ("a", "b", "c", "a"):
        service.submit(name, **alice)
    assert service.endings == {(b"web", "c", 0): "too_many_requests", (b"web", "a", 0): "request_exists"}


def life(path, names):
    """A life of the scheduler that accepts these requests. Returns the arrivals of its sequences."""
    core = CoreProcess("tcp://127.0.0.1:0", f"ipc://{path.parent}/core", CoreConfig(""), Journal(path))
    for name in names:
        asked = submit(name, is_resumable=name.startswith("kept"), n=3)
        core.core.from_frontend(b"F", asked, time.monotonic())
    arrivals = {(s.request_id, s.index): s.arrival for s in core.core.scheduler}
    core.close()
    return arrivals


@pytest.mark.parametrize("version", [0, 1, 4])
def test_no_two_sequences_share_an_arrival_not_even_in_two_lives(version, tmp_path):
    """The journal names sequences by it, and does not know those of plain requests."""
    path = tmp_path / "journal.db"
    if version:
        shutil.copy(FOLDER / f"v{version}.db", path)
    first = life(path, ["kept", "plain"])
    second = life(path, ["plain", "kept2"])
    assert set(second) == {(name, index) for name in ("kept", "plain", "kept2") for index in range(3)}
    before = [*first.values()]
    new = [arrival for (name, _), arrival in second.items() if name != "kept"]
    assert min(new) > max(before) > 100
    assert len({*before, *new}) == len(before) + len(new)
    assert [second["kept", index] for index in range(3)] == [first["kept", index] for index in range(3)]


def test_what_comes_later_is_served_later_over_lives():
    before = Service(JournalState.OK, first_arrival=10**15)
    before.submit("a", priority=-100)
    (record,) = read_batches([before.write()]).requests
    after = Service(JournalState.OK, first_arrival=10**15 + 10**6)
    after.do(after.core.restore([record], 0.0))
    after.submit("b", priority=99)
    first, second = sorted(after.core.scheduler, key=lambda sequence: sequence.rank)
    assert (first.request_id, second.request_id) == ("a", "b")


def test_a_journal_without_requests_lets_its_batches_go():
    """What is known of executors is written again, so that it does not keep all that came since."""
    service = Service(JournalState.OK)
    service.join("one")
    kept = []
    for i in range(300):
        service.submit(f"r{i}", is_resumable=True)
        service.turn()
        batch = service.core.next_batch(service.now + 1.0)
        service.now += RETAIN_S + 1.0
        service.do(service.core.batch_written(BatchSaved(batch.number), service.now))
        service.do(tick(service.core, service.now))
        kept.append(batch.number - batch.keep_from)
    assert max(kept[50:]) < 80
