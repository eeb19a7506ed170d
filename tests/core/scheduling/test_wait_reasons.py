"""Why a sequence waits, in the words that people are shown."""

from common import messages as m
from tests.support.service import Service


def reasons(service: Service) -> dict[str, str]:
    service.say(m.SendViews(interval_s=0.0, is_fresh=True))
    service.wait(0.5)
    views = [told for told in service.said[b"web"] if isinstance(told, m.View) and told.waiting is not None]
    return {waiting.request: waiting.reason for waiting in views[-1].waiting}


def test_no_executor_or_none_that_takes_the_task():
    service = Service()
    service.submit("a")
    assert reasons(service) == {"a": "no_executor"}
    service.join("one", tasks=("embed",))
    assert reasons(service) == {"a": "no_executor"}


def test_lanes():
    service = Service()
    service.join("one", max_num_seqs=2)
    for name in ("a", "b", "c"):
        service.submit(name, max_tokens=30)
    service.turn(num_answers=2)
    assert reasons(service) == {"c": "lanes"}


def test_others_go_first_whose_clients_have_had_less():
    service = Service()
    service.join("one", max_num_seqs=2)
    for name in ("a", "b", "c", "d"):
        service.submit(name, max_tokens=30, client="heavy")
    service.turn(num_answers=2)
    service.submit("e", max_tokens=30, client="light")
    assert reasons(service) == {"e": "lanes", "c": "share", "d": "share"}


def test_memory():
    service = Service()
    service.join("one", num_blocks=8, max_model_len=32)
    for name in ("a", "b"):
        service.submit(name, max_tokens=28)
    service.turn(num_answers=2)
    assert reasons(service) == {"b": "memory"}


def test_the_pool_that_it_left_much_in():
    service = Service()
    service.join("one", pool=m.Pool(pool="p" * 32, lease=1, layout="x", epoch=0), start_s=60.0)
    service.submit("a", max_tokens=30)
    service.turn(num_answers=9)
    service.lose("one")
    assert reasons(service) == {"a": "pool"}


def test_its_own_tokens_in_flight():
    service = Service()
    service.join("one")
    service.submit("a", max_tokens=30)
    service.turn(num_answers=3)
    scheduler = service.core.scheduler
    (sequence,) = scheduler
    scheduler.sequences.preempt(scheduler.executor(1), sequence)
    assert sequence.num_inflight > 0
    assert reasons(service) == {"a": "landing"}


def test_prompts_of_others():
    service = Service()
    service.join("one", max_batch_tokens=8)
    service.submit("long", prompt=range(5, 65), max_tokens=2)
    service.turn(num_answers=1)
    service.submit("b", priority=m.MAX_PRIORITY)
    assert reasons(service) == {"b": "yields"}


def test_a_suspect_waits_to_be_alone():
    service = Service()
    service.join("one")
    service.submit("other", max_tokens=190)
    service.submit("a", max_tokens=20)
    for _ in range(2):
        service.turn(num_answers=0)
        service.lose("one")
        service.now += 1.0
        service.join("one")
    assert set(reasons(service).values()) == {"alone"}
