"""What the service serves decides which executors may join, and not which executor came first."""

import json
import shutil
import subprocess
import sys

import httpx
import msgspec
import pytest

from common import messages as m
from common.model_files import DEMO_MODEL_DIR
from common.vocabulary import read_vocabulary
from scheduler_svc.client.processes.local_fleet import free_ports
from scheduler_svc.core.requests.journal_records import encode
from tests.support.core import Peer
from tests.support.disk import request_record
from tests.support.eventually import eventually
from tests.support.hello import hello
from tests.support.journals import fill

EXECUTOR = (sys.executable, "-m", "executor_svc", "--threads", "1", "--num-blocks", "64")
QUESTION = {"model": "baton-demo", "prompt": "To be, or not", "max_tokens": 8, "temperature": 0}


@pytest.fixture
def scheduler():
    port, executor_port = free_ports(2)
    command = [sys.executable, "-m", "scheduler_svc", "--port", str(port), "--no-journal"]
    endpoint = f"tcp://127.0.0.1:{executor_port}"
    process = subprocess.Popen([*command, "--executor-endpoint", endpoint])
    yield f"http://127.0.0.1:{port}", endpoint
    process.terminate()
    assert process.wait(20) == 0


@pytest.mark.slow
def test_a_wrong_vocabulary_does_not_take_an_empty_fleet(scheduler, tmp_path):
    url, endpoint = scheduler
    first = Peer(endpoint, m.SchedulerToExecutor)
    first.send(hello("wrong size"))
    assert "vocab_size is 1000, that of the model that is served is 2048" in first.receive(m.Reject, 30).reason

    shutil.copytree(DEMO_MODEL_DIR, tmp_path / "model")
    tokenizer = tmp_path / "model" / "tokenizer.json"
    content = json.loads(tokenizer.read_text())
    vocab = content["model"]["vocab"]
    vocab["the"], vocab["to"] = vocab["to"], vocab["the"]
    tokenizer.write_text(json.dumps(content))
    wrong = [*EXECUTOR, "--scheduler", endpoint, "--model", str(tmp_path / "model")]
    ended = subprocess.run(wrong, check=False, capture_output=True, timeout=120, text=True)
    assert ended.returncode == 78, ended.stderr
    assert "its tokenizer" in ended.stderr

    right = subprocess.Popen([*EXECUTOR, "--scheduler", endpoint])
    try:
        eventually(lambda: ready(url))
        answer = httpx.post(f"{url}/v1/completions", json=QUESTION, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 8
        assert answer["choices"][0]["text"]
    finally:
        right.terminate()
        assert right.wait(20) == 0


def test_open_requests_of_an_earlier_release_go_on(tmp_path):
    """Its journal names the tokenizer by another hash."""
    former = read_vocabulary(DEMO_MODEL_DIR).former_tokenizer
    records = [
        msgspec.structs.replace(
            record, tokenizer=tokenizer, submit=msgspec.structs.replace(record.submit, is_resumable=True)
        )
        for record, tokenizer in ((request_record(1), former), (request_record(2), former[::-1]))
    ]
    fill(tmp_path / "journal.db", [encode(records)])
    port, executor_port = free_ports(2)
    command = [sys.executable, "-m", "scheduler_svc", "--port", str(port), "--journal", str(tmp_path / "journal.db")]
    options = ["--executor-endpoint", f"tcp://127.0.0.1:{executor_port}", "--no-store", "--log-format", "logfmt"]
    said = []
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            said.append(line)
            if "core started" in line:
                process.terminate()
    log = "".join(said)
    assert 'event="requests restored from the journal" open=1 ended=1' in log
    assert 'event="requests ended: their tokenizer is gone" requests=r2' in log


def ready(url):
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False
