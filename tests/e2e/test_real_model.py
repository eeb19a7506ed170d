"""SmolLM2-135M-Instruct, a model that was trained and quantized by others, served as a user would serve it.

That is its GGUF file in bfloat16, with a keeper and a standby. How clever its answers are is not judged.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema
import numpy as np
import openai
import pytest
import torch

from scheduler_svc.client.processes.local_fleet import SCHEDULER, LocalFleet, executor_name
from tests.e2e.conftest import client_of
from tests.e2e.service import output_of, read, start_baton
from tests.support import llama_cpp
from tests.support.eventually import eventually
from tests.support.fleets import active, report, running_fleet, wait_for_standby
from tests.support.real_model import PAGE, reference, smollm2

pytestmark = pytest.mark.slow

MODEL = "smollm2"  # as it is served
OPTIONS = ("--served-model-name", MODEL)
QUESTION = [{"role": "user", "content": "How many days are in a week?"}]
STORY = {
    "messages": [{"role": "user", "content": "Tell me a story about a lighthouse."}],
    "max_tokens": 100,
    "temperature": 0.7,
    "top_p": 0.9,
    "seed": 11,
    "extra_body": {"ignore_eos": True},
}
LONG = "Tell me a long story about a lighthouse and a storm."
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "country": {"enum": ["France", "Italy", "Spain"]},
        "is_capital": {"type": "boolean"},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "country", "is_capital", "rivers"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": WEATHER}}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    tasks = ("--dtype", "bfloat16", "--task", "generate", "--task", "embed")
    logs = tmp_path_factory.mktemp("real")
    with running_fleet(logs, model=smollm2(), standbys=1, scheduler_options=OPTIONS, executor_options=tasks) as running:
        yield running


@pytest.fixture(scope="module")
def with_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """Another service, whose template shows tools as Hermes had them, that is greedy, and with no keeper.

    Qwen2.5's fits: it is ChatML, as the model's own. That of Hermes itself begins with a BOS: SmolLM2's file calls the
    `<|im_start|>` so that comes next anyway.
    """
    folder = tmp_path_factory.mktemp("tools")
    template = folder / "template.jinja"
    template.write_text(llama_cpp.template("Qwen-Qwen2.5-7B-Instruct"))
    options = (*OPTIONS, "--chat-template", str(template), "--override-generation-config", '{"temperature": 0}')
    with running_fleet(folder, model=smollm2(), scheduler_options=options, executor_options=("--no-keep",)) as running:
        yield running


def chat(client: openai.OpenAI, messages: list[dict[str, Any]] = QUESTION, **asked: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, "temperature": 0, **asked})


def prompt_of(fleet: LocalFleet, **asked: Any) -> str:
    """A chat as the model gets it."""
    tokens = httpx.post(f"{fleet.spec.url}/tokenize", json=asked).raise_for_status().json()["tokens"]
    prompt: str = httpx.post(f"{fleet.spec.url}/detokenize", json={"tokens": tokens}).json()["prompt"]
    return prompt


def test_an_easy_question(fleet: LocalFleet, client: openai.OpenAI) -> None:
    answer = chat(client)
    (choice,) = answer.choices
    assert "7" in choice.message.content
    assert choice.finish_reason == "stop", "it ends with the token that its file names for that"
    prompt = prompt_of(fleet, messages=QUESTION)
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHow many days are in a week?<|im_end|>\n<|im_start|>assistant\n"
    )
    num_tokens = {
        text: httpx.post(f"{fleet.spec.url}/tokenize", json={"prompt": text}).json()["count"]
        for text in (prompt, choice.message.content)
    }
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        num_tokens[prompt],
        num_tokens[choice.message.content] + 1,
    ), "the end is a token, too"
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    chunks = list(chat(client, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_an_answer_that_has_a_schema(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    messages = [{"role": "user", "content": "Describe the city of Paris."}]
    (choice,) = chat(client, messages, response_format=form, max_tokens=150).choices
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), CITY)


def test_stop_strings(client: openai.OpenAI) -> None:
    text = chat(client).choices[0].message.content
    for stop in (text[4:11], text[9], text[-1]):
        (choice,) = chat(client, stop=["nowhere", stop]).choices
        assert (choice.message.content, choice.finish_reason) == (text[: text.index(stop)], "stop")


def test_four_answers(client: openai.OpenAI) -> None:
    """Each draws with a seed of its own, which follows from the request's: the same four come again."""
    asked = {"n": 4, "seed": 3, "temperature": 1.0, "max_tokens": 16}
    first, again = ([choice.message.content for choice in chat(client, **asked).choices] for _ in range(2))
    assert len(set(first)) == 4
    assert again == first


@pytest.mark.parametrize(
    "form", [{}, {"structured_outputs": {"choice": ["crème brûlée 🍮 東京"]}}], ids=["plain", "bytes"]
)
def test_log_probabilities(client: openai.OpenAI, form: dict[str, Any]) -> None:
    """Tokens are bytes, and may be parts of a character."""
    (choice,) = chat(client, logprobs=True, top_logprobs=3, extra_body=form).choices
    *entries, end = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == choice.message.content
    assert end.token in ("<|im_end|>", "<|endoftext|>")
    for entry in choice.logprobs.content:
        assert entry.logprob <= 0
        values = [top.logprob for top in entry.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        if not form:
            assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, values[0]), "the likeliest was taken"


def told(fleet: LocalFleet, disturb: Callable[[], None] | None = None) -> str:
    """A story, with something done to the service when it is under way."""
    pieces = []
    for chunk in chat(client_of(fleet), **STORY, stream=True):
        pieces.append(chunk.choices[0].delta.content or "")
        if len(pieces) == 30 and disturb is not None:
            disturb()
    assert len(pieces) > 60
    return "".join(pieces)


@pytest.fixture(scope="module")
def story(fleet: LocalFleet) -> str:
    return told(fleet)


def test_a_standby_goes_on_with_an_answer(fleet: LocalFleet, story: str) -> None:
    wait_for_standby(fleet)
    before, gone = report(fleet), active(fleet)
    assert told(fleet, lambda: fleet.kill_executor(gone)) == story
    after = report(fleet)
    assert active(fleet) != gone
    assert after["pools_adopted"] == before["pools_adopted"] + 1
    assert after["recomputed_tokens"] == before["recomputed_tokens"]
    fleet.start_executor(gone)


def test_without_a_standby_the_next_process_goes_on(fleet: LocalFleet, story: str) -> None:
    """Weights and KV cache have been with the keeper meanwhile."""
    wait_for_standby(fleet)
    before, gone = report(fleet), active(fleet)
    fleet.kill_executor(1 - gone)

    def replace() -> None:
        fleet.kill_executor(gone)
        fleet.start_executor(gone)

    assert told(fleet, replace) == story
    after = report(fleet)
    assert active(fleet) == gone
    assert "weights=kept" in fleet.log_tail(executor_name(gone))
    assert after["pools_adopted"] == before["pools_adopted"] + 1
    assert after["recomputed_tokens"] == before["recomputed_tokens"]
    fleet.start_executor(1 - gone)


def test_without_a_keeper_an_answer_is_computed_again(with_tools: LocalFleet) -> None:
    undisturbed, before = told(with_tools), report(with_tools)

    def replace() -> None:
        with_tools.kill_executor(0)
        with_tools.start_executor(0)

    assert told(with_tools, replace) == undisturbed
    assert report(with_tools)["recomputed_tokens"] > before["recomputed_tokens"]


def test_answers_outlive_the_scheduler(fleet: LocalFleet, client: openai.OpenAI) -> None:
    """One whose reader comes back, and one in the background that nobody reads."""
    asked = {"model": MODEL, "input": LONG, "max_output_tokens": 100, "temperature": 0, "background": True}

    def start_both() -> tuple[Any, str, Any]:
        process = start_baton(fleet.spec.url, "generate", LONG, "--max-tokens", 200, "--temperature", 0, "--ignore-eos")
        begun = read(process, 40)
        return process, begun, client.responses.create(**asked, extra_body={"ignore_eos": True})

    def wait_for(response: Any, *statuses: str) -> Any:
        return eventually(lambda: (found := client.responses.retrieve(response.id)).status in statuses and found)

    process, begun, response = start_both()
    undisturbed = begun + output_of(process), wait_for(response, "incomplete").output_text
    process, begun, response = start_both()
    wait_for(response, "in_progress")
    os.kill(fleet.pids[SCHEDULER], signal.SIGKILL)
    eventually(fleet.poll)
    fleet.start_child(SCHEDULER)
    text = begun + output_of(process, outages=1)
    assert (text, wait_for(response, "incomplete").output_text) == undisturbed


def test_embeddings_are_those_of_transformers(client: openai.OpenAI, fleet: LocalFleet) -> None:
    """Of a page, and of one of its paragraphs in the same request."""
    texts = [PAGE, PAGE.split("\n\n")[1]]
    answer = client.embeddings.create(model=MODEL, input=texts)
    num_tokens = 0
    for entry, text in zip(answer.data, texts, strict=True):
        ids = httpx.post(f"{fleet.spec.url}/tokenize", json={"prompt": text}).json()["tokens"]
        with torch.inference_mode():
            state = reference(smollm2()).model(torch.tensor([ids])).last_hidden_state[0, -1]
        wanted = torch.nn.functional.normalize(state, dim=0).numpy()
        assert np.linalg.norm(entry.embedding) == pytest.approx(1, abs=1e-3)
        assert float(np.dot(entry.embedding, wanted)) > 0.999
        num_tokens += len(ids)
    assert answer.usage.prompt_tokens == num_tokens


def test_a_request_that_says_nothing_of_sampling(with_tools: LocalFleet) -> None:
    """The service has said it, and the page offers that."""
    client = client_of(with_tools)
    silent = client.chat.completions.create(model=MODEL, messages=STORY["messages"], max_tokens=30)
    greedy = chat(client, STORY["messages"], max_tokens=30)
    assert silent.choices[0].message.content == greedy.choices[0].message.content
    about = httpx.get(f"{with_tools.spec.url}/page/about").json()
    assert {each["name"]: each["default"] for each in about["parameters"]}["temperature"] == 0


def test_a_call_and_its_result(with_tools: LocalFleet) -> None:
    client = client_of(with_tools)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You help travellers."},
        {"role": "user", "content": "How warm is it in Paris?"},
    ]
    (choice,) = chat(client, messages, tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)
    result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees, and it rains"}
    messages += [choice.message.model_dump(exclude_none=True), result]
    prompt = prompt_of(with_tools, messages=messages, tools=[TOOL])
    assert "<tool_call>" in prompt
    assert "<tool_response>\n18 degrees, and it rains\n</tool_response>" in prompt
    answer = chat(client, messages, tools=[TOOL], max_tokens=30)
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls
