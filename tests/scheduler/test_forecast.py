"""The forecast of memory against simulations that let every sequence grow, and what is learnt of answers' lengths."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scheduler_svc.core.executor.answer_lengths import MAX_ENDS, PRIOR_MEDIAN, AnswerLengths

from scheduler_svc.core.executor.memory_forecast import Forecast, Growing, LengthHistory

SEQUENCES = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 300)), min_size=1, max_size=20)
NONE = np.array([])


def growing(sizes, outputs, remaining, *, can_stop):
    return Growing(*(np.array(c, float) for c in (sizes, outputs, remaining)), np.full(len(sizes), can_stop))


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
    forecast = Forecast(
        growing(columns[0], [0] * len(running), columns[1], can_stop=False), LengthHistory(), block_size
    )
    forecast.add(size, 0, remaining, can_stop=False)
    peak = simulated_peak(sequences, block_size, {left for _, left in sequences if left <= remaining})
    assert forecast.peak_blocks() == peak
    assert not forecast.exceeds(peak)
    assert peak == 0 or forecast.exceeds(peak - 1)


def test_what_others_will_hold_after_the_newcomer_has_ended_is_not_its_fault():
    forecast = Forecast(growing([10, 10], [0, 0], [1000, 1000], can_stop=False), LengthHistory(), 1)
    forecast.add(10, 0, 50, can_stop=False)
    assert forecast.peak_blocks() == 3 * 59


def test_the_forecast_of_answers_that_stop_is_what_a_simulation_gives_mostly():
    """Memory stays within the forecast in most runs, and the forecast is not far above what is held."""
    rng = np.random.default_rng(0)
    history = LengthHistory()
    for length in rng.integers(50, 400, 1000):
        history.ended(int(length), can_stop=True, by_itself=True)
    outputs = rng.integers(0, 50, 100)
    forecast = Forecast(growing(300 + outputs, outputs, [8000] * 100, can_stop=True), history, 1)
    forecast.add(300, 0, 8000, can_stop=True)
    peaks = []
    for _ in range(200):
        lengths = rng.integers(50, 400, 101)
        held = [
            sum(300 + now + t for now, length in zip([*outputs, 0], lengths, strict=True) if now + t < length)
            for t in range(1, 400, 8)
        ]
        peaks.append(max(held))
    assert np.mean(np.array(peaks) <= forecast.peak_blocks()) > 0.9
    assert forecast.peak_blocks() < 1.15 * np.mean(peaks)


def survival(lengths, *, can_stop=True, running=NONE, now=0, steps):
    model = AnswerLengths(can_stop=can_stop)
    for length, by_itself in lengths:
        model.ended(length, by_itself=by_itself)
    return model.survival(np.array(running, float)).chance(np.array([float(now)]), np.array([float(steps)]))[0, 0]


def test_answers_without_a_stop_token_use_up_their_max_tokens_until_some_are_cancelled():
    assert AnswerLengths(can_stop=False).is_certain
    assert survival([(100, False)] * 50, can_stop=False, steps=10_000) == 1.0
    assert survival([(100, True)] * 50, can_stop=False, steps=10_000) < 0.01


def test_while_nothing_is_known_half_of_the_answers_reach_the_prior_median():
    assert survival([], steps=PRIOR_MEDIAN) == pytest.approx(0.5, abs=0.01)


def test_the_chances_are_those_of_the_answers_that_ended():
    lengths = [(length, True) for length in np.random.default_rng(0).integers(1, 200, 500).tolist()]
    assert survival(lengths, steps=100) == pytest.approx(0.5, abs=0.07)
    assert survival(lengths, now=100, steps=50) == pytest.approx(0.5, abs=0.12)
    assert survival(lengths, steps=300) < 0.02


def test_answers_that_were_cut_say_only_that_they_would_have_been_longer():
    """All that reached 100 tokens were cut there: the others tell nothing of what comes then."""
    lengths = [(50, True)] * 50 + [(100, False)] * 50
    assert survival(lengths, steps=90) == pytest.approx(0.5, abs=0.1)
    assert survival(lengths, now=100, steps=100) > 0.6


def test_answers_that_still_run_count_too():
    """The first ends are those of the shortest answers; taken alone they would say that all are short."""
    ended = [(20, True)] * 4
    assert survival(ended, running=[200] * 96, steps=100) > 0.9 > 0.5 > survival(ended, steps=100)


def test_one_answer_longer_than_all_says_nothing_of_the_others():
    short = [(100, True)] * 200
    assert survival([*short, (5000, True)], steps=200) < 0.05
    assert 0.3 < survival(short, now=1000, steps=1000) < 0.7, "longer than all that were seen: as long again"


def test_old_answers_are_forgotten():
    old, new = [(20, True)] * int(4 * MAX_ENDS), [(500, True)] * int(4 * MAX_ENDS)
    assert survival([*old, *new], steps=300) > 0.8


@given(
    lengths=st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=60),
    running=st.lists(st.integers(0, 5000), max_size=30),
    now=st.integers(0, 6000),
    can_stop=st.booleans(),
)
def test_chances_fall_with_time_and_stay_chances(lengths, running, now, can_stop):
    model = AnswerLengths(can_stop=can_stop)
    for length, by_itself in lengths:
        model.ended(length, by_itself=by_itself)
    steps = np.array([0.0, 1, 2, 10, 100, 1000, 10_000])
    chances = model.survival(np.array(running, float)).chance(np.array([float(now)]), steps)[0]
    assert chances[0] == 1.0
    assert (np.diff(chances) <= 0).all()
    assert (chances >= 0).all()


def test_without_a_newcomer_the_peak_is_that_of_all_that_runs():
    """Nine positions and eleven more, of which the last is never stored: 19, in blocks of four."""
    running = Growing(np.array([9.0]), np.array([1.0]), np.array([11.0]), np.array([False]))
    assert Forecast(running, LengthHistory(), 4).peak_blocks() == 5
