"""Sequences of the lowest priority sit out while prompts of others are computed, and lose nothing by it."""

from common import messages as m
from common.wire import int32_array
from scheduler_svc.core.scheduling.yielding import MAX_SAT_OUT
from tests.support.scheduling import Scheduling, limits

YIELDS = {"priority": m.MAX_PRIORITY}


def rows(plan):
    """query_len of each row."""
    return int32_array("query_lens", plan.query_lens).tolist()


def crowded(**options):
    """Eight sequences that yield and decode."""
    run = Scheduling(limits(**({"num_blocks": 512, "max_num_seqs": 32} | options)))
    yielding = [run.add(f"batch {i}", [i] * 5, max_tokens=40, **YIELDS)[0] for i in range(8)]
    run.step()
    run.step()
    return run, yielding


def test_a_prompt_has_the_plan_to_itself_and_the_others_go_on_afterwards():
    run, yielding = crowded()
    (awaited,) = run.add("awaited", [100] * 30, max_tokens=4)
    before = len(run.plans[1])
    run.finish()
    plans = [rows(plan) for plan in run.plans[1][before:]]
    assert [30] in plans, "the prompt, and no other row"
    assert plans.index([30]) == 0
    assert plans[1] == [1] * 9
    assert all(len(run.outputs[sequence]) == 40 for sequence in yielding)
    assert len(run.outputs[awaited]) == 4


def test_sequences_that_are_awaited_decode_beside_a_prompt():
    run, _ = crowded()
    run.add("first", [100] * 10, max_tokens=30)
    run.step()
    run.step()
    run.add("second", [101] * 20, max_tokens=4)
    before = len(run.plans[1])
    run.step()
    run.step()
    assert [1, 20] in [rows(plan) for plan in run.plans[1][before:]]


def test_prompts_that_yield_wait_for_those_that_do_not():
    run, _ = crowded()
    run.add("late batch", [50] * 7, max_tokens=3, **YIELDS)
    run.add("awaited", [100] * 30, max_tokens=4)
    before = len(run.plans[1])
    run.finish()
    plans = [rows(plan) for plan in run.plans[1][before:]]
    assert plans[0] == [30]
    assert sorted(plans[1])[-1] == 7


def test_alone_they_run_as_any_other():
    plans = []
    for options in ({}, YIELDS):
        run = Scheduling(limits(num_blocks=256, max_num_seqs=32))
        for i in range(8):
            run.add(f"{i}", [i] * (5 + i), max_tokens=10, **options)
        run.finish()
        plans.append([rows(plan) for plan in run.plans[1]])
    assert plans[0] == plans[1]


def test_endless_prompts_do_not_starve_them():
    run, yielding = crowded(max_batch_tokens=16, max_model_len=2000)
    run.add("long", [i % 500 for i in range(1900)], max_tokens=2)
    had = len(run.outputs[yielding[0]])
    for _ in range(3 * (MAX_SAT_OUT + 1)):
        run.step()
    assert 2 <= len(run.outputs[yielding[0]]) - had <= 5


def test_a_prompt_that_finds_no_memory_stops_nobody():
    """It waits until they have given memory back: they go on."""
    run = Scheduling(limits(num_blocks=12, max_num_seqs=8, max_model_len=48))
    (yielding,) = run.add("batch", [1] * 5, max_tokens=40, **YIELDS)
    run.step()
    (awaited,) = run.add("awaited", [2] * 40, max_tokens=5)
    run.finish()
    assert len(run.outputs[yielding]) == 40
    assert len(run.outputs[awaited]) == 5
