"""`baton status`."""

import io
import json
import signal

import msgspec
import pytest
from rich.console import Console

from common.messages import PastEvent, Percentiles, StatusReport
from scheduler_svc.client.status.view import status_view
from tests.client.fake_server import FakeServer, Refuse
from tests.support.status_reports import executor_status, status_report


@pytest.fixture(autouse=True)
def report(server: FakeServer):
    executor = executor_status(
        epoch=17,
        state="draining",
        device="cuda:0 NVIDIA H200",
        dtype="bfloat16",
        fingerprint="0123456789abcdef",
        pid=4711,
        uptime_s=7387,
        num_blocks=1000,
        free_blocks=400,
        cached_blocks=350,
        running=12,
        max_num_seqs=512,
        steps=99,
        step_ms=8.25,
    )
    report = status_report(
        model="Qwen/Qwen3-0.6B",
        uptime_s=90.0,
        waiting=3,
        running=12,
        requests_finished=100,
        requests_failed=1,
        preemptions=2,
        executors_lost=4,
        prompt_tokens=2000,
        cached_prompt_tokens=500,
        output_tokens=12345,
        output_tokens_per_s=678.9,
        prefill_tokens_per_s=100.0,
        executors=[executor],
    )
    server.status_report.update(msgspec.to_builtins(report))
    return report


def test_table_shows_the_fleet_in_plain_lines(baton):
    result = baton("status")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == "Qwen/Qwen3-0.6B, up 1:30 min, Baton 0.1.0"
    assert "queue     12 running, 3 waiting" in lines
    assert "tokens/s  679 output, 100 prompt" in lines
    assert "25% from the prefix cache" in result.stdout
    header, row = lines[-2:]
    cells = dict(zip(header.replace("step ms", "step_ms").split(), row.replace("cuda:0 NVIDIA H200", "cuda:0").replace(
        "2:03:07 h", "2:03:07").split(), strict=True))  # fmt: skip
    assert cells == {
        "executor": "gpu-a",
        "state": "draining",
        "device": "cuda:0",
        "dtype": "bfloat16",
        "weights": "01234567",
        "pid": "4711",
        "epoch": "17",
        "blocks": "600/1000",
        "cached": "350",
        "running": "12/512",
        "step_ms": "8.2",
        "uptime": "2:03:07",
    }


def test_the_journal_and_what_was_resumed(baton, server):
    server.status_report.update(journal="ok", journal_lag_s=0.04, sequences_resumed=7, recomputed_tokens=90)
    shown = baton("status").stdout
    assert "journal   ok, 0.0 s behind" in shown
    assert "4 executors lost, 7 sequences resumed, 90 tokens computed again, 0 pools continued, 2 preemptions" in shown
    server.status_report.update(journal="off")
    assert "journal   off\n" in baton("status").stdout
    server.status_report.update(journal="failed")
    assert "requests accepted now are lost" in baton("status").stdout


def test_keys_that_cannot_be_read(baton, server):
    assert "cannot be read" not in baton("status").stdout
    server.status_report.update(keys_unreadable={"clients": "/keys/api-keys.json cannot be read: Permission denied"})
    lines = baton("status").stdout.splitlines()
    reason = "/keys/api-keys.json cannot be read: Permission denied"
    assert f"Keys of clients cannot be read, those of before stay: {reason}." in lines


def test_the_store(baton, server):
    assert "store" not in baton("status").stdout
    sizes = {"bytes_on_disk": 12_345_678, "free_bytes": 30_100_000_000, "disk_bytes": 10**11, "limit_bytes": 10_000_000}
    clients = {"other": 9_900_000, "bob": 1_000_000, "ann": 9_500_000}
    store = {**sizes, "clients": clients, "open_batches": 2, "open_responses": 1, "worker": "running"}
    server.status_report.update(store=store)
    lines = baton("status").stdout.splitlines()
    assert (
        "store     12.3 MB, 30.1 GB free; 2 batches and 1 background responses open (worker running); "
        "most has ann: 9.5 MB (95% of its limit)" in lines
    )
    server.status_report.update(store=store | {"clients": {"other": 0, "": 5000}, "limit_bytes": 0})
    assert "(worker running); all clients together have 0.0 MB\n" in baton("status").stdout
    server.status_report.update(store=None, store_unreadable="store /s/store.db is gone: No such file or directory")
    lines = baton("status").stdout.splitlines()
    assert "The store cannot be read: store /s/store.db is gone: No such file or directory." in lines


def test_how_many_executors_are_wanted(baton, server):
    assert "wanted" not in baton("status").stdout
    scale = {"wanted": 3, "forecast_ttft_s": 1.25, "reason": "memory", "drain_first": ["gpu-a"]}
    server.status_report.update(scale=scale)
    shown = "scale     3 executors wanted (memory), 0 ready, first token in 1.2 s by the forecast"
    assert shown in baton("status").stdout.splitlines()


def test_builds_are_shown_where_they_differ(baton, server):
    (executor,) = server.status_report["executors"]
    server.status_report["executors"].append(executor | {"executor": "gpu-b", "state": "finishing"})
    assert "build" not in baton("status").stdout
    server.status_report["executors"][1]["build"] = "0.2.0"
    *_, header, one, other = baton("status").stdout.splitlines()
    assert "build" in header
    assert ("0.1.0" in one, "0.2.0" in other, "finishing" in other) == (True, True, True)


def test_no_executors(baton, server):
    server.status_report["executors"] = []
    assert "no executors" in baton("status").stdout


def test_json_is_the_report(baton, report):
    result = baton("status", "--json")
    assert msgspec.json.decode(result.stdout, type=StatusReport) == report
    assert result.stdout.count("\n") > 10, "indented for people"


def test_a_report_from_another_version_is_one_clear_line(baton, server):
    del server.status_report["executors"]
    result = baton("status")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_a_key_that_may_not_is_one_clear_line(baton, server):
    message = "This API key may not read /status and /metrics"
    server.admin_script.append(Refuse(403, message, code="forbidden"))
    result = baton("status")
    assert (result.exit_code, result.stderr) == (1, f"Error: {message} (HTTP 403)\n")


@pytest.mark.timeout(30)
def test_watch_without_a_terminal_prints_again_and_again_until_ctrl_c(start_baton):
    process = start_baton("status", "--watch", "0.1", "--json")
    for _ in range(3):
        assert json.loads(process.stdout.readline())["model"] == "Qwen/Qwen3-0.6B"
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    assert process.stderr.read() == ""


@pytest.mark.timeout(30)
def test_watch_needs_no_number(start_baton):
    process = start_baton("status", "--watch")
    assert process.stdout.readline().startswith("Qwen/")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0


def test_narrow_terminal_shows_what_changes_in_full(report):
    console = Console(width=80, file=io.StringIO())
    console.print(status_view(report))
    shown = console.file.getvalue()
    assert "…" not in shown
    assert "600/1000" in shown
    assert "H200" not in shown


def test_nodes_are_shown_where_some_are_known(baton, server: FakeServer, report: StatusReport):
    assert "node" not in baton("status").stdout.split("executor")[-1].splitlines()[0]
    executors = [executor_status(executor="a", node="10.0.0.7"), executor_status(executor="b")]
    server.status_report.update(msgspec.to_builtins(status_report(executors=executors)))
    header, *lines = baton("status").stdout.splitlines()[-3:]
    assert header.split()[:2] == ["executor", "node"]
    assert [line.split()[:2] for line in lines] == [["a", "10.0.0.7"], ["b", "ready"]]


def test_latencies_what_the_queue_waits_for_and_the_last_events(baton, server: FakeServer):
    shown = baton("status").stdout
    assert "latency   no token in the last five minutes" in shown.splitlines()
    assert " ago" not in shown
    told = status_report(
        waiting=3,
        waits_for="memory",
        first_token=Percentiles(count=9, p50=0.05, p90=0.1, p99=1.25),
        between_tokens=Percentiles(count=90, p50=0.004, p90=0.005, p99=0.006),
        events=[
            PastEvent(age_s=70.0, kind="joined", executor="a", epoch=1, blocks_cached=12),
            PastEvent(
                age_s=1.5, kind="lost", executor="a", epoch=1, cause="hung", reason="step 3 is late", sequences=2
            ),
            PastEvent(age_s=0.5, kind="journal_failed", reason="No space left"),
        ],
    )
    server.status_report.update(msgspec.to_builtins(told))
    lines = baton("status").stdout.splitlines()
    assert "queue     0 running, 3 waiting (the first for memory)" in lines
    latency = "latency   first token about 50 ms (9 in the last five minutes); between tokens 4/5/6 ms (p50/p90/p99)"
    assert latency in lines
    assert [line.split(maxsplit=3)[3] for line in lines[-3:]] == [
        "journal failed, No space left",
        "lost a, step 3 is late, 2 sequences",
        "joined a, 12 blocks kept",
    ]
