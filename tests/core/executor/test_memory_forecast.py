"""The forecast of memory against simulations that let every sequence grow."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from scheduler_svc.core.executor.memory_forecast import MARK, Forecast, Growing

SEQUENCES = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 300)), min_size=1, max_size=20)


def growing(sizes, remaining, can_stop=()):
    columns = (np.array(column, float) for column in (sizes, remaining))
    return Growing(*columns, np.array(can_stop or [False] * len(sizes), bool))


def simulated_peak(sequences, block_size, moments):
    """Blocks held just before any of them ends; a sequence's last token is never stored."""
    return max(
        (sum(-(-(size + t - 1) // block_size) for size, remaining in sequences if remaining >= t) for t in moments),
        default=0,
    )


@given(sequences=SEQUENCES, block_size=st.sampled_from([1, 16, 256]))
def test_without_stop_tokens_the_peak_is_that_of_a_simulation_until_the_newcomer_ends(sequences, block_size):
    *running, (size, remaining) = sequences
    columns = list(zip(*running, strict=True)) or [[], []]
    forecast = Forecast(growing(*columns), block_size)
    forecast.add(size, remaining, can_stop=False)
    peak = simulated_peak(sequences, block_size, {left for _, left in sequences if left <= remaining})
    assert forecast.peak_blocks() == peak
    assert not forecast.exceeds(peak)
    assert peak == 0 or forecast.exceeds(peak - 1)


def test_what_others_will_hold_after_the_newcomer_has_ended_is_not_its_fault():
    forecast = Forecast(growing([10, 10], [1000, 1000]), 1)
    forecast.add(10, 50, can_stop=False)
    assert forecast.peak_blocks() == 3 * 59


@given(sequences=SEQUENCES, is_last_certain=st.booleans())
def test_beside_answers_that_may_stop_a_part_of_the_pool_stays_free(sequences, is_last_certain):
    """They count with what they hold now, whatever they may still take."""
    *running, (size, remaining) = sequences
    forecast = Forecast(growing(*(list(zip(*running, strict=True)) or [[], []]), [True] * len(running)), 16)
    forecast.add(size, remaining, can_stop=not is_last_certain)
    held = sum(-(-size // 16) for size, _ in (running if is_last_certain else sequences))
    held += -(-(size + remaining - 1) // 16) if is_last_certain else 0
    is_uncertain = bool(running) or not is_last_certain
    enough = next(n for n in range(2 * held + 2) if n - (MARK * n if is_uncertain else 0) >= held)
    assert not forecast.exceeds(enough)
    assert forecast.exceeds(enough - 1)
