"""Memory and the journal stay flat however many requests come and go."""

import gc
import tracemalloc

import pytest

from common import messages as m
from scheduler_svc.core.observability import sequence_lives
from scheduler_svc.core.requests import retention
from scheduler_svc.core.requests.group_commit import GATHER_S, BatchSaved, JournalState
from tests.support.service import Service

NUM_REQUESTS = 1800


@pytest.fixture
def service(monkeypatch):
    # So that a soak of seconds goes far beyond them:
    monkeypatch.setattr(retention, "MAX_RETAINED", 100)
    monkeypatch.setattr(sequence_lives, "MAX_ENDED", 100)
    service = Service(JournalState.OK)
    service.join("a")
    return service


def live(service: Service, first: int, last: int) -> None:
    """Requests come, are answered, cancelled, detached, attached to, and lose their executor and their frontend."""
    for i in range(first, last):
        request_id, peer = f"r{i}", b"web%d" % (i % 7)
        service.say(m.FrontendHello(pid=1), peer)
        service.submit(request_id, max_tokens=3 + i % 5, n=1 + i % 2)
        service.turn(2)
        match i % 6:
            case 0:
                service.do(service.core.from_frontend(b"web", m.Cancel(request_id=request_id), service.now))
            case 1:
                service.do(service.core.from_frontend(b"web", m.Detach(request_id=request_id), service.now))
                service.do(service.core.from_frontend(peer, m.Attach(request_id=request_id), service.now))
            case 2:
                service.lose("a")
                service.join("a")
            case 3:
                service.do(service.core.frontend_gone(peer, service.now))
        service.turn()
        save(service)
        service.wait(0.5)
        told = (service.said, service.tokens, service.logprobs, service.prompt_logprobs, service.endings)
        for notes in (*told, service.to_executors, service.logs):
            notes.clear()


def save(service: Service) -> None:
    """The journal writes what it has to."""
    core = service.core
    service.now += GATHER_S
    if (batch := core.next_batch(service.now)) is not None:
        service.do(core.batch_written(BatchSaved(batch.number), service.now))


@pytest.mark.slow
def test_memory_and_the_journal_are_flat(service):
    live(service, 0, NUM_REQUESTS // 3)
    gc.collect()
    tracemalloc.start()
    live(service, NUM_REQUESTS // 3, 2 * NUM_REQUESTS // 3)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    live(service, 2 * NUM_REQUESTS // 3, NUM_REQUESTS)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 100_000, "bytes, of which a request that is kept takes some thousand"
    requests = service.core.requests
    assert len(requests.table.all()) <= 101
    assert len(requests.group_commit._log._rows) <= 102
    assert len(requests.group_commit._log._sizes) <= 300, "batches that nothing needs are let go"
    assert len(requests.frontends) <= 8
    assert len(service.core._counters.lives._ended) <= 100
    assert not service.core._counters.lives._lives
