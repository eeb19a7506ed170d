"""The published openai client, unchanged, against every endpoint."""

import json
from typing import Literal

import openai
import pydantic
import pytest
from llguidance import LLMatcher, LLTokenizer

from common import messages as m
from common.model_files import DEMO_MODEL_DIR
from tests.support.demo_tokenizer import TOKENIZER, ids
from tests.support.eventually import eventually
from tests.support.fake_core import FakeCore, Step, delta, logprobs_of, outputs, say, silence, tokens_of
from tests.support.frontend_process import MODEL, Frontend

STORY = "Once upon a time, a naïve 🦊 met the moon. 月は綺麗ですね。"


def test_models(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == [MODEL]
    model = client.models.retrieve(MODEL)
    assert (model.id, model.max_model_len, model.vocab_size, model.owned_by) == (MODEL, 2048, 2048, "baton")


def test_completion(client: openai.OpenAI, core: FakeCore):
    answer = client.completions.create(model=MODEL, prompt=STORY, max_tokens=200)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.system_fingerprint == "bt-0123456789ab-float32"
    choice = answer.choices[0]
    assert (choice.text, choice.index, choice.finish_reason) == (STORY, 0, "length")
    num_tokens = len(tokens_of(core.submits[0].prompt))
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (
        num_tokens,
        num_tokens,
        2 * num_tokens,
    )
    assert usage.prompt_tokens_details.cached_tokens == 2
    assert not core.submits[0].stream  # the core may keep the tokens until the end
    assert not core.cancels


def test_completion_stream(client: openai.OpenAI):
    chunks = list(client.completions.create(model=MODEL, prompt=STORY, max_tokens=200, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == STORY
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_with_usage(client: openai.OpenAI):
    options = {"include_usage": True}
    stream = client.completions.create(model=MODEL, prompt=STORY, max_tokens=5, stream=True, stream_options=options)
    *chunks, last = list(stream)
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == 5
    assert last.usage.prompt_tokens_details.cached_tokens == 2


def test_stream_with_usage_in_every_chunk(client: openai.OpenAI, core: FakeCore):
    core.script = say(ids(STORY), pause_s=0.002)
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = client.completions.create(model=MODEL, prompt="x", max_tokens=99, stream=True, stream_options=options)
    *chunks, last = list(stream)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert len(counts) > 3
    assert counts == sorted(set(counts))
    assert chunks[-1].usage == last.usage


def test_chat(client: openai.OpenAI, core: FakeCore):
    core.script = say(ids(STORY))
    messages = [
        {"role": "developer", "content": "Tell."},
        {"role": "user", "content": [{"type": "text", "text": "Go"}]},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages)
    assert answer.id.startswith("chatcmpl-")
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", STORY, "length")
    prompt = tokens_of(core.submits[0].prompt)
    plain = [{"role": "system", "content": "Tell."}, {"role": "user", "content": "Go"}]
    assert prompt == ids(TOKENIZER.render_chat(plain, None, {}))
    assert core.submits[0].params.max_tokens == 2048 - len(prompt)
    assert core.submits[0].params.stop_token_ids == TOKENIZER.eos_token_ids
    # What the API returned can be sent back as it is.
    again = [*messages, choice.message.model_dump(), {"role": "user", "content": "More"}]
    assert client.chat.completions.create(model=MODEL, messages=again).choices[0].message.content == STORY


def test_chat_stream(client: openai.OpenAI, core: FakeCore):
    core.script = say(ids(STORY), pause_s=0.002)
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Go"}], stream=True)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    assert len(chunks) > 3
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == STORY
    assert chunks[-1].choices[0].finish_reason == "length"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_the_stop_token_is_counted_and_not_shown(client: openai.OpenAI, core: FakeCore):
    core.script = say([*ids("Fine."), *ids("!")], "stop")
    answer = client.completions.create(model=MODEL, prompt="How?")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Fine.", "stop")
    assert answer.usage.completion_tokens == len(ids("Fine.")) + 1


def test_prompt_lists_and_n(client: openai.OpenAI, core: FakeCore):
    prompts = ["first", "the second", "3"]
    for stream in (False, True):
        answer = client.completions.create(model=MODEL, prompt=prompts, n=2, stream=stream)
        texts = [""] * 6
        for part in answer if stream else [answer]:
            for choice in part.choices:
                texts[choice.index] += choice.text
        assert texts == ["first", "first", "the second", "the second", "3", "3"]
    requests = core.submits[:3]
    assert [tokens_of(request.prompt) for request in requests] == [ids(prompt) for prompt in prompts]
    assert len({request.params.seed for request in requests}) == 3  # equal prompts must not answer alike
    answer = client.completions.create(model=MODEL, prompt=prompts, n=2)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage.prompt_tokens == sum(len(ids(prompt)) for prompt in prompts)
    assert answer.usage.completion_tokens == 2 * answer.usage.prompt_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 6


def test_token_ids_as_prompts(client: openai.OpenAI, core: FakeCore):
    some, more = ids("some words"), ids("more")
    assert client.completions.create(model=MODEL, prompt=some).choices[0].text == "some words"
    answer = client.completions.create(model=MODEL, prompt=[some, more])
    assert [choice.text for choice in answer.choices] == ["some words", "more"]


def test_streams_of_several_choices_interleave(client: openai.OpenAI, core: FakeCore):
    core.script = say(ids(STORY), pause_s=0.01)
    stream = client.completions.create(model=MODEL, prompt="x", n=3, stream=True, max_tokens=100)
    order = [chunk.choices[0].index for chunk in stream]
    assert order != sorted(order)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(client: openai.OpenAI, core: FakeCore, stream: bool):
    core.script = say(ids(STORY), pause_s=0.01)
    answer = client.completions.create(model=MODEL, prompt="x", max_tokens=200, stop=["the mo", "never"], stream=stream)
    parts = list(answer) if stream else [answer]
    assert "".join(part.choices[0].text for part in parts) == STORY[: STORY.index("the mo")]
    assert parts[-1].choices[0].finish_reason == "stop"
    eventually(lambda: core.cancels)  # the rest of the story need not be computed
    assert (core.cancels[0].request_id, core.cancels[0].index) == (core.submits[0].request_id, 0)


def test_stop_string_of_one_choice_leaves_the_others(client: openai.OpenAI, core: FakeCore):
    def script(submit) -> Step:
        for number, token in enumerate(words := ids("one two three four")):
            end = "length" if number == len(words) - 1 else None
            other = words[-1 - number]
            yield outputs(delta(submit, [token], end), delta(submit, [other], end, index=1))
            yield 0.01

    core.script = script
    answer = client.completions.create(model=MODEL, prompt="x", n=2, max_tokens=50, stop=[" two three"])
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length"]
    assert answer.choices[0].text == "one"
    eventually(lambda: core.cancels)
    assert [cancel.index for cancel in core.cancels] == [0]


def test_sampling_parameters_reach_the_core(client: openai.OpenAI, core: FakeCore):
    extra = {"top_k": 7, "min_p": 0.25, "ignore_eos": True, "stop_token_ids": [5, 6], "cache_salt": "tenant"}
    client.completions.create(
        model=MODEL, prompt="x", temperature=0.5, top_p=0.75, seed=42, n=3, user="me", best_of=3, extra_body=extra
    )
    submit = core.submits[0]
    params = submit.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.75, 7, 0.25)
    assert (params.seed, params.stop_token_ids, params.max_tokens) == (42, (5, 6), 16)
    assert (submit.n, submit.cache_salt) == (3, "tenant")
    client.completions.create(model=MODEL, prompt="x", seed=-1, extra_body={"top_k": -1, "stop_token_ids": [5]})
    params = core.submits[1].params
    recommended = json.loads((DEMO_MODEL_DIR / "generation_config.json").read_text())
    assert (params.temperature, params.top_p) == (recommended["temperature"], recommended["top_p"])
    assert (params.top_k, params.min_p) == (0, 0.0)
    assert (params.seed, params.stop_token_ids) == (2**63 - 1, (*TOKENIZER.eos_token_ids, 5))


def test_without_a_seed_each_request_has_its_own(client: openai.OpenAI, core: FakeCore):
    for _ in range(4):
        client.completions.create(model=MODEL, prompt="x")
    seeds = {submit.params.seed for submit in core.submits}
    assert len(seeds) == 4
    assert max(seeds) > 2**40


def test_tools_reach_the_template_unless_forbidden(client: openai.OpenAI, core: FakeCore):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, tool_choice=choice)
        assert "done" in answer.choices[0].message.content


@pytest.mark.parametrize("when", ["before the first token", "in the stream", "without a stream"])
def test_a_client_that_leaves_cancels_its_request(frontend: Frontend, core: FakeCore, when: str):
    wait_s = 120.0  # until the core says something again
    if when == "in the stream":
        core.script = say([11] * 1000, pause_s=0.02)
        with frontend.client() as client:
            stream = client.completions.create(model=MODEL, prompt="x", max_tokens=1000, stream=True)
            next(iter(stream))
            stream.close()
    else:
        core.script = lambda submit: iter([wait_s])
        with frontend.client().with_options(timeout=1.0) as client, pytest.raises(openai.APITimeoutError):
            client.completions.create(model=MODEL, prompt="x", stream=when == "before the first token")
    eventually(lambda: core.cancels, wait_s / 2)
    assert core.cancels[0].request_id == core.submits[0].request_id


def test_the_fake_core_lists_nothing_of_requests_of_the_test_before(frontend: Frontend, core: FakeCore):
    body = {"model": MODEL, "prompt": "x"}
    core.script = silence
    left = frontend.begin("/v1/completions", body)
    core.forget()
    core.script = silence
    left.close()
    frontend.begin("/v1/completions", body).close()
    eventually(lambda: core.cancels)
    assert [cancel.request_id for cancel in core.cancels] == [submit.request_id for submit in core.submits]


def test_streaming_and_not_streaming_give_the_same_text(client: openai.OpenAI, core: FakeCore):
    tokens = [*ids(STORY), *list(range(200, 260)), 2046, *ids("🦊")[:1]]
    core.script = say(tokens, per_step=3)
    whole = client.completions.create(model=MODEL, prompt="x", max_tokens=500).choices[0].text
    stream = client.completions.create(model=MODEL, prompt="x", max_tokens=500, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole


# --- log-probabilities, and what else a request may ask of its tokens ---


def check_chat_logprobs(entries: list, tokens: list[int], num_top: int) -> None:
    """What the fake core said of these tokens."""
    rows, values = logprobs_of(tokens, 1 + num_top)
    assert [entry.logprob for entry in entries] == [row[0] for row in values]
    assert [[top.logprob for top in entry.top_logprobs] for entry in entries] == [row[1:] for row in values]
    for entry, row in zip(entries, rows, strict=True):
        for named, token in zip([entry, *entry.top_logprobs], row, strict=True):
            data = TOKENIZER.all_token_bytes[token]
            assert (named.token, bytes(named.bytes)) == (data.decode(errors="replace"), data)


@pytest.mark.parametrize("num_top", [0, 4, 20])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_a_chat(client: openai.OpenAI, core: FakeCore, stream: bool, num_top: int):
    tokens = [*ids(STORY), TOKENIZER.eos_token_ids[0]]
    core.script = say(tokens, "stop", per_step=2)
    messages = [{"role": "user", "content": "Go"}]
    asked = {"logprobs": True, "top_logprobs": num_top} if num_top else {"logprobs": True}
    answer = client.chat.completions.create(model=MODEL, messages=messages, n=2, stream=stream, **asked)
    assert core.submits[0].params.logprobs == 1 + num_top
    choices = [choice for part in (answer if stream else [answer]) for choice in part.choices]
    for index in (0, 1):
        of_choice = [choice.logprobs for choice in choices if choice.index == index and choice.logprobs]
        assert all(logprobs.refusal is None for logprobs in of_choice)
        check_chat_logprobs([entry for logprobs in of_choice for entry in logprobs.content], tokens, num_top)
    if stream:
        assert choices[0].logprobs is None, "the opening chunk"
        assert len({id(choice) for choice in choices if choice.logprobs}) > 2


@pytest.mark.parametrize("num_top", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_completions(client: openai.OpenAI, core: FakeCore, stream: bool, num_top: int):
    tokens = ids(STORY)
    core.script = say(tokens, per_step=2)
    answer = client.completions.create(
        model=MODEL, prompt=["x", "y"], max_tokens=200, logprobs=num_top, stream=stream, stop=["never"]
    )
    choices = [choice for part in (answer if stream else [answer]) for choice in part.choices]
    rows, values = logprobs_of(tokens, 1 + num_top)
    assert core.submits[1].params.logprobs == 1 + num_top
    for index in (0, 1):
        of_choice = [choice.logprobs for choice in choices if choice.index == index]
        tokens_told, logprobs, top, offsets = (
            [entry for part in of_choice for entry in getattr(part, name)]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        )
        names = [[TOKENIZER.token_texts.of(token).text for token in row] for row in rows]
        assert tokens_told == [row[0] for row in names]
        assert logprobs == [row[0] for row in values]
        assert [set(likely) for likely in top] == [set(row) for row in names]
        assert all(likely[token] == value for likely, token, value in zip(top, tokens_told, logprobs, strict=True))
        for offset, token in zip(offsets, tokens_told, strict=True):
            assert "\ufffd" in token or STORY[offset:].startswith(token)


def test_none_are_sent_that_no_client_asked_for(client: openai.OpenAI, core: FakeCore):
    assert client.completions.create(model=MODEL, prompt="x").choices[0].logprobs is None
    messages = [{"role": "user", "content": "Go"}]
    assert client.chat.completions.create(model=MODEL, messages=messages).choices[0].logprobs is None
    assert [submit.params.logprobs for submit in core.submits] == [0, 0]
    assert [submit.params.constraints for submit in core.submits] == [None, None]


def test_constraints_reach_the_core(client: openai.OpenAI, core: FakeCore):
    extra = {"repetition_penalty": 1.25, "min_tokens": 3, "bad_words": ["fox"], "allowed_token_ids": [7, 5, 7]}
    openai_has = {"presence_penalty": 0.5, "frequency_penalty": -1, "logit_bias": {"5": -100, "6": 1}}
    messages = [{"role": "user", "content": "Go"}]
    client.completions.create(model=MODEL, prompt=["x", "y"], **openai_has, extra_body=extra)
    client.chat.completions.create(model=MODEL, messages=messages, **openai_has, extra_body=extra)
    [constraints] = {submit.params.constraints for submit in core.submits}
    assert len(core.submits) == 3
    assert constraints == m.Constraints(
        presence_penalty=0.5,
        frequency_penalty=-1.0,
        repetition_penalty=1.25,
        bias_token_ids=constraints.bias_token_ids,
        biases=constraints.biases,
        min_tokens=3,
        bad_words=constraints.bad_words,
        allowed_token_ids=constraints.allowed_token_ids,
    )
    assert tokens_of(constraints.bias_token_ids) == [5, 6]
    assert tokens_of(constraints.allowed_token_ids) == [7, 5]
    assert ids("fox") in [tokens_of(word) for word in constraints.bad_words]


class Point(pydantic.BaseModel):
    x: int
    name: Literal["a", "b"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_reaches_the_core_as_a_grammar(client: openai.OpenAI, core: FakeCore, stream: bool):
    """OpenAI's client makes the schema of a class, and an object of the class of the answer."""
    core.script = say([*ids('{"x": 5, "name": "b"}'), TOKENIZER.eos_token_ids[0]], "stop")
    messages = [{"role": "user", "content": "Go"}]
    if stream:
        with client.chat.completions.stream(model=MODEL, messages=messages, response_format=Point) as events:
            answer = events.get_final_completion()
    else:
        answer = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Point)
    assert answer.choices[0].message.parsed == Point(x=5, name="b")
    [submit] = core.submits
    matcher = LLMatcher(LLTokenizer(str(TOKENIZER.folder / "tokenizer.json")), submit.params.constraints.grammar)
    assert TOKENIZER.eos_token_ids[0] in submit.params.stop_token_ids
    assert matcher.validate_tokens(ids('{"x": 5, "name": "c"}')) < len(ids('{"x": 5, "name": "c"}'))
    assert matcher.consume_tokens(ids('{"x": 5, "name": "b"}'))
    assert matcher.is_accepting()


def test_grammars_of_each_endpoint(client: openai.OpenAI, core: FakeCore):
    messages = [{"role": "user", "content": "Go"}]
    extra = {"structured_outputs": {"choice": ["x", "y"]}, "min_tokens": 1}
    client.completions.create(model=MODEL, prompt=["x", "y"], extra_body=extra)
    client.chat.completions.create(model=MODEL, messages=messages, extra_body=extra)
    assert {submit.params.constraints for submit in core.submits} == {
        m.Constraints(min_tokens=1, grammar='start: CHOICE\nCHOICE: "x" | "y"')
    }
    core.forget()
    client.completions.create(model=MODEL, prompt="x", extra_body={"response_format": {"type": "json_object"}})
    client.chat.completions.create(model=MODEL, messages=messages, response_format={"type": "json_object"})
    client.chat.completions.create(model=MODEL, messages=messages, extra_body={"structured_outputs": {"json": "{}"}})
    client.chat.completions.create(model=MODEL, messages=messages, response_format={"type": "text"})
    client.responses.create(model=MODEL, input="x", text={"format": {"type": "json_object"}})
    client.responses.create(model=MODEL, input="x", text={"format": {"type": "json_schema", "name": "x", "schema": {}}})
    client.responses.create(model=MODEL, input="x", text={"format": {"type": "text"}})
    grammars = [submit.params.constraints and submit.params.constraints.grammar for submit in core.submits]
    assert grammars[0] == grammars[1] == grammars[4] != grammars[2] == grammars[5]
    assert '"type": "object"' in grammars[0]
    assert grammars[3] is None
    assert grammars[6] is None


def test_a_refused_grammar_says_why(client: openai.OpenAI, core: FakeCore):
    schema = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Go"}],
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
        )
    assert (caught.value.code, caught.value.param) == ("invalid_grammar", "response_format.json_schema.schema")
    assert 'Unimplemented keys: ["not"]' in caught.value.message
    assert not core.submits


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_text_ends_with(client: openai.OpenAI, core: FakeCore, stream: bool):
    eos = TOKENIZER.eos_token_ids[0]
    core.script = say([*ids("one two one two"), eos, *ids(" three"), eos], "stop")

    def text_of(**extra: object) -> str:
        answer = client.completions.create(
            model=MODEL, prompt="x", stop=extra.pop("stop", []), stream=stream, extra_body=extra
        )
        return "".join(part.choices[0].text for part in (answer if stream else [answer]))

    name = TOKENIZER.all_token_bytes[eos].decode()
    assert text_of() == "one two one two three"
    assert text_of(skip_special_tokens=False) == f"one two one two{name} three"
    assert text_of(skip_special_tokens=False, include_stop_str_in_output=True) == f"one two one two{name} three{name}"
    assert text_of(stop=[" two"]) == "one"
    assert text_of(stop=[" two"], include_stop_str_in_output=True) == "one two"
    min_tokens = len(ids("one two"))
    assert text_of(stop=[" two"], min_tokens=min_tokens) == "one two one"
    assert core.submits[-1].params.constraints == m.Constraints(min_tokens=min_tokens)
