"""A command whose service has no executor says so, once, and goes on when there is one."""

import json
import threading

import pytest

from tests.client.fake_batches import FakeBatches
from tests.support.eventually import eventually

WAITING = "baton: waiting: no executor is ready"


def batch_files(tmp_path):
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}
    (tmp_path / "in.jsonl").write_text(json.dumps(line))
    return [tmp_path / "in.jsonl", tmp_path / "out.jsonl"]


@pytest.fixture
def lonely(server):
    """A service that has no executor until the command has looked for one, and has said that there is none."""
    server.is_ready = False

    def come():
        eventually(lambda: all(thread.name != "executor-watch" for thread in threading.enumerate()))
        server.is_ready = True
        if server.batches is not None:
            server.batches.is_held = False

    server.looked = lambda path: path == "/ready" and threading.Thread(target=come).start()


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("generate", ["x"]),
        ("generate", ["x", "--no-stream"]),
        ("bench", ["--num-requests", 1]),
        ("batch", ["--direct"]),
    ],
)
@pytest.mark.usefixtures("lonely")
def test_it_says_so_once(baton, tmp_path, command, options):
    done = baton(command, *(batch_files(tmp_path) if command == "batch" else []), *options)
    assert (done.exit_code, done.stderr.splitlines().count(WAITING)) == (0, 1), done.stderr


@pytest.mark.usefixtures("lonely")
def test_a_batch_of_the_service(baton, server, tmp_path):
    server.stop()
    server.batches = FakeBatches(is_held=True)
    server.start()
    done = baton("batch", *batch_files(tmp_path))
    assert (done.exit_code, done.stderr.splitlines().count(WAITING)) == (0, 1), done.stderr


def test_a_stream_that_is_slow_for_other_reasons_says_nothing(baton, server):
    server.token_delay_s, looks = 0.3, []
    server.looked = looks.append
    done = baton("generate", "x", "--max-tokens", 2)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "w0 w1 \n", "")
    assert looks, "it was asked"
