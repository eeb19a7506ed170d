"""Memory and the journal stay flat however many requests come and go."""

import gc
import tracemalloc

import pytest

from common import messages as m
from scheduler_svc.core.requests.group_commit import GATHER_S, BatchSaved, JournalState
from tests.support.service import Service

NUM_REQUESTS = 1800


def live(service: Service, first: int, last: int) -> int:
    """Requests come, are answered, cancelled, detached, attached to, and lose their executor and their frontend.

    Returns how many batches the journal had to keep at most.
    """
    num_kept = 0
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
        num_kept = max(num_kept, save(service))
        service.wait(0.5)
        told = (service.said, service.tokens, service.logprobs, service.prompt_logprobs, service.endings)
        for notes in (*told, service.to_executors, service.logs):
            notes.clear()
    return num_kept


def save(service: Service) -> int:
    """The journal writes what it has to. Returns how many batches it still needs."""
    core = service.core
    service.now += GATHER_S
    if (batch := core.next_batch(service.now)) is None:
        return 0
    service.do(core.batch_written(BatchSaved(batch.number), service.now))
    return batch.number - batch.keep_from


@pytest.mark.slow
def test_memory_and_the_journal_are_flat():
    service = Service(JournalState.OK, max_retained=100, max_lives=100)  # a soak of seconds goes far beyond these
    service.join("a")
    live(service, 0, NUM_REQUESTS // 3)
    gc.collect()
    tracemalloc.start()
    live(service, NUM_REQUESTS // 3, 2 * NUM_REQUESTS // 3)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    num_kept = live(service, 2 * NUM_REQUESTS // 3, NUM_REQUESTS)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 100_000, "bytes, of which a request that is kept takes some thousand"
    requests = service.core.requests
    assert len(requests.table.all()) <= 101
    assert num_kept <= 300, "batches that nothing needs are let go"
    assert len(requests.frontends) <= 8
    lives = [service.say(m.LifeQuery(query_id=1, request_id=f"r{i}")).sequences for i in range(NUM_REQUESTS)]
    assert sum(map(bool, lives)) <= 100
