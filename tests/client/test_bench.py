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
    server.session = "c2VydmljZS0x"
    server.script.extend([warm_up, Refuse(429, "busy"), Drop(after_tokens=5), None, Refuse(429, "busy")])
    result = baton("bench", *SMALL, "--json", "--reconnect-timeout", 0)
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["num_failed"], report["output_tokens"]) == (3, 100)
    assert report["errors"]["busy (HTTP 429)"] == 2
    assert any("broke" in message for message in report["errors"])


def test_broken_streams_go_on_and_count_everything_once(baton, server, monkeypatch):
    monkeypatch.setattr("scheduler_svc.client.http.patience._FIRST_DELAY_S", 0.001)
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
    assert server.session in server.sessions, "one that had begun to answer is asked again"


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
    result = baton("bench", *SMALL, "--timeout", 3, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["errors"] == {"the service has sent nothing for too long; see --timeout": 4}


@pytest.mark.parametrize(
    ("owner", "knows", "resumes"),
    [("baton", True, True), ("vllm", True, False), ("sglang", True, False), ("me", False, False)],
)
def test_only_what_the_server_knows_is_asked_for(baton, server, owner, knows, resumes):
    server.owned_by = owner
    result = baton("bench", *SMALL, "--json")
    assert result.exit_code == 0, result.output
    for request in server.requests[1:]:
        assert ("ignore_eos" in request, isinstance(request["prompt"], list)) == (knows, knows)
        assert ("resumable" in request, "request_id" in request) == (resumes, resumes)
    assert json.loads(result.stdout)["server"] == {"sglang": "vllm", "me": "openai"}.get(owner, owner)


def test_the_server_may_be_named(baton, server):
    assert baton("bench", *SMALL, "--server", "openai").exit_code == 0
    assert all("ignore_eos" not in request for request in server.requests)


@pytest.mark.parametrize(("owner", "exit_code"), [("baton", 1), ("me", 0)])
def test_fewer_tokens_are_a_failure_where_the_number_can_be_told(baton, server, owner, exit_code):
    server.owned_by, server.most_words = owner, 7
    result = baton("bench", *SMALL, "--json")
    assert result.exit_code == exit_code, result.output
    report = json.loads(result.stdout)
    assert (report["num_failed"], report["output_tokens"]) == ((4, 0) if exit_code else (0, 28))


def test_chats_are_asked_in_words_and_opened_without_a_token(baton, server):
    server.deltas.append([{"role": "assistant", "content": ""}, {"content": "warm"}])
    opening = {"role": "assistant", "content": ""}
    server.deltas.extend([[opening, {"reasoning_content": "Hm."}, *[{"content": "w"}] * 99]] * 4)
    result = baton("bench", *SMALL, "--endpoint", "chat", "--server", "openai", "--json")
    assert result.exit_code == 0, result.output
    warm_up, *sent = server.requests
    assert warm_up["messages"] == [{"role": "user", "content": "Benchmark: "}]
    assert {request["path"] for request in sent} == {"/v1/chat/completions"}
    assert [len(request["messages"][0]["content"].split()) for request in sent] == [100] * 4


def test_prompts_of_a_file(baton, server, tmp_path):
    (tmp_path / "prompts").write_text("one\n\ntwo words\n")
    assert baton("bench", *SMALL, "--prompt-file", tmp_path / "prompts").exit_code == 0
    assert [request["prompt"] for request in server.requests[1:]] == ["one", "two words"] * 2


@pytest.mark.parametrize(
    "arguments",
    [
        "--trace {file}", "--trace-format azure", "--speedup 2", "--rate 1 --concurrency 2", "--max-prompt 99",
        "--trace {file} --trace-format azure --rate 1 --speedup 2", "--prompts ids --endpoint chat",
        "--prompts ids --prompt-file {file}", "--goodput ttft", "--goodput speed:1", "--goodput e2e:x",
        "--trace {file} --trace-format azure", "--trace {file} --trace-format mooncake",
    ],
)  # fmt: skip
def test_contradictions_and_wrong_files_are_wrong_usage(baton, server, tmp_path, arguments):
    (tmp_path / "file").write_text("TIMESTAMP,ContextTokens\n1,2\n")
    result = baton("bench", *arguments.format(file=tmp_path / "file").split())
    assert (result.exit_code, server.requests) == (2, []), result.output


def test_an_open_load_waits_for_no_answer(baton, server, tmp_path):
    """All are sent though none has ended; a limit of one at a time would never get there."""
    rows = "".join(f"2023-11-16 18:00:0{i}.1234567,{3 + i},{2 + i}\n" for i in range(4))
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    server.by_prompt["Benchmark: "] = WARM
    server.delay_s = 0.4
    trace = ["--trace", tmp_path / "trace.csv", "--trace-format", "azure"]
    result = baton("bench", *trace, "--speedup", 20, "--json")
    assert result.exit_code == 0, result.output
    assert server.open_most == 4
    sent = server.requests[1:]
    assert [(len(request["prompt"]), request["max_tokens"]) for request in sent] == [(3, 2), (4, 3), (5, 4), (6, 5)]
    report = json.loads(result.stdout)
    assert report["seconds"] >= 3 / 20 + 0.4
    assert 0 <= report["send_delay_ms"]["p50"] <= report["send_delay_ms"]["p99"]
    assert report["e2e_ms"]["p50"] >= 400, "of the client's clock, not of the trace's"
    shorter = baton("bench", *trace, "--rate", 100, "--num-requests", 2, "--max-output", 1, "--json")
    assert [request["max_tokens"] for request in server.requests[6:]] == [1, 1]
    assert json.loads(shorter.stdout)["num_requests"] == 2


def test_goodput_counts_answers_that_meet_all_goals(baton, server):
    server.delay_s = 0.05
    for goals, is_good in [(["ttft:60000", "e2e:60000"], True), (["tpot:60000", "ttft:20"], False)]:
        options = [word for goal in goals for word in ("--goodput", goal)]
        report = json.loads(baton("bench", *SMALL, *options, "--json").stdout)
        assert report["goodput_per_s"] == (report["requests_per_s"] if is_good else 0.0)
    assert json.loads(baton("bench", *SMALL, "--json").stdout)["goodput_per_s"] is None
