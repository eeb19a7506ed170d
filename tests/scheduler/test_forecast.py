"""The forecast of memory against a simulation that lets every sequence grow."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from scheduler_svc.core.executor.memory_forecast import HISTORY, MIN_HISTORY, Forecast, OutputHistory

SEQUENCES = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 300)), min_size=1, max_size=20)


def simulated_peak(sequences, block_size):
    """Blocks held just before any of them ends; a sequence's last token is never stored."""
    moments = {remaining for _, remaining in sequences}
    return max(
        sum(-(-(size + t - 1) // block_size) for size, remaining in sequences if remaining >= t) for t in moments
    )


@given(sequences=SEQUENCES, split=st.integers(0, 20), block_size=st.sampled_from([1, 16, 256]))
def test_the_peak_is_that_of_a_simulation(sequences, split, block_size):
    running, joining = sequences[:split], sequences[split:]
    sizes, remaining = (np.array(column, float) for column in (zip(*running, strict=True) if running else ([], [])))
    forecast = Forecast(sizes, remaining, block_size)
    for size, left in joining:
        forecast.add(size, left)
    peak = simulated_peak(sequences, block_size)
    assert forecast.peak_blocks() == peak
    assert not forecast.exceeds(peak)
    assert forecast.exceeds(peak - 1)


def test_without_history_answers_use_up_their_max_tokens():
    history = OutputHistory()
    for _ in range(MIN_HISTORY - 1):
        history.add(1, 100)
    assert history.expected(10, 100) == 90


def test_with_history_the_expectation_is_a_quantile_of_those_that_got_as_far():
    history = OutputHistory()
    for fraction in range(1, 101):
        history.add(fraction, 100)
    assert history.expected(0, 100) == pytest.approx(76, abs=1)
    assert history.expected(50, 100) == pytest.approx(88 - 50, abs=1)
    assert history.expected(0, 1000) == pytest.approx(760, abs=10)
    assert history.expected(100, 100) == 1, "one more at least"


def test_old_answers_are_forgotten():
    history = OutputHistory()
    for _ in range(HISTORY):
        history.add(1, 100)
    assert history.expected(0, 100) == 1
    for _ in range(HISTORY):
        history.add(100, 100)
    assert history.expected(0, 100) == 100
