"""Percentiles of the last minutes, and their seconds."""

import numpy as np
import pytest

from common import messages as m
from scheduler_svc.core.observability.histogram import WeightedHistogram
from scheduler_svc.core.observability.prometheus_text import BETWEEN_TOKENS
from scheduler_svc.core.observability.recent import MAX_PAUSES, STEP_S, WINDOW_S, History, Pauses, RecentPercentiles
from tests.support.service import Service


def test_percentiles_lie_in_the_bucket_of_the_true_ones():
    histogram = WeightedHistogram("x", "", BETWEEN_TOKENS)
    recent = RecentPercentiles(histogram)
    recent.tick(0.0)
    values = np.random.default_rng(1).lognormal(-4, 1, 5000)
    for value in values:
        histogram.observe(float(value))
    told = recent.read()
    assert told.count == 5000
    for part, told_value in ((50, told.p50), (90, told.p90), (99, told.p99)):
        true = float(np.percentile(values, part))
        place = int(np.searchsorted(BETWEEN_TOKENS, true))
        low, high = (BETWEEN_TOKENS[place - 1] if place else 0.0), BETWEEN_TOKENS[place]
        assert low <= told_value <= high


def test_what_is_older_than_the_window_does_not_count():
    histogram = WeightedHistogram("x", "", (1.0, 2.0))
    recent = RecentPercentiles(histogram)
    assert recent.read() is None
    for second in range(int(2 * WINDOW_S)):
        recent.tick(float(second))
        if second == 5:
            histogram.observe(1.5, times=10)
        if second == WINDOW_S:
            assert recent.read().count == 10
    assert recent.read() is None
    histogram.observe(50.0)  # beyond the last bound
    assert recent.read() == m.Percentiles(count=1, p50=2.0, p90=2.0, p99=2.0)
    assert STEP_S < WINDOW_S


def test_seconds_that_are_like_the_one_before_are_left_out_and_old_ones_go():
    history = History()
    for second in range(400):
        busy = second % 100 < 10
        history.add(float(second), (10.0 * busy, 0.0), (0, 0), int(busy), 0)
    told = [(sample.at, sample.running) for sample in history.samples]
    assert told == [(100.0, 1), (110.0, 0), (200.0, 1), (210.0, 0), (300.0, 1), (310.0, 0)]
    assert [sample.at for sample in history.after(210.0)] == [300.0, 310.0]


@pytest.mark.parametrize("had", [0, 30])
def test_the_hit_rate_is_that_of_the_last_seconds(had):
    history = History()
    for second, asked, cached in ((0, 0, 0), (5, 100, 100), (12, 160, 100 + had), (30, 160, 100 + had)):
        history.add(float(second), (0.0, 0.0), (asked, cached), 0, 0)
    assert [sample.hit_rate for sample in history.samples] == [-1.0, 1.0, had / 60, -1.0]


def test_the_status_has_percentiles_of_what_was_served():
    service = Service(step_s=0.018)
    service.join("one")
    service.submit("a")
    assert service.say(m.StatusQuery(query_id=1)).report.first_token is None
    service.turn()
    service.wait(0.5)
    report = service.say(m.StatusQuery(query_id=1)).report
    assert (report.first_token.count, report.between_tokens.count) == (1, 5)
    assert 0.01 <= report.first_token.p50 <= 0.025
    assert 0.015 <= report.between_tokens.p99 <= 0.02


def test_the_last_pauses_are_remembered_once_all_have_gone_on():
    pauses = Pauses()
    for epoch in range(MAX_PAUSES + 3):
        pauses.began(epoch, 2)
        pauses.over(epoch, 0.5)
        assert epoch not in pauses.longest_s
        pauses.over(epoch, 0.25)
    assert pauses.longest_s == dict.fromkeys(range(3, MAX_PAUSES + 3), 0.5)
