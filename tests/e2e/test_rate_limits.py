"""Limits of a minute of real keys, as published clients and a batch meet them."""

import io
import json

import httpx
import openai
import pytest

from tests.e2e.conftest import client_of
from tests.support.eventually import eventually

MODEL = "baton-demo"
LONG = {"model": MODEL, "prompt": "ROMEO:", "max_tokens": 2000, "temperature": 0, "stop": ["e"]}


def metric(keyed, keys, series):
    text = httpx.get(f"{keyed.spec.url}/metrics", headers={"authorization": f"Bearer {keys.root}"}).text
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{series} ")), 0.0)


def test_openais_client_sees_what_is_left_and_is_refused_with_when_to_come_back(keyed, keys):
    client = client_of(keyed, keys.few)
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Speak."}], "max_tokens": 3}
    for left in ("1", "0"):
        with client.chat.completions.with_streaming_response.create(**request, stream=True) as answer:
            assert answer.headers["x-ratelimit-limit-requests"] == "2"
            assert answer.headers["x-ratelimit-remaining-requests"] == left
            assert "x-ratelimit-limit-tokens" not in answer.headers
    with pytest.raises(openai.RateLimitError, match="'few' has 0 of 2 requests a minute left") as caught:
        client.chat.completions.create(**request)
    headers = caught.value.response.headers
    assert caught.value.code == "rate_limit_exceeded"
    assert 0 < int(headers["retry-after"]) <= 30
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"].endswith("s")
    assert metric(keyed, keys, 'baton_client_requests_total{client="few"}') == 2


def test_tokens_that_an_answer_did_not_take_are_given_back(keyed, keys):
    client = client_of(keyed, keys.small)
    for _ in range(6):
        answer = client.completions.with_raw_response.create(**LONG)
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) > 2000, "all that was reserved before is back"
        assert answer.parse().usage.completion_tokens < 100
    with pytest.raises(openai.BadRequestError, match=r"may take 8[0-9]{3} tokens .* this API key has 5000 a minute"):
        client.completions.create(**LONG | {"n": 4})


def test_lines_of_a_batch_wait_until_there_are_tokens_again(keyed, keys):
    client = client_of(keyed, keys.small)
    refused = 'baton_requests_refused_total{code="rate_limit_exceeded"}'
    before = metric(keyed, keys, refused)
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": LONG} for number in range(3)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("lines.jsonl", io.BytesIO(content)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    done = eventually(lambda: (now := client.batches.retrieve(batch.id)).status == "completed" and now, 60)
    assert (done.request_counts.completed, done.request_counts.failed) == (3, 0)
    assert metric(keyed, keys, refused) > before, "some had to wait: each may take nearly half of a minute's tokens"


def test_when_a_key_was_last_used_stands_beside_the_journal(keyed, keys, state):
    client_of(keyed, keys.few).models.list()

    def uses():
        listed = json.loads(keys("list", "--json", "--state", str(state)))
        return {entry["name"]: entry["last_used"] for entry in listed}

    assert eventually(lambda: uses()["few"], 10).startswith("20")
