"""A batch of the Batch API while the worker, an executor and the scheduler are killed: each line once, and as ever."""

import contextlib
import json
import os
import signal
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.service import Service
from tests.support.eventually import eventually

NUM_LINES = int(os.environ.get("BATON_BATCH_LINES", "200"))
MAX_TOKENS = 30 if NUM_LINES <= 1000 else 6  # thousands of lines are there for the lines
PATIENCE_S = 100 + NUM_LINES // 10
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with Service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def client(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def input_file(client):
    bodies = [
        {
            "model": "baton-demo",
            "prompt": f"The {i}th time I say, ",
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "n": 1 + i % 2,
        }
        for i in range(NUM_LINES)
    ]
    lines = [
        {"custom_id": f"line {i}", "method": "POST", "url": "/v1/completions", "body": body}
        for i, body in enumerate(bodies)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    return client.files.create(file=("in.jsonl", content), purpose="batch").id


def create(client, input_file):
    return client.batches.create(input_file_id=input_file, endpoint="/v1/completions", completion_window="24h").id


def answers(client, batch):
    """What an undisturbed and a disturbed batch have in common, line by line."""
    rows = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert all(row["error"] is None and row["response"]["status_code"] == 200 for row in rows)
    found = [(row["custom_id"], row["response"]["body"]["choices"]) for row in rows]
    assert [name for name, _ in found] == [f"line {i}" for i in range(NUM_LINES)]  # each once, in the input's order
    return found


def ended(client, batch_id):
    """The batch, when it has."""
    return eventually(lambda: (batch := seen(client, batch_id)) and batch.status in ENDED and batch, PATIENCE_S)


def seen(client, batch_id):
    """The batch, unless the service is away."""
    with contextlib.suppress(openai.APIConnectionError, openai.InternalServerError):
        return client.batches.retrieve(batch_id)
    return None


def reach(client, batch_id, number):
    """Return when so many lines have a result."""

    def reached():
        return (batch := seen(client, batch_id)) and batch.request_counts.completed >= number

    eventually(reached, PATIENCE_S)


def worker_pid():
    """The background worker of this test's service: the scheduler is its parent."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = folder.joinpath("cmdline").read_bytes().split(b"\0")
            if b"scheduler_svc.frontend.background" in command and os.getpid() in ancestors(int(folder.name)):
                return int(folder.name)
    return None


def ancestors(pid):
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def executor_pid(service):
    with contextlib.suppress(httpx.HTTPError, KeyError, IndexError):
        return service.status()["executors"][0]["pid"]
    return None


@pytest.mark.slow
@pytest.mark.timeout(60 + 3 * PATIENCE_S)
def test_each_line_is_answered_once_whatever_is_killed(service, client, input_file):
    undisturbed = ended(client, create(client, input_file))
    assert undisturbed.status == "completed"
    batch_id = create(client, input_file)
    reach(client, batch_id, NUM_LINES // 20)
    os.kill(eventually(worker_pid), signal.SIGKILL)
    reach(client, batch_id, NUM_LINES * 3 // 10)
    os.kill(eventually(lambda: executor_pid(service)), signal.SIGKILL)
    reach(client, batch_id, NUM_LINES // 2)
    service.kill_scheduler()
    reach(client, batch_id, NUM_LINES * 7 // 10)
    os.kill(eventually(worker_pid), signal.SIGKILL)
    disturbed = ended(client, batch_id)
    assert disturbed.status == "completed"
    assert disturbed.request_counts.to_dict() == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}
    assert answers(client, disturbed) == answers(client, undisturbed)


def test_what_is_cancelled_keeps_its_results(client, input_file):
    batch_id = create(client, input_file)
    reach(client, batch_id, 1)
    assert client.batches.cancel(batch_id).status == "cancelling"
    batch = ended(client, batch_id)
    assert batch.status == "cancelled"
    assert 1 <= batch.request_counts.completed < NUM_LINES
    rows = client.files.content(batch.output_file_id).text.splitlines()
    assert len(rows) == batch.request_counts.completed


def test_the_command_goes_on_with_its_batch(service, tmp_path):
    """It is killed while the service computes, and started again: the results are those of requests sent one by one."""
    bodies = [{"prompt": f"Line {i} of a play:", "max_tokens": 16, "temperature": 0} for i in range(30)]
    bodies[7]["max_tokens"] = -1
    lines = [
        {"custom_id": f"{i}", "method": "POST", "url": "/v1/completions", "body": body} for i, body in enumerate(bodies)
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    killed = service.start("batch", path, tmp_path / "remote.jsonl")
    note = tmp_path / "remote.jsonl.batch"
    eventually(lambda: note.exists() and b'"batch_id":"batch_' in note.read_bytes())
    killed.kill()
    killed.communicate()
    again = service.start("batch", path, tmp_path / "remote.jsonl")
    _, said = again.communicate(timeout=120)
    assert again.returncode == 1, "one line is wrong"
    assert "going on with batch_" in said.decode()
    assert not note.exists()
    direct = service.start("batch", "--direct", "--ordered", path, tmp_path / "direct.jsonl")
    assert direct.communicate(timeout=120)
    assert direct.returncode == 1
    found = [
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("remote.jsonl", "direct.jsonl")
    ]
    facts = [
        [(row["custom_id"], row["error"], row["response"]["body"].get("choices")) for row in rows] for rows in found
    ]
    assert facts[0] == facts[1]
