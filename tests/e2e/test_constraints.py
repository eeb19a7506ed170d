"""What a request asks of its tokens, through real services: answers are the same when the executor is killed."""

import json
import random
import re

import openai
import pytest

from tests.e2e.conftest import client_of

PROMPT = "KING HENRY:\nOnce more unto the breach, dear friends, once more; "
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "lines": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 4, "maxItems": 4},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "lines", "age"],
    "additionalProperties": False,
}
ASKED = {
    "penalties": {
        "max_tokens": 120,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.3,
        "logit_bias": {"42": -100, "77": 1.5},
        "logprobs": 4,
        "extra_body": {
            "repetition_penalty": 1.1,
            "bad_words": ["breach"],
            "min_tokens": 50,
            "top_k": 40,
            "min_p": 0.02,
        },
    },
    "schema": {
        "logprobs": 2,
        "extra_body": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "king", "schema": SCHEMA}},
        },
    },
}


def answer(fleet, asked, kill_at=None):
    """Text, log-probabilities and reason of a streamed answer, whose executor is killed after so many chunks."""
    extra = asked.get("extra_body", {})
    body = {"model": "baton-demo", "prompt": PROMPT, "max_tokens": 600, "temperature": 0.9, "seed": 8, **asked}
    texts, tokens, values, tops, reason = [], [], [], [], None
    for number, chunk in enumerate(client_of(fleet).completions.create(**body | {"extra_body": extra}, stream=True)):
        if number == kill_at:
            fleet.kill_executor(0)
            fleet.start_executor(0)
        for choice in chunk.choices:
            texts.append(choice.text)
            tokens += choice.logprobs.tokens
            values += choice.logprobs.token_logprobs
            tops += choice.logprobs.top_logprobs
            reason = choice.finish_reason or reason
    return "".join(texts), tokens, values, tops, reason


@pytest.mark.parametrize(
    "asked",
    [pytest.param(asked, id=name, marks=pytest.mark.slow if name == "schema" else ()) for name, asked in ASKED.items()],
)
def test_sigkill_in_the_middle_of_a_constrained_stream(fleet, asked):
    text, tokens, values, tops, reason = answer(fleet, asked)
    swapped = answer(fleet, asked, kill_at=30)
    assert swapped[0] == text
    assert swapped[1] == tokens
    assert swapped[2] == pytest.approx(values, abs=1e-4)
    assert [list(top) for top in swapped[3]] == [list(top) for top in tops]
    assert swapped[4] == reason
    assert len(tokens) == len(values) == len(tops)
    assert "breach" not in text


@pytest.mark.slow
def test_a_document_matches_its_schema(fleet):
    text, *_, reason = answer(fleet, ASKED["schema"])
    assert reason == "stop"
    document = json.loads(text)
    assert list(document) == ["name", "lines", "age"]
    assert len(document["lines"]) == 4
    assert 1 <= document["age"] <= 99


def test_a_chat_whose_answer_is_a_choice(fleet):
    chat = client_of(fleet).chat.completions.create(
        model="baton-demo",
        messages=[{"role": "user", "content": "To be or not to be?"}],
        logprobs=True,
        top_logprobs=2,
        extra_body={"structured_outputs": {"regex": "(to be|not to be)"}},
    )
    (choice,) = chat.choices
    assert re.fullmatch("(to be|not to be)", choice.message.content)
    assert "".join(entry.token for entry in choice.logprobs.content[:-1]) == choice.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def test_the_likelihood_of_a_prompt_that_fills_the_model(fleet):
    client = client_of(fleet)
    (most,) = {card.max_model_len for card in client.models.list() if card.id == "baton-demo"}
    prompt = random.Random(3).choices(range(300, 2000), k=most)
    asked = {"model": "baton-demo", "max_tokens": 0, "logprobs": 0, "echo": True}
    (choice,) = client.completions.create(prompt=prompt, **asked).choices
    assert (len(choice.logprobs.tokens), choice.finish_reason) == (most, "length")
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.completions.create(prompt=[*prompt, 300], **asked)


def likelihoods(fleet, prompts, kill_at=None):
    """Tokens and log-probabilities of prompts and of a token after each, as lm-eval asks for them, but streamed; the
    executor is killed after so many chunks."""
    asked = {"max_tokens": 1, "temperature": 0, "seed": 1234, "logprobs": 1, "echo": True, "stream": True}
    found = [([], [], []) for _ in prompts]
    for number, chunk in enumerate(client_of(fleet).completions.create(model="baton-demo", prompt=prompts, **asked)):
        if number == kill_at:
            fleet.kill_executor(0)
            fleet.start_executor(0)
        for choice in chunk.choices:
            tokens, values, tops = found[choice.index]
            tokens += choice.logprobs.tokens
            values += choice.logprobs.token_logprobs
            tops += choice.logprobs.top_logprobs
    return found


@pytest.mark.slow
def test_likelihoods_of_cached_prompts_and_of_those_whose_executor_is_killed(fleet):
    rng = random.Random(5)
    shared = rng.choices(range(300, 2000), k=100)
    prompts = [shared + rng.choices(range(300, 2000), k=80) for _ in range(40)]
    first = likelihoods(fleet, prompts)
    for again in (likelihoods(fleet, prompts), likelihoods(fleet, prompts, kill_at=1)):
        for (tokens, values, tops), (same, close, alike) in zip(again, first, strict=True):
            assert tokens == same
            assert values[1:] == pytest.approx(close[1:], abs=1e-4)
            assert tops[1:] == [pytest.approx(top, abs=1e-4) for top in alike[1:]]
    for tokens, values, tops in first:
        assert (len(tokens), values[0], tops[0]) == (181, None, None)
        assert values[-1] == max(tops[-1].values()), "the token after the prompt was drawn greedily"
