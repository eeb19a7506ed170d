"""The published `openai` client, unchanged, against both real services."""

import httpx
import openai
import pytest

from tests.e2e.conftest import API_KEY, client_of
from tests.support.eventually import eventually

MODEL = "baton-demo"
PROMPT = "ROMEO:\nBut, soft! what light through yonder window breaks?\n"


def status(fleet):
    return httpx.get(f"{fleet.spec.url}/status", headers={"Authorization": f"Bearer {API_KEY}"}).json()


def wait_until_idle(fleet, timeout_s):
    def idle():
        report = status(fleet)
        return None if report["running"] + report["waiting"] else report

    for executor in eventually(idle, timeout_s, lambda: str(status(fleet)))["executors"]:
        assert executor["free_blocks"] == executor["num_blocks"]


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_completion_streamed_and_not_are_the_same(client):
    request = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**request)
    assert len(whole.choices[0].text) > 40
    assert whole.usage.completion_tokens == 40
    assert whole.choices[0].finish_reason == "length"
    assert whole.system_fingerprint
    chunks = list(client.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert len(chunks) > 15
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_prompt_lists_n_and_token_ids(client):
    response = client.completions.create(
        model=MODEL, prompt=[PROMPT, "JULIET:\n"], n=2, max_tokens=12, temperature=0.8, seed=1
    )
    assert [choice.index for choice in response.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in response.choices}) == 4, "every sample draws with a seed of its own"
    ids = client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=4, temperature=0)
    assert ids.usage.prompt_tokens == 3


def test_a_seed_repeats_itself_in_any_company(client):
    def sample(seed):
        return (
            client.completions.create(
                model=MODEL,
                prompt=PROMPT,
                max_tokens=20,
                temperature=0.9,
                top_p=0.95,
                seed=seed,
                extra_body={"top_k": 50},
            )
            .choices[0]
            .text
        )

    alone = sample(7)
    with client.completions.create(model=MODEL, prompt="KING:\n", max_tokens=500, stream=True) as company:
        next(company)
        assert sample(7) == alone
    assert sample(8) != alone


def test_chat(client):
    messages = [{"role": "user", "content": "What news from Verona?"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=25, temperature=0)
    assert whole.choices[0].message.role == "assistant"
    stream = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=25, temperature=0, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == whole.choices[0].message.content
    assert "<|im_" not in text


def test_stop_strings_and_ignore_eos(client):
    free = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=30, temperature=0).choices[0].text
    stop = free[25:29]
    stopped = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=30, temperature=0, stop=stop)
    assert stopped.choices[0].text == free[: free.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    messages = [{"role": "user", "content": "Speak."}]
    long = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=30, temperature=0, extra_body={"ignore_eos": True}
    )
    assert (long.choices[0].finish_reason, long.usage.completion_tokens) == ("length", 30)


def test_the_prefix_cache_shows_in_usage(client):
    request = {"model": MODEL, "prompt": PROMPT * 10, "max_tokens": 2, "temperature": 0}
    salted = {"extra_body": {"cache_salt": "tenant"}}
    client.completions.create(**request)
    again = client.completions.create(**request).usage
    assert again.prompt_tokens_details.cached_tokens >= again.prompt_tokens - 16
    assert client.completions.create(**request, **salted).usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "gpt-4"),
        ({"prompt": "word " * 3000}, openai.BadRequestError, "2048"),
        ({"max_tokens": "many"}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"temperature": 1000}, openai.BadRequestError, "temperature"),
        ({"prompt": [10**6]}, openai.BadRequestError, "1000000"),
        ({"prompt": ""}, openai.BadRequestError, "prompt"),
        ({"logit_bias": {"5": 101}}, openai.BadRequestError, "logit_bias"),
    ],
)
def test_errors(client, change, error, text):
    request = {"model": MODEL, "prompt": PROMPT, "max_tokens": 5}
    with pytest.raises(error) as caught:
        client.completions.create(**(request | change))
    assert text in caught.value.message
    assert caught.value.type


def test_a_deadline_ends_a_request_and_says_so(fleet, client):
    request = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1500}
    with pytest.raises(openai.APIStatusError, match="time is up") as caught:
        client.completions.create(**request, extra_body={"timeout_s": 0.5, "ignore_eos": True, "priority": 3})
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    wait_until_idle(fleet, 1.0)


def test_a_wrong_key_is_refused(fleet):
    with pytest.raises(openai.AuthenticationError):
        client_of(fleet, "wrong").models.list()


def test_closing_a_stream_frees_its_blocks_within_a_second(fleet, client):
    wait_until_idle(fleet, 10)
    stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1500, stream=True, n=4)
    next(stream)
    assert status(fleet)["running"] == 4
    stream.close()
    wait_until_idle(fleet, 1.0)


def test_metrics_and_probes(fleet):
    headers = {"Authorization": f"Bearer {API_KEY}"}
    assert httpx.get(f"{fleet.spec.url}/health").status_code == 200
    assert httpx.get(f"{fleet.spec.url}/ready").status_code == 200
    text = httpx.get(f"{fleet.spec.url}/metrics", headers=headers).text
    for name in ("baton_sequences", "baton_blocks", "baton_step_seconds_count", "baton_output_tokens_total"):
        assert name in text
