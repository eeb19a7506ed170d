"""What a request asks of its tokens' scores, as the core gets it."""

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.body import parse
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.constraints import MAX_TOKEN_IDS
from scheduler_svc.frontend.requests.limits import MAX_ANSWER_LOGPROBS, MAX_ECHOED_BYTES
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest
from scheduler_svc.frontend.requests.tokenized_request import tokenize_completion
from scheduler_svc.frontend.text.sampling_defaults import SamplingDefaults
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests.support.chats import finished
from tests.support.demo_tokenizer import TOKENIZER, ids
from tests.support.effort import examples
from tests.support.fake_core import tokens_of

VOCAB = TOKENIZER.vocab_size


def completion(tokenizer: Tokenizer = TOKENIZER, **asked: object) -> m.SamplingParams:
    body = {"model": "m", "prompt": "x", "max_tokens": 100} | asked
    return tokenize_completion(parse(json.dumps(body).encode(), CompletionRequest), tokenizer, 2048).params[0]


def chat(max_len: int = 2048, **asked: object) -> m.SamplingParams:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]} | asked
    steps = tokenize_chat(parse(json.dumps(body).encode(), ChatRequest), TOKENIZER, max_len)
    return finished(steps, TOKENIZER).params[0]


def refusal(ask=completion, **asked: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ask(**asked)
    assert caught.value.status == 400
    return caught.value


OFF = {
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1,
    "logit_bias": {"7": 0},
    "bad_words": [],
    "min_tokens": 0,
}


@pytest.mark.parametrize("asked", [{}, OFF, dict.fromkeys([*OFF, "allowed_token_ids"])], ids=["absent", "off", "null"])
def test_what_asks_for_nothing_costs_nothing(asked: dict):
    assert completion(**asked).constraints is None
    assert completion(**asked).logprobs == 0


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"presence_penalty": -2}, {"presence_penalty": -2.0}),
        ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
        ({"repetition_penalty": 0.5}, {"repetition_penalty": 0.5}),
        ({"min_tokens": 100}, {"min_tokens": 100}),
        (
            {"logit_bias": {"7": -100, "5": 0, "2047": 2.5}},
            {
                "bias_token_ids": np.array([7, 2047], "<i4").tobytes(),
                "biases": np.array([-100, 2.5], "<f4").tobytes(),
            },
        ),
        ({"allowed_token_ids": [9, 3, 9, 0]}, {"allowed_token_ids": np.array([9, 3, 0], "<i4").tobytes()}),
    ],
)
def test_what_is_asked_for_reaches_the_core(asked: dict, expected: dict):
    assert completion(**asked).constraints == m.Constraints(**expected)
    assert chat(**asked).constraints == m.Constraints(**expected)
    msgspec.msgpack.decode(msgspec.msgpack.encode(completion(**asked)), type=m.SamplingParams)  # within its ranges


@pytest.mark.parametrize(
    ("ask", "asked", "expected"),
    [
        (completion, {}, 0),
        (completion, {"logprobs": 0}, 1),
        (completion, {"logprobs": 20}, 21),
        (chat, {"logprobs": False}, 0),
        (chat, {"logprobs": True}, 1),
        (chat, {"logprobs": True, "top_logprobs": 20}, 21),
    ],
)
def test_a_token_comes_with_so_many_log_probabilities(ask, asked: dict, expected: int):
    assert ask(**asked).logprobs == expected


@pytest.mark.parametrize(
    ("ask", "asked", "expected"),
    [
        (completion, {"echo": True}, (0, 0)),
        (completion, {"logprobs": 5}, (6, 0)),
        (completion, {"echo": True, "logprobs": 0}, (1, 1)),
        (completion, {"prompt_logprobs": 0}, (0, 1)),
        (completion, {"echo": True, "logprobs": 2, "prompt_logprobs": 20}, (3, 21)),
        (completion, {"echo": True, "logprobs": 5, "prompt_logprobs": 3}, (6, 6)),
        (completion, {"logprobs": 5, "prompt_logprobs": 3}, (6, 4)),
        (chat, {"prompt_logprobs": 2, "logprobs": True}, (1, 3)),
    ],
)
def test_a_prompt_token_comes_with_enough_for_all_that_is_shown(ask, asked: dict, expected: tuple[int, int]):
    params = ask(**asked)
    assert (params.logprobs, params.prompt_logprobs) == expected


def test_no_tokens_are_one_that_is_not_shown():
    assert completion(echo=True, max_tokens=0).max_tokens == 1
    assert completion(echo=True, max_tokens=0, prompt=[5] * 2048).max_tokens == 1, "it needs no position"
    error = refusal(echo=True, max_tokens=0, prompt=[5] * 2049)
    assert error.code == "context_length_exceeded"


def test_the_model_recommends_a_repetition_penalty():
    told = SimpleNamespace(**vars(TOKENIZER), encode=TOKENIZER.encode)
    told.sampling_defaults = SamplingDefaults(repetition_penalty=1.05)
    assert completion(told).constraints == m.Constraints(repetition_penalty=1.05)
    assert completion(told, repetition_penalty=1.0).constraints is None


def test_stop_strings_alone_need_no_constraint():
    """With no stop token there is nothing to ban: the frontend keeps the text going."""
    assert completion(min_tokens=5, ignore_eos=True, stop="x").constraints is None
    assert completion(min_tokens=5, ignore_eos=True, stop_token_ids=[5]).constraints == m.Constraints(min_tokens=5)


# --- bad words ---


def test_a_bad_word_is_banned_with_and_without_a_space():
    """As vLLM has it: a word that is longer or shorter behind a space is not banned there."""
    assert len(ids("the")) == len(ids(" the")) == 1
    assert len(ids("xyz")) != len(ids(" xyz")) or ids("xyz")[0] == ids(" xyz")[0]
    words = completion(bad_words=["the", "xyz", "the"]).constraints.bad_words
    assert [tokens_of(word) for word in words] == [ids("the"), ids(" the"), ids("xyz")]
    assert completion(bad_words=["  the", "xyz", " the"]).constraints.bad_words == words


@settings(max_examples=examples(200))
@given(st.lists(st.text("aeh ou\u00e9\n", min_size=1, max_size=5).filter(str.strip), max_size=6))
def test_bad_words_by_definition(texts: list[str]):
    expected = []
    for text in texts:
        at_start, after_space = ids(text.lstrip()), ids(" " + text.lstrip())
        expected.append(at_start)
        if at_start[0] != after_space[0] and len(at_start) == len(after_space):
            expected.append(after_space)
    constraints = completion(bad_words=texts).constraints
    words = [] if constraints is None else [tokens_of(word) for word in constraints.bad_words]
    assert {*map(tuple, words)} == {*map(tuple, expected)}


@pytest.mark.parametrize(
    ("words", "param", "text"),
    [
        ([" "], "bad_words", "it has no token"),
        (["\u6708" * 64], "bad_words", "tokens, the limit is 64"),
        ([f"the {i}" for i in range(257)], "bad_words", "at most 256 items"),
        ([str(i) for i in range(256)], None, ""),
        ([f"{letter}{other}" for letter in "abcdefghijklmnop" for other in "abcdefghijklmnop"], "bad_words", "256"),
        ([""], "bad_words[0]", "at least 1 character"),
        (["x" * 257], "bad_words[0]", "at most 256 characters"),
        (["\ud83d"], "bad_words[0]", "valid string"),
    ],
    ids=["space", "too many tokens", "too many", "as many as may be", "too many forms", "empty", "too long", "half"],
)
def test_words_that_cannot_be_banned(words: list[str], param: str | None, text: str):
    if param is None:
        assert len(completion(bad_words=words).constraints.bad_words) == 256
        return
    error = refusal(bad_words=words)
    assert error.param == param
    assert text in error.message


def test_a_bad_word_with_a_token_that_the_model_does_not_have_is_refused(tmp_path: Path):
    """A model may have fewer tokens than its tokenizer, here all that come before "Farewell"."""
    folder = tmp_path / "model"
    shutil.copytree(TOKENIZER.folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 1991}))
    assert completion(Tokenizer(folder), bad_words=["whence"]).constraints.bad_words
    error = refusal(partial(completion, Tokenizer(folder)), bad_words=["whence", "Farewell"])
    assert (error.param, error.code) == ("bad_words", "invalid_value")
    assert "token id 1991, the model has 0 to 1990" in error.message


# --- what is refused ---


@pytest.mark.parametrize(
    ("asked", "param", "text"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty", "less than or equal to 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty", "greater than or equal to -2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than or equal to 0.01"),
        ({"repetition_penalty": 101}, "repetition_penalty", "less than or equal to 100"),
        ({"presence_penalty": "1"}, "presence_penalty", "number"),
        ({"logit_bias": {"5": 100.5}}, "logit_bias", "the bias of 5 is 100.5, it should be -100 to 100"),
        ({"logit_bias": {"5": True}}, "logit_bias", "the bias of 5 should be a number"),
        ({"logit_bias": {"5": None}}, "logit_bias", "the bias of 5 should be a number"),
        ({"logit_bias": {"05": 1}}, "logit_bias", "'05' is no token id"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "'-1' is no token id"),
        ({"logit_bias": {"\u0665": 1}}, "logit_bias", "is no token id"),
        ({"logit_bias": {"{a}": 1}}, "logit_bias", "'{a}' is no token id"),
        ({"logit_bias": {"9999999999": 1}}, "logit_bias", "is no token id"),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias", "it has 301 biases, the limit is 300"),
        ({"logit_bias": [1]}, "logit_bias", "an object"),
        ({"logit_bias": {str(VOCAB): 0}}, "logit_bias", f"token id {VOCAB}, the model has 0 to {VOCAB - 1}"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "at least 1 item"),
        ({"allowed_token_ids": [VOCAB, 1]}, "allowed_token_ids", f"token id {VOCAB}, the model has 0 to {VOCAB - 1}"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]", "greater than or equal to 0"),
        ({"allowed_token_ids": ["x"] * 10_000}, "allowed_token_ids[0]", "integer"),
        ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0"),
        ({"min_tokens": 101}, "min_tokens", "it is 101, and 'max_tokens' is 100"),
        ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"logprobs": -1}, "logprobs", "greater than or equal to 0"),
        ({"logprobs": True}, "logprobs", "integer"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "less than or equal to 20"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "not allowed with 'stream': true"),
        ({"prompt_logprobs": 0, "resumable": True}, "prompt_logprobs", "not allowed with 'resumable': true"),
        ({"max_tokens": 0}, "max_tokens", "allowed only with 'echo': true"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens", "it is 1, and 'max_tokens' is 0"),
    ],
)
def test_what_cannot_be_asked_for(asked: dict, param: str, text: str):
    error = refusal(**asked)
    assert error.param == param
    assert text in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"min_tokens": 2047}, "min_tokens"),
    ],
)
def test_what_a_chat_cannot_ask_for(asked: dict, param: str):
    assert refusal(chat, **asked).param == param


def test_many_prompts_with_long_constraints():
    """Each prompt is a message of its own, which carries them all."""
    words = ["x" * 10 + str(i) for i in range(256)]
    asked = {"allowed_token_ids": list(range(VOCAB)), "bad_words": words, "logit_bias": {"5": 1}}
    num_ids = VOCAB + sum(len(tokens_of(word)) for word in completion(**asked).constraints.bad_words) + 1
    most = MAX_TOKEN_IDS // num_ids
    completion(prompt=[[5]] * most, **asked)
    error = refusal(prompt=[[5]] * (most + 1), **asked)
    assert f"{num_ids} token ids" in error.message
    assert f"each of {most + 1} prompts are more than {MAX_TOKEN_IDS}" in error.message


def test_an_answer_has_so_many_log_probabilities():
    most = MAX_ANSWER_LOGPROBS // (6 * 2000)
    completion(logprobs=5, prompt=[[5]] * (most // 2), n=2, max_tokens=2000)
    completion(prompt=[[5]] * 20, n=20, max_tokens=2000)
    error = refusal(logprobs=5, prompt=[[5]] * (most + 1), max_tokens=2000)
    assert error.param == "logprobs"
    expected = f"6 log-probabilities of each of 2000 tokens of {most + 1} choices are more than {MAX_ANSWER_LOGPROBS}"
    assert expected in error.message


def test_an_answer_echoes_so_much_text():
    """Each choice repeats its prompt, and costs a token."""
    of_size = {len(data): token for token, data in TOKENIZER.token_bytes.items()}
    num_long, num_bytes = divmod(MAX_ECHOED_BYTES // 1024, 9)
    most = [of_size[9]] * num_long + [of_size[num_bytes]]
    more = [[*most, of_size[1]], *[most] * 7]
    completion(prompt=[most] * 8, n=128, echo=True)
    completion(prompt=more, n=128)
    error = refusal(prompt=more, n=128, echo=True)
    assert (error.status, error.param) == (400, "echo")
    assert f"would echo {MAX_ECHOED_BYTES + 128} bytes of prompts; {MAX_ECHOED_BYTES} are allowed" in error.message


def test_a_completion_counts_its_prompts_in_each_choice():
    prompts = [[5] * 1025] * (MAX_ANSWER_LOGPROBS // (4 * 1024 * 128))
    num_choices = len(prompts) * 128
    completion(prompt=prompts, n=128, prompt_logprobs=3)
    assert refusal(prompt=prompts, n=128, prompt_logprobs=4).param == "prompt_logprobs"
    completion(prompt=prompts, n=128, prompt_logprobs=1, echo=True)
    both = {"prompt_logprobs": 0, "echo": True, "logprobs": 1}
    completion(prompt=prompts, n=128, max_tokens=512, **both)
    error = refusal(prompt=prompts, n=128, max_tokens=513, **both)
    assert error.param == "logprobs"
    of_prompts, of_tokens = "{} log-probabilities of prompts", "2 log-probabilities of each of 513 tokens of {} choices"
    assert of_prompts.format(3 * 1024 * num_choices) in error.message
    assert of_tokens.format(num_choices) in error.message


def test_a_chat_counts_its_prompt_once_for_all_choices():
    messages = [{"role": "user", "content": "x " * 500}]
    [prompt] = TOKENIZER.encode([TOKENIZER.render_chat(messages, None, {})], add_special_tokens=False)
    num_listed = (len(prompt) - 1) * 20
    assert num_listed * 128 > MAX_ANSWER_LOGPROBS
    chat(messages=messages, n=128, prompt_logprobs=19, max_tokens=9)
    both = {"messages": messages, "n": 128, "prompt_logprobs": 19, "logprobs": True, "top_logprobs": 20}
    left = (MAX_ANSWER_LOGPROBS - num_listed) // (21 * 128)
    assert chat(**both).max_tokens == left, "what is left"
    assert refusal(chat, **both, max_tokens=left + 1).param == "logprobs"
    long = [{"role": "user", "content": "x " * (MAX_ANSWER_LOGPROBS // 21)}]
    assert refusal(partial(chat, max_len=2**20), messages=long, prompt_logprobs=20).param == "prompt_logprobs"
