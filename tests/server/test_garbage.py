"""What the core makes does not refer to itself: it is gone without the collector, which spares what is old."""

import gc

from common import messages as m
from scheduler_svc.core.requests.group_commit import BatchFailed, JournalState
from scheduler_svc.core.requests.request_manager import RECONNECT_GRACE_S
from tests.support.service import Service, restart


def live():
    """Requests that end, are cancelled, refused, late, or lose their executor, frontend and journal; then a restart."""
    service = Service(JournalState.OK, reconnect_grace_s=RECONNECT_GRACE_S)
    for name in "ab":
        service.join(name)
    for i in range(60):
        service.submit(f"r{i}", is_resumable=i % 2 == 0, timeout_s=9.0 if i % 5 == 0 else None)
    service.submit("huge", max_tokens=10**6)
    service.write_all()
    service.turn(20)
    service.lose("a")
    service.say(m.Cancel(request_id="r7"))
    batch = service.core.next_batch(service.now + 1.0)
    service.do(service.core.batch_written(BatchFailed(batch.number, "full"), service.now))
    service.turn(5)
    service.wait(10.0)
    service.submit("late", max_tokens=10_000)
    service.do(service.core.frontend_gone(b"web", service.now))
    service.wait(RECONNECT_GRACE_S + 1.0)
    after, _ = restart(service.write_all())
    after.join("a")
    after.say(m.Attach(request_id="r2"))
    after.say(m.StatusQuery(query_id=1))
    after.say(m.MetricsQuery(query_id=2))
    after.turn()
    return service, after  # a core itself refers to itself


def test_nothing_is_left_for_the_collector():
    live()  # what the first time makes, once
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        services = live()
        gc.collect()
        left = [type(each).__name__ for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert all(service.said for service in services)
    assert left == []
