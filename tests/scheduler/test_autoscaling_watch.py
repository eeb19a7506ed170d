"""What the autoscaler sees of a real core (`core/autoscaling/watch.py`): all that waits and runs, and what misleads."""

from array import array

import msgspec
import pytest

from common import messages as m
from scheduler_svc.core.autoscaling.autoscaler import RETURN_S, SETTLE_S
from scheduler_svc.core.autoscaling.forecast import Load
from scheduler_svc.core.autoscaling.settings import ScaleSettings
from scheduler_svc.core.fleet.membership import Standing
from scheduler_svc.core.requests.group_commit import JournalState
from tests.support.hello import LIMITS
from tests.support.service import Service, restart


def seen(service: Service) -> Load:
    watch, executors = service.core._scale, service.core.scheduler.executors
    assert watch is not None
    return watch._load(executors, [e for e in executors if e.membership.standing is Standing.READY])


def test_a_look_sees_all_that_waits_and_runs():
    """Two executors with four answers; one finishes its answers and takes no more. Then a prompt of 150 is begun on the
    other one, with 62 of the 64 tokens of a plan, and three sequences of three tokens wait."""
    service = Service(scale=ScaleSettings(1, 3, 2.0))
    service.join("stays")
    service.join("finishes")
    for i in range(4):
        service.submit(f"answer {i}", max_tokens=12)
    service.turn(4)
    service.say(m.DrainExecutor(query_id=1, executor="finishes", finish=True))
    prompt = array("i", range(150)).tobytes()
    service.say(m.Submit(request_id="long", prompt=prompt, params=m.SamplingParams(max_tokens=1)))
    service.turn(1)
    for i in range(3):
        service.submit(f"waits {i}", max_tokens=12)
    stays, finishes = service.core.scheduler.executors
    assert (len(stays.running), len(finishes.running)) == (3, 2)
    used = [e.blocks.num_blocks - e.blocks.num_free for e in (stays, finishes)]
    load = seen(service)
    sizes = (LIMITS.num_blocks, LIMITS.block_size, LIMITS.max_num_seqs, LIMITS.max_batch_tokens)
    assert (load.pool_blocks, load.block_size, load.max_num_seqs, load.max_batch_tokens) == sizes
    assert (load.num_waiting, load.waiting_tokens) == (3, 9)
    assert load.prefilling_tokens == 150 - 62
    assert load.num_running == 5
    assert load.used_blocks == sum(used)
    assert load.cost is None
    # The long prompt will hold 38 blocks, and the answer beside it three or four.
    assert used[0] < 20 < 38 < load.held_blocks <= 42


def test_a_cache_that_is_asked_for_keeps_its_executor():
    service = Service(scale=ScaleSettings(1, 3, 2.0))
    service.join("old")
    service.join("young")
    service.wait(SETTLE_S + 2)
    assert service.say(m.StatusQuery(query_id=1)).report.scale.drain_first == ["young", "old"]
    service.core.scheduler.executors[1].num_hit_tokens += 5000
    service.wait(5)
    assert service.say(m.StatusQuery(query_id=1)).report.scale.drain_first == ["old", "young"]


def test_reading_the_journal_is_no_time_in_which_executors_come_back():
    service = Service(scale=ScaleSettings(1, 8, 2.0))
    service.now += 100.0  # from the core's start to the first tick
    service.wait(1)
    for name in ("a", "b", "c"):
        service.join(name)
    assert service.say(m.StatusQuery(query_id=1)).report.scale is None
    service.wait(SETTLE_S)
    scale = service.say(m.StatusQuery(query_id=1)).report.scale
    assert (scale.wanted, scale.reason) == (3, "found")


@pytest.mark.parametrize("is_second_life", [False, True])
def test_only_work_of_an_earlier_life_delays_the_number(is_second_life):
    """That life may have ordered executors for it; for what comes to the first life, none can be starting."""
    scale = ScaleSettings(1, 8, 2.0)
    service = Service(journal=JournalState.OK, scale=scale)
    service.submit("a", max_tokens=20, is_resumable=True)
    if is_second_life:
        service, _ = restart([service.write()], scale=scale)
    service.wait(SETTLE_S + 2)
    assert (service.say(m.StatusQuery(query_id=1)).report.scale is None) == is_second_life
    service.wait(RETURN_S)
    assert service.metric("baton_executors_wanted") == 1


def test_a_stopped_scheduler_holds_no_order_for_late():
    service = Service(scale=ScaleSettings(0, 8, 2.0))
    service.wait(SETTLE_S + 1)
    service.submit("a", max_tokens=20)
    service.wait(2)
    assert service.metric("baton_executors_wanted") == 1
    service.now += 1000.0  # SIGSTOP
    service.wait(5)
    assert service.metric("baton_executors_wanted") == 1


def test_what_no_ready_executor_fits_orders_none():
    """A large executor is lost, and its long requests wait for it: small ones would not help them."""
    service = Service(scale=ScaleSettings(1, 8, 2.0))
    service.join("small")
    service.join("large", num_blocks=8 * LIMITS.num_blocks, max_model_len=8 * LIMITS.max_model_len)
    for i in range(40):
        service.submit(f"short {i}")
        service.turn()
    service.wait(RETURN_S + 1)
    assert service.metric("baton_executors_wanted") == 2
    service.lose("large")
    for i in range(200):
        service.submit(f"long {i}", max_tokens=4 * LIMITS.max_model_len)
    service.wait(3)
    assert service.core.scheduler.sequences.waiting.total(with_stranded=False).sequences == 0
    assert service.metric("baton_executors_wanted") == 2, "the lost one, and no more"
    assert seen(service).num_waiting == 0
    service.lose("small")
    assert seen(service).num_waiting == 200, "the first executor that comes may fit"


def test_an_executor_that_makes_up_its_times_is_bounded_by_the_clock():
    service = Service(scale=ScaleSettings(1, 8, 2.0), step_s=0.03)
    service.join("liar")
    run = service.executors["liar"].run
    service.executors["liar"].run = lambda plan: msgspec.structs.replace(run(plan), compute_us=10**11)  # type: ignore
    for i in range(40):
        service.submit(str(i), max_tokens=20)
    service.turn()
    service.wait(1.0)
    assert service.core.scheduler.stats.answers == 40
    scale = service.core._scale
    assert scale is not None
    cost = scale._steps.cost()
    assert cost is not None
    assert cost.seconds(16, 30) < 0.1
