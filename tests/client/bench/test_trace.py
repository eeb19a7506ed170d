"""Recorded arrivals as a load: what is read, when it is sent, and which prompts have common beginnings."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.client.bench.trace import BLOCK_TOKENS, TraceRow, read_trace, speed, trace_requests
from scheduler_svc.client.bench.workload import BenchRequest, spelled, with_arrivals
from scheduler_svc.client.errors import WrongFile

PLAIN = {"speedup": 1.0, "vocab_size": None, "max_prompt": None, "max_output": None}


def write(tmp_path, text):
    path = tmp_path / "trace"
    path.write_text(text)
    return path


def test_azures_trace(tmp_path):
    path = write(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
        "2023-11-16 18:15:48.5,10,0\n",
    )
    rows = read_trace(path, "azure", None)
    assert [(row.num_prompt, row.num_output) for row in rows] == [(374, 44), (10, 0), (396, 109)], "by arrival"
    requests = list(trace_requests(rows, **PLAIN | {"speedup": 2.0}))
    assert [request.at_s for request in requests] == pytest.approx([0.0, 0.909705, 2.1572895], abs=1e-5)
    assert [(len(request.prompt), request.max_tokens) for request in requests] == [(374, 44), (10, 1), (396, 109)]
    assert len(read_trace(path, "azure", 1)) == 1
    assert all(100 <= token <= 10000 for request in requests for token in request.prompt)


def test_mooncakes_trace_shares_what_was_shared(tmp_path):
    path = write(
        tmp_path,
        '{"timestamp": 27000, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 48]}\n'
        '{"timestamp": 30500, "input_length": 1300, "output_length": 3, "hash_ids": [46, 47]}\n'
        '{"timestamp": 30500, "input_length": 700, "output_length": 9, "hash_ids": [46, 50], "more": 1}\n\n',
    )
    first, second, third = trace_requests(read_trace(path, "mooncake", None), **PLAIN)
    assert (first.at_s, second.at_s, third.at_s) == (0.0, 3.5, 3.5)
    assert [len(request.prompt) for request in (first, second, third)] == [1200, 1300, 700]
    assert common(first.prompt, second.prompt) == 2 * BLOCK_TOKENS, "then this has tokens of its own"
    assert common(first.prompt, third.prompt) == BLOCK_TOKENS
    in_words = list(spelled([first, second]))
    assert common(*(request.prompt.split() for request in in_words)) >= 2 * BLOCK_TOKENS


def common(left, right):
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


@given(st.lists(st.integers(0, 5), max_size=4), st.lists(st.integers(0, 5), max_size=4), st.integers(1, 2500))
def test_common_ids_are_a_common_beginning(left, right, num_prompt):
    rows = [TraceRow(0.0, num_prompt, 1, tuple(blocks)) for blocks in (left, right)]
    first, second = trace_requests(rows, **PLAIN | {"vocab_size": 600})
    assert len(first.prompt) == len(second.prompt) == num_prompt
    assert max(first.prompt) < 600
    assert common(first.prompt, second.prompt) >= min(num_prompt, BLOCK_TOKENS * common(left, right))


def test_longer_ones_are_cut():
    (request,) = trace_requests([TraceRow(0.0, 900, 80, (1, 2))], **PLAIN | {"max_prompt": 600, "max_output": 7})
    assert (len(request.prompt), request.max_tokens) == (600, 7)


@pytest.mark.parametrize(
    ("form", "text", "row"),
    [
        ("azure", "a,b\n1,2\n", 1),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\nsoon,1,1\n", 2),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374\n", 1),
        ("mooncake", '{"timestamp": 1, "input_length": 1}', 1),
        ("mooncake", '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [-1]}', 1),
        ("mooncake", "timestamp", 1),
    ],
)
def test_what_is_no_trace_is_named_by_its_row(tmp_path, form, text, row):
    with pytest.raises(WrongFile, match=f"row {row}: this is no row of a trace of {form}"):
        read_trace(write(tmp_path, text), form, None)


@pytest.mark.parametrize("text", ["", "TIMESTAMP,ContextTokens,GeneratedTokens\n"])
def test_an_empty_trace_is_refused(tmp_path, text):
    with pytest.raises(WrongFile, match="has no rows"):
        read_trace(write(tmp_path, text), "azure", None)


def test_a_rate_is_that_of_the_whole_trace():
    rows = [TraceRow(at_s, 1, 1) for at_s in (5.0, 6.0, 15.0)]
    *_, last = trace_requests(rows, **PLAIN | {"speedup": speed(rows, 4.0)})
    assert last.at_s == pytest.approx(2 / 4.0)
    assert speed(rows[:1], 4.0) == 1.0


def test_arrivals_at_a_rate_are_those_of_a_poisson_process():
    requests = with_arrivals([BenchRequest("x", 1)] * 4000, 50.0)
    times = [request.at_s for request in requests]
    assert times[0] == 0.0
    assert times == sorted(times)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.1)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03), "exponential gaps: 1/e"
