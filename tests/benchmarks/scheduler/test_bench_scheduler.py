"""bench_scheduler.py runs on small loads, and its figures add up."""

import json

import pytest

from tests.benchmarks.running import figures, lines

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{i % 60:02}.0000000,{50 + 37 * i % 900},{10 + 7 * i % 50}\n" for i in range(60)
)
MOONCAKE = "".join(
    json.dumps({"timestamp": 10 * i, "input_length": 900 + i, "output_length": 5, "hash_ids": [0, 1 + i % 3]}) + "\n"
    for i in range(30)
)


def run(*arguments):
    return figures("bench_scheduler.py", *arguments)


@pytest.mark.parametrize("case", ["A", pytest.param("B", marks=pytest.mark.slow), "C"])
def test_nano(case):
    found = run("--case", case, "--num-seqs", "32", "--block-size", "16")
    assert found["output_tokens"] == run("--case", "A", "--num-seqs", "32", "--window", "1")["output_tokens"]
    assert found["decode_tokens_computed"] >= found["output_tokens"] - found["steps"]
    assert found["prefill_tokens_computed"] + found["hit_tokens"] >= found["prompt_tokens"]
    if case == "A":
        assert found["prefill_tokens_computed"] == found["prompt_tokens"]
    if case == "B":
        assert found["peak_blocks"] <= found["num_blocks"]
    if case == "C":
        assert found["hit_tokens"] >= 31 * 512


@pytest.mark.slow
def test_traces(tmp_path):
    azure, mooncake = tmp_path / "azure.csv", tmp_path / "mooncake.jsonl"
    azure.write_text(AZURE)
    mooncake.write_text(MOONCAKE)
    assert run("--workload", "azure", "--trace", azure)["output_tokens"] == sum(10 + 7 * i % 50 for i in range(60))
    ours = run("--workload", "mooncake", "--trace", mooncake, "--executors", "2", "--block-size", "256")
    turns = run(*("--workload", "sessions", "--trace", azure, "--executors", "2", "--placement", "round-robin"))
    assert ours["hit_tokens"] > 0
    assert turns["virtual_ttft_ms_p50"] > 0


SLOW_EDGES = ("stop-tokens", "cancels", "outlier", "mixed-max-tokens")


@pytest.mark.parametrize(
    "case", ["stop-strings", "cold-start", *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW_EDGES)]
)
def test_looking_ahead_costs_at_most_an_eighth_of_the_steps_and_saves_work(case):
    ahead = run("--workload", "edges", "--case", case)
    blind = run("--workload", "edges", "--case", case, "--no-look-ahead")
    assert ahead["output_tokens"] <= 1.01 * blind["output_tokens"]
    assert ahead["steps"] <= 1.125 * blind["steps"]
    assert ahead["preemptions"] < blind["preemptions"]
    assert ahead["mean_running"] == pytest.approx(ahead["output_tokens"] / ahead["steps"], rel=0.05)


def test_where_lengths_are_known_nothing_is_computed_again_in_the_steps_that_were_set():
    found = run("--case", "B")
    assert found["recomputed_tokens"] == 0
    assert found["steps"] <= 1884


def test_a_turn_times_each_reason_to_wait():
    found = lines("bench_turn.py", "--waiting", 0, "--waiting", 50, "--turns", 100)
    assert [(f["why"], f["waiting"], f["open"]) for f in found] == [
        (why, waiting, 64 + waiting) for why in ("lanes", "memory", "pool") for waiting in (0, 50)
    ]
    assert all(f["us_turn_p50"] > 0 for f in found)


def test_storms_of_few_requests_pass():
    storms = ("restart", "network", "attaches", "cancels")
    found = lines("bench_storms.py", "--executors", 2, "--waiting", 50, *(f"--storm={storm}" for storm in storms))
    assert [(f["storm"], f["executors"]) for f in found] == [
        ("restart", 2),
        ("network", 2),
        ("attaches", 8),
        ("cancels", 8),
    ]
    assert all(f["ms_turn_max"] > 0 for f in found)
    assert all(f["s_planning"] > 0 for f in found[:2])
