"""What Prometheus is told: times, lengths and counts, under our names and vLLM's."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from common import messages as m
from common.release import BUILD
from scheduler_svc.core.observability.histogram import WeightedHistogram
from scheduler_svc.core.observability.vllm_names import ALIASES
from scheduler_svc.core.requests.group_commit import JournalState
from tests.support.chores import done
from tests.support.effort import examples
from tests.support.service import Service, restart, undisturbed
from tests.support.submits import PROMPT

STEP_S = 0.25  # a power of two, so that sums are exact


def families(service):
    """All metrics of a service, by name."""
    text = service.say(m.MetricsQuery(query_id=1)).text.decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def of(service, name):
    """Sum and count of a histogram."""
    return service.metric(f"{name}_sum"), service.metric(f"{name}_count")


@given(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 99.0]), st.integers(1, 3))))
@settings(max_examples=examples(50))
def test_a_weighted_histogram_says_what_prometheus_clients_own_would(observed):
    theirs, registry, bounds = CollectorRegistry(), CollectorRegistry(), (0.5, 1.0, 2.0)
    own, weighted = Histogram("x", "Text.", buckets=bounds, registry=theirs), WeightedHistogram("x", "Text.", bounds)
    registry.register(weighted)
    for value, times in observed:
        weighted.observe(value, times)
        for _ in range(times):
            own.observe(value)
    assert generate_latest(registry) == re.sub(rb".*x_created.*\n", b"", generate_latest(theirs))
    assert weighted.count == sum(times for _, times in observed)


def test_every_token_but_the_first_has_its_time_since_the_last_one():
    service = Service(step_s=STEP_S)
    service.join("one")
    service.submit("a", max_tokens=5)
    service.submit("b", max_tokens=3, n=2)
    service.turn()
    assert of(service, "baton_inter_token_seconds") == (8 * STEP_S, 8)
    assert of(service, "baton_output_token_seconds") == (3 * STEP_S, 3), "one mean for each sequence"
    service.now += 100.0  # an idle executor's time is between no tokens
    service.submit("c", max_tokens=2)
    service.turn()
    assert of(service, "baton_inter_token_seconds") == (9 * STEP_S, 9)


@pytest.mark.parametrize("how", ["lost", "preempted"])
def test_a_pause_stands_between_two_tokens(how):
    """Those of a preempted sequence that were in flight come before it."""
    service = Service(step_s=STEP_S)
    service.join("one")
    service.submit("a", max_tokens=8)
    service.turn(num_answers=3)
    if how == "lost":
        service.lose("one")
    else:
        (executor,), (sequence,) = service.core.scheduler.executors, service.core.scheduler
        assert executor.inflight
        service.core.scheduler.sequences.preempt(executor, sequence)
    last, landed = service.now, len(service.tokens[b"web", "a", 0])
    service.now += 16.0
    service.join("two")
    service.turn()
    assert service.tokens[b"web", "a", 0] == undisturbed(8)
    took, count = of(service, "baton_inter_token_seconds")
    assert count == 7
    assert took == service.now - last + (landed - 1) * STEP_S


def test_the_longest_pause_of_an_executors_streams_is_told_once_all_go_on():
    service = Service(step_s=STEP_S)
    service.join("one")
    service.submit("a", max_tokens=8)
    service.turn(num_answers=3)
    service.submit("b", max_tokens=8)
    service.turn(num_answers=2)
    service.submit("c", max_tokens=8)  # has no token, and so no pause
    service.lose("one")
    last = service.now
    service.now += 16.0
    assert pauses(service) == {}, "nobody has gone on"
    service.say(m.Cancel(request_id="b"))
    assert pauses(service) == {}, "one waits still"
    service.join("two")
    service.turn(num_answers=1)
    assert pauses(service) == {1: service.now - last}
    service.turn()
    service.lose("two")
    assert pauses(service)[2] == 0.0, "no stream was there"


def pauses(service):
    """By epoch, as the status has them."""
    return service.say(m.StatusQuery(query_id=1)).report.pauses_s


def test_the_pause_by_a_restart_counts_from_the_new_life_on():
    """An executor that goes before it has given any token changes nothing."""
    before = Service(JournalState.OK, step_s=STEP_S)
    before.join("one")
    before.submit("a", max_tokens=8, is_resumable=True)
    before.turn(num_answers=3)
    after, _ = restart([before.write()], step_s=STEP_S)
    after.now += 2.0
    after.join("two")
    after.do(done(after.core.plans(after.now)))
    after.lose("two")
    after.now += 2.0
    after.join("three")
    after.turn()
    assert of(after, "baton_inter_token_seconds") == (after.now, 5)
    assert of(after, "baton_time_to_first_token_seconds")[1] == 0


def test_the_time_in_the_queue_ends_with_the_first_admission():
    service = Service(step_s=STEP_S)
    service.submit("a", n=3)
    service.now += 4.0
    service.join("one")
    service.turn(num_answers=2)
    service.lose("one")
    service.now += 4.0
    service.join("two")
    service.turn()
    assert of(service, "baton_queue_seconds") == (12.0, 3)
    assert of(service, "baton_sequence_seconds")[1] == 3


def test_lengths_are_those_of_sequences_that_ended():
    service = Service()
    service.join("one")
    service.submit("a", max_tokens=6, n=2)
    service.submit("waits", max_tokens=50)
    service.turn(num_answers=7)
    service.say(m.Cancel(request_id="waits"))
    lengths = of(service, "baton_sequence_output_tokens")
    assert lengths == (6 + 6 + service.metric("baton_output_tokens_total") - 12, 3)
    assert of(service, "baton_sequence_prompt_tokens") == (3 * len(PROMPT), 3)
    assert service.metric("baton_queried_prompt_tokens_total") == 3 * len(PROMPT)


def test_the_build_is_told():
    assert Service().metric(f'baton_build_info{{version="{BUILD}"}}') == 1


def test_vllms_names_have_the_values_of_ours():
    """Also with a name of a model that the text format has to quote."""
    service = Service(model='org/"small"\\one', step_s=STEP_S)
    service.join("one")
    service.submit("a", max_tokens=4)
    service.submit("late", max_tokens=50, timeout_s=0.5)
    service.submit("left", max_tokens=50)
    service.turn(num_answers=6)
    service.say(m.Cancel(request_id="left"))
    service.wait(1.0)
    service.submit("waits", max_tokens=50)
    service.turn(num_answers=1)
    told = families(service)
    for alias in ALIASES:
        ours, theirs = told[alias.ours], told[alias.name]
        assert {sample.labels["model_name"] for sample in theirs.samples} == {'org/"small"\\one'}
        if not alias.only and alias.values is None:
            assert [s.value for s in theirs.samples] == [s.value for s in ours.samples]
            assert (theirs.type, theirs.documentation) == (ours.type, ours.documentation)
            names = [sample.name.replace(alias.ours, alias.name) for sample in ours.samples]
            assert [sample.name for sample in theirs.samples] == names
    (running,), (waiting,), (usage,) = (
        told[f"vllm:{name}"].samples for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    )
    assert (running.value, waiting.value) == (1, 0)
    blocks = {sample.labels["state"]: sample.value for sample in told["baton_blocks"].samples}
    assert 0 < usage.value == pytest.approx(blocks["used"] / sum(blocks.values()))
    finished = {s.labels["finished_reason"]: s.value for s in told["vllm:request_success"].samples}
    assert finished == {"stop": 0, "length": 1, "abort": 1, "error": 1}


def test_without_an_executor_no_block_is_in_use():
    (usage,) = families(Service(model="demo"))["vllm:kv_cache_usage_perc"].samples
    assert usage.value == 0
