"""The services' benchmarks run on small loads, and their figures add up."""

import pytest

from benchmarks.service.bench_chat import PROMPTS, Run, figures_of
from common.model_files import resolve_model
from scheduler_svc.server.strangers import MAX_STRANGERS
from tests.benchmarks.running import lines
from tests.support.reciter.answers import ANSWERS
from tests.support.reciter.checkpoint import reciter_folder


def test_the_journals_benchmark():
    found = lines("bench_journal.py", "--batches", 50)
    assert len(found) == 2
    assert all(each["us_latency_p50"] > 0 and each["us_core"] > 0 for each in found)


def test_the_stores_benchmark():
    sizes = ("--gigabytes", "0.002", "--calls", "20", "--expired", "10")
    empty, filled = lines("bench_store.py", *sizes)
    assert empty["stored_mb"] < 1 < filled["stored_mb"]
    for each in (empty, filled):
        assert 0 < each["ms_add_p50"] <= each["ms_add_p99"]
        assert each["ms_open"] > 0 < each["ms_chain_p50"]
        assert each["sweeps"] > 0 < each["ms_sweep_max"]


@pytest.mark.slow
def test_the_benchmark_of_failover():
    """A standby that takes over from a killed executor is in the benchmark of bits."""
    sizes = ("--kills", "1", "--streams", "2", "--prompt-tokens", "50", "--threads", "1")
    settings = ("alone", "keeper+sibling", "rollout")
    found = lines("bench_failover.py", *sizes, *(f"--setting={setting}" for setting in settings))
    assert [figures["setting"] for figures in found] == list(settings)
    for figures in found:
        assert figures["gaps"] in (1, 2), "of the streams that ran on the one that went"
        assert 0 <= figures["pause_ms_p50"] < figures["gap_ms_p50"] < 1000 * 60
        assert figures["start_ms_p50"] > 0
    alone, _, rollout = found
    assert alone["pools_adopted"] == 0 < alone["recomputed_tokens"]
    assert rollout["pools_adopted"] == 1 > rollout["recomputed_tokens"]


@pytest.mark.slow
def test_the_benchmark_of_a_keeper():
    sizes = ("--requests", "2", "--prompt-tokens", "20", "--max-tokens", "5", "--sittings", "1", "--rounds", "2")
    (figures,) = lines("bench_keeper.py", *sizes)
    assert figures["rounds"] == len(figures["tok_s_ratio"]) - 1 == 2
    assert figures["tok_s"] > 0 < figures["tok_s_without"]


@pytest.mark.slow
def test_the_benchmark_of_starts():
    model = ("--model", str(resolve_model(None, weights=True)), "--num-blocks", "64")
    (figures,) = lines("bench_start.py", *model, "--rounds", "1", "--executor-option=--threads=1")
    assert figures["kept_weights_s"] < figures["kept_s"] > 0
    assert figures["from_disk_over_kept"] > 0 < figures["from_cache_over_kept"]


@pytest.mark.slow
def test_the_benchmark_of_bits():
    """What is kept is the same, and what is computed again is, too: in bfloat16 and in other batches."""
    sizes = ("--kills", "2", "--requests", "4", "--streams", "2", "--prompt-tokens", "40", "--max-tokens", "30")
    model = ("--model", str(resolve_model(None, weights=True)), "--executor-option=--threads=1")
    batches, alone, standby = lines(
        "bench_bits.py", *sizes, *model, *(f"--run={run}" for run in ("batches", "alone", "standby"))
    )
    assert (batches["answers"], batches["faulty"]) == (8, 0)
    assert 0 < alone["faulty"] <= alone["answers"]
    assert alone["recomputed_tokens"] > 0 == standby["recomputed_tokens"]
    assert (alone["pools_adopted"], standby["pools_adopted"]) == (0, 2)
    for run in (batches, alone, standby):
        assert (run["differ"], run["logprobs_differ"]) == (0, 0), run


@pytest.mark.slow
def test_the_benchmark_of_floods():
    """What it prints of the executors' port is bounded work: files and memory, whatever is sent."""
    idle, computing, *floods = lines("bench_flood.py", "--seconds", "0.5", "--only", "executors")
    assert (idle["sent_mib"], computing["sent_mib"]) == (0.0, 0.0)
    assert len(floods) == 7
    assert any(each["sent_mib"] > 1 for each in floods)
    for each in floods:
        assert each["core_files_more"] <= MAX_STRANGERS + 8, each
        assert each["core_mb_more"] < 50, each


@pytest.mark.slow
def test_the_benchmark_of_chats():
    prompt_of = {answer.word: answer.prompt for answer in ANSWERS}
    assert {prompt_of[" harbor"], prompt_of[" ledger"]} == set(PROMPTS)
    short = (f"--prompt={prompt_of[word]}" for word in (" ferry", " lantern"))  # content; a thought and a call
    sizes = ("--streams", "2", "--sittings", "1", "--repeats", "2")
    content, call = lines("bench_chat.py", "--model", str(reciter_folder()), *sizes, *short)
    assert content["output_tokens"] < call["output_tokens"]
    for each in (content, call):
        assert (each["streams"], each["rounds"]) == (2, 2)
        assert all(0 < cut < 10 for name in ("tok_s_ratio", "ttft_ratio") for cut in each[name])


def test_chats_with_other_tokens_are_not_compared():
    run = Run(num_tokens=100, seconds=2.0, ttft_s=0.5, cpu_s=0.1)
    half = Run(num_tokens=100, seconds=4.0, ttft_s=0.25, cpu_s=0.2)
    figures = figures_of("p", 2, [half, half], [run, run])
    assert [figures[f"{name}_ratio"] for name in ("tok_s", "ttft", "cpu")] == [[0.5] * 3, [0.5] * 3, [2.0] * 3]
    with pytest.raises(RuntimeError, match="different tokens"):
        figures_of("p", 2, [run, run], [run, Run(num_tokens=99, seconds=2.0, ttft_s=0.5, cpu_s=0.1)])
