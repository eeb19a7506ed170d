"""A command whose service has no executor says so, once, and goes on when there is one."""

import json
import subprocess
import sys

import pytest

from tests.client.fake_batches import FakeBatches
from tests.support.eventually import eventually

SCRIPT = """
import sys
from scheduler_svc.client.cli import main
from scheduler_svc.client.http import executor_watch
executor_watch.LOOK_INTERVAL_S = 0.05
main(sys.argv[1:])
"""
WAITING = "baton: waiting: no executor is ready"


@pytest.fixture
def run(started, server, tmp_path):
    """Start a command that looks more often."""

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *map(str, arguments), "--url", server.url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    return start


def batch_files(tmp_path):
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}
    (tmp_path / "in.jsonl").write_text(json.dumps(line))
    return [tmp_path / "in.jsonl", tmp_path / "out.jsonl"]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("generate", ["x"]),
        ("generate", ["x", "--no-stream"]),
        ("bench", ["--num-requests", 1]),
        ("batch", ["--direct"]),
    ],
)
def test_it_says_so_once(run, server, tmp_path, command, options):
    server.is_ready = False
    process = run(command, *(batch_files(tmp_path) if command == "batch" else []), *options)
    assert process.stderr.readline().strip() == WAITING
    server.is_ready = True
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert WAITING not in said


def test_a_batch_of_the_service(run, server, tmp_path, monkeypatch):
    server.stop()
    server.batches = FakeBatches(is_held=True)
    server.start()
    server.is_ready = False
    process = run("batch", *batch_files(tmp_path))
    assert process.stderr.readline().strip() == WAITING
    process.kill()


def test_a_stream_that_is_slow_for_other_reasons_says_nothing(run, server):
    server.token_delay_s = 0.2
    process = run("generate", "x", "--max-tokens", 2)
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out, said) == (0, "w0 w1 \n", "")
    eventually(lambda: server.open_now == 0)
