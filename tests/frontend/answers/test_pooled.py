"""The arithmetic of pooled answers, against float64; and an answer whose results contradict each other."""

import json

import hypothesis.extra.numpy as npst
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import messages as m
from common.errors import RequestRejected, WireError
from scheduler_svc.frontend.answers.pooled import PooledAnswer, embedding, margin, relevance, short_floats
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from tests.frontend.links import in_event_loop
from tests.support.fake_core import COMPUTED_BY, delta, int32

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = npst.arrays(np.float32, st.integers(1, 40), elements=FLOATS)


@given(VECTORS, st.integers(1, 40))
def test_an_embedding_is_cut_and_has_length_one(hidden: np.ndarray, dimensions: int):
    vector = embedding(hidden, dimensions, normalize=True)
    assert vector.dtype == np.float32
    assert len(vector) == min(dimensions, len(hidden))
    kept = hidden[:dimensions].astype(np.float64)
    length = np.linalg.norm(kept)
    wanted = kept / length if length else kept
    assert np.allclose(vector, wanted, rtol=1e-6, atol=1e-7)
    assert not length or np.isclose(np.linalg.norm(vector.astype(np.float64)), 1, atol=1e-6)
    again = embedding(embedding(hidden, None, normalize=True), dimensions, normalize=True)
    if np.abs(kept).max() > 1e-6 * np.abs(hidden).max():  # what is cut first and what last is the same
        assert np.allclose(again, wanted, rtol=1e-5, atol=1e-5)


@given(VECTORS, st.integers(1, 40))
def test_an_embedding_that_is_not_normalized_is_what_came(hidden: np.ndarray, dimensions: int):
    assert embedding(hidden, dimensions, normalize=False).tobytes() == hidden[:dimensions].tobytes()


@given(FLOATS, FLOATS)
def test_relevance_is_the_softmax(no: float, yes: float):
    [score] = relevance(np.array([margin(np.array([no, yes], np.float32))]))
    highest = max(no, yes)
    weights = np.exp(np.array([no, yes], np.float64) - highest)
    assert score.dtype == np.float32
    assert 0 <= score <= 1
    assert score == pytest.approx(weights[1] / weights.sum(), rel=2e-5, abs=1e-30)


@given(VECTORS)
def test_short_floats_are_the_same_float32(values: np.ndarray):
    written = msgspec.json.encode(short_floats(values))
    assert np.array_equal(np.array(json.loads(written), np.float32), values)


def test_short_floats_are_short():
    values = np.random.default_rng(0).normal(0, 0.03, 1000).astype(np.float32)
    assert len(msgspec.json.encode(short_floats(values))) < 14 * len(values)
    assert len(msgspec.json.encode(values.tolist())) > 20 * len(values)


HIDDEN = m.SamplingParams(max_tokens=1, pooling="hidden")
LOGITS = m.SamplingParams(max_tokens=1, pooling="logits", pooled_token_ids=(3, 4))
TOKENS = m.SamplingParams(max_tokens=5)


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


class Reader:
    """A queue for two inputs."""

    def __init__(self, params: m.SamplingParams) -> None:
        self.told: list[object] = []
        self.submits = [m.Submit(request_id=f"r{i}", prompt=int32([1]), params=params) for i in range(2)]
        forget = lambda _: None  # noqa: E731
        self.queue = DeltaQueue(self.told.append, forget, is_streamed=False, is_resumable=False, asked=params)
        for number, submit in enumerate(self.submits):
            self.queue.add(submit.request_id, number, 1)

    def put(self, number: int, reason: str | None = "stop", tokens: tuple[int, ...] = (), **more: object) -> None:
        self.queue.put(delta(self.submits[number], tokens, reason, **({"model": COMPUTED_BY} | more)))

    def answer(self) -> PooledAnswer:
        return PooledAnswer(self.queue, "embd-1", 2, 2)


@pytest.mark.parametrize(
    ("params", "contradiction"),
    [
        (TOKENS, {"pooled": floats(1)}),
        (HIDDEN, {"pooled": b""}),
        (HIDDEN, {"pooled": b"123"}),
        (HIDDEN, {"pooled": floats(1, np.nan)}),
        (HIDDEN, {"pooled": floats(np.inf, 2)}),
        (HIDDEN, {"pooled": floats(1, 2), "reason": None}),
        (HIDDEN, {"pooled": floats(1, 2), "reason": "cancelled"}),
        (HIDDEN, {"pooled": b"", "reason": "length"}),
        (HIDDEN, {"pooled": floats(1, 2), "tokens": (5,)}),
        (HIDDEN, {"pooled": b"", "reason": None, "tokens": (5,)}),
        (LOGITS, {"pooled": floats(1)}),
        (LOGITS, {"pooled": floats(1, 2, 3)}),
    ],
)
def test_a_result_that_contradicts_the_request_is_refused(params: m.SamplingParams, contradiction: dict):
    with pytest.raises(WireError):
        Reader(params).put(0, **contradiction)


def test_hidden_states_of_one_answer_have_one_size():
    reader = Reader(HIDDEN)
    reader.put(0, pooled=floats(1, 2))
    with pytest.raises(WireError, match="12 bytes, the others have 8"):
        reader.put(1, pooled=floats(1, 2, 3))


@in_event_loop
async def test_results_come_with_their_numbers():
    reader = Reader(LOGITS)
    reader.put(1, pooled=floats(1, 2), num_cached_tokens=4)
    reader.put(0, pooled=floats(3, 4), num_cached_tokens=1)
    with reader.answer() as answer:
        found = [(number, values.tolist()) async for number, values in answer.results()]
    assert found == [(1, [1, 2]), (0, [3, 4])]
    assert answer.usage.prompt_tokens_details.cached_tokens == 5
    assert not reader.told


@in_event_loop
async def test_an_input_that_fails_ends_the_answer_and_cancels_the_others():
    reader = Reader(HIDDEN)
    reader.put(1, "error", error="no", code="capacity_lost")
    with pytest.raises(RequestRejected, match="no") as refused, reader.answer() as answer:
        [_ async for _ in answer.results()]
    assert refused.value.code == "capacity_lost"
    assert [message.request_id for message in reader.told] == ["r0"]


@in_event_loop
async def test_vectors_of_two_models_make_no_answer():
    reader = Reader(HIDDEN)
    reader.put(0, pooled=floats(1, 2))
    reader.put(1, pooled=floats(1, 2), model="another/float32")
    with pytest.raises(RequestRejected, match="replaced") as refused, reader.answer() as answer:
        [_ async for _ in answer.results()]
    assert refused.value.code == "unavailable"


@in_event_loop
async def test_one_model_in_two_data_types_is_one_model():
    reader = Reader(HIDDEN)
    reader.put(0, pooled=floats(1, 2))
    reader.put(1, pooled=floats(1, 2), model=COMPUTED_BY.replace("float32", "bfloat16"))
    with reader.answer() as answer:
        assert len([number async for number, _ in answer.results()]) == 2
