"""`baton bench`: nano-vllm's workload, and numbers that agree with what the server did."""

import json
import random
import signal

import pytest
from fastapi.responses import PlainTextResponse

from scheduler_svc.client.bench.workload import draw_requests
from tests.client.fake_server import Drop, Refuse
from tests.support.eventually import eventually

WARM = PlainTextResponse('data: {"choices": []}\n\ndata: [DONE]\n\n')  # the warm-up's answer, at once
SMALL = ("--num-seqs", 4, "--max-prompt", 100, "--max-output", 100)  # every length is 100


def test_workload_is_nano_vllms():
    random.seed(0)
    prompts = [[random.randint(0, 10000) for _ in range(random.randint(100, 1024))] for _ in range(256)]
    lengths = [random.randint(100, 1024) for _ in range(256)]
    requests = draw_requests(256, 1024, 1024, None)
    assert [request.prompt for request in requests] == prompts
    assert [request.max_tokens for request in requests] == lengths
    assert sum(lengths) == 133966, "the total in nano-vllm's README"


def test_ids_are_folded_into_a_small_vocabulary(baton, server):
    assert all(max(request.prompt) < 512 for request in draw_requests(3, 200, 100, 512))
    server.vocab_size = 300
    assert baton("bench", *SMALL).exit_code == 0
    assert baton("bench", *SMALL, "--vocab-size", 50).exit_code == 0
    largest = [max(request["prompt"]) for request in server.requests if isinstance(request["prompt"], list)]
    assert 200 < max(largest[:4]) < 300
    assert max(largest[4:]) < 50


def test_report_agrees_with_the_server(baton, server):
    server.delay_s = 0.1
    server.token_delay_s = 0.003
    result = baton("bench", *SMALL, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["num_requests"], report["num_failed"], report["errors"]) == (4, 0, {})
    assert (report["prompt_tokens"], report["output_tokens"]) == (400, 400)
    assert report["output_tokens_per_s"] == pytest.approx(400 / report["seconds"], rel=0.01)
    assert report["seconds"] >= 0.4
    assert 100 <= report["ttft_ms"]["p50"] <= report["ttft_ms"]["p99"] < 1000 * report["seconds"]
    assert 3 <= report["tpot_ms"]["p50"] <= 1000 * report["seconds"] / 100
    assert 3 <= report["itl_ms"]["p50"] <= report["itl_ms"]["p99"]
    sent = server.requests[1]
    assert (sent["temperature"], sent["ignore_eos"], sent["max_tokens"]) == (0.6, True, 100)


def test_text_report(baton):
    result = baton("bench", *SMALL)
    assert result.stdout.startswith("4 of 4 requests answered in ")
    assert [line.split("  ")[0] for line in result.stdout.splitlines()[1:]] == [
        "output tokens", "prompt tokens", "ms", "time to first", "time per token", "between chunks", "whole answer",
    ]  # fmt: skip


def test_concurrency_is_bounded(baton, server):
    server.delay_s = 0.05
    assert baton("bench", *SMALL, "--concurrency", 2).exit_code == 0
    assert server.open_most == 2
    assert baton("bench", *SMALL).exit_code == 0
    assert server.open_most == 4, "all at once by default"


def test_failures_are_counted_and_named(baton, server):
    warm_up = None
    server.script.extend([warm_up, Refuse(429, "busy"), Drop(after_tokens=5), None, Refuse(429, "busy")])
    result = baton("bench", *SMALL, "--json", "--reconnect-timeout", 0)
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["num_failed"], report["output_tokens"]) == (3, 100)
    assert report["errors"]["busy (HTTP 429)"] == 2
    assert any("broke" in message for message in report["errors"])


def test_broken_streams_go_on_and_count_everything_once(baton, server, monkeypatch):
    monkeypatch.setattr("scheduler_svc.client.http.resume._FIRST_DELAY_S", 0.001)
    warm_up = None
    server.script.extend(
        [warm_up, Drop(after_tokens=5, cut=True), Drop(after_tokens=90), Drop(), Drop(3, error_code="unavailable")]
    )
    server.resume_script.extend([Refuse(503), Refuse(503), Drop(after_tokens=95), Drop(after_tokens=20)])
    result = baton("bench", *SMALL, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["num_failed"], report["output_tokens"]) == (0, 400)
    assert result.stderr.count("the service is away") == result.stderr.count("the service is back") >= 1
    assert len(server.requests) == 5, "none was sent twice"


@pytest.mark.timeout(30)
def test_ctrl_c_cancels_what_is_running(start_baton, server):
    server.by_prompt["Benchmark: "] = WARM
    server.token_delay_s = 0.05
    process = start_baton("bench", *SMALL, "--max-output", 1000)
    eventually(lambda: len(server.known) == 4)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    eventually(lambda: server.cancelled == 4)
    assert server.known == {}


def test_silence_is_a_failure(baton, server):
    server.by_prompt["Benchmark: "] = WARM
    server.token_delay_s = 5
    result = baton("bench", *SMALL, "--timeout", 0.5, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["errors"] == {"the service has sent nothing for too long; see --timeout": 4}
