"""A bound on the tokens of a text that its length proves: texts beyond it are refused without tokenizing them."""

import asyncio
import copy
import json
import threading
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.body import MAX_CONTAINERS
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest
from scheduler_svc.frontend.requests.tokenized_request import tokenize_completion
from scheduler_svc.frontend.text.chat_template import ChatTemplate
from scheduler_svc.frontend.text.long_work import NUM_THREADS, WORTH_A_THREAD, LongWork
from scheduler_svc.frontend.text.token_bound import NFC_CONTRACTION, characters_per_token
from scheduler_svc.frontend.text.tokenizer import CHARACTERS_AT_ONCE, Tokenizer, portions
from tests.frontend.links import in_event_loop
from tests.support.chats import finished
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.effort import examples

MAX_LEN = 2048


def never_encoding() -> Tokenizer:
    """A tokenizer that nothing may be tokenized by."""

    def encode(*_, **__):
        pytest.fail("a text was tokenized")

    tokenizer = copy.copy(TOKENIZER)
    tokenizer.encode = encode
    return tokenizer


def tokenize_chats(messages, tokenizer=None, **more):
    tokenizer = tokenizer or never_encoding()
    body = ChatRequest.model_validate({"model": "m", "messages": messages, **more})
    return finished(tokenize_chat(body, tokenizer, MAX_LEN), tokenizer)


QWEN_SPLIT = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"\p{L}+|\s+"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
    ],
}
SOUND = {"normalizer": {"type": "NFC"}, "pre_tokenizer": QWEN_SPLIT, "model": {"type": "BPE"}, "added_tokens": []}
TOKENS = [b"a", b"  " * 16, b"the"]


@settings(max_examples=examples(300, quick=60))
@given(text=st.text(max_size=300) | st.text(alphabet="the \n,", max_size=300) | st.sampled_from(["<|im_end|>" * 30]))
def test_no_text_has_fewer_tokens(text):
    [ids] = TOKENIZER.encode([text.encode(errors="ignore").decode()], add_special_tokens=False)
    assert len(text) <= len(ids) * TOKENIZER.characters_per_token + text.count("\ud800")


@settings(max_examples=examples(200, quick=50))
@given(text=st.text(alphabet=st.characters(categories=["L", "M", "N", "Z"]), max_size=60))
def test_normalization_composes_no_more_characters_than_is_allowed_for(text):
    for form in (text, unicodedata.normalize("NFD", text)):
        assert len(form) <= NFC_CONTRACTION * len(unicodedata.normalize("NFC", form))


def test_the_bound_of_a_sound_tokenizer():
    assert characters_per_token(SOUND, TOKENS) == 32 * NFC_CONTRACTION
    assert characters_per_token(SOUND | {"normalizer": None}, TOKENS) == 32
    long = {"content": "<" + "x" * 60 + ">", "lstrip": False, "rstrip": False}
    assert characters_per_token(SOUND | {"normalizer": None, "added_tokens": [long]}, TOKENS) == 62


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Split", "behavior": "Removed"}},
        {"pre_tokenizer": None},
        {"model": {"type": "Unigram"}},
        {"added_tokens": [{"content": "<mask>", "lstrip": True}]},
    ],
)
def test_where_characters_may_be_left_out_nothing_is_proved(change):
    assert characters_per_token(SOUND | change, TOKENS) is None


@pytest.mark.parametrize(
    "tokenize",
    [
        lambda text: tokenize_completion(
            CompletionRequest(model="m", prompt=[text, "short"], max_tokens=1), never_encoding(), MAX_LEN
        ),
        lambda text: tokenize_chats([{"role": "user", "content": text}]),
    ],
    ids=["completion", "chat"],
)
def test_what_cannot_fit_is_not_tokenized(tokenize):
    text = "a" * (MAX_LEN * TOKENIZER.characters_per_token + 1)
    with pytest.raises(ApiError, match=r"has \d+ characters, which are \d+ tokens or more") as refused:
        tokenize(text)
    assert refused.value.code == "context_length_exceeded"


LONG = "a" * (MAX_LEN * TOKENIZER.characters_per_token + 1)
CALL = {"id": "c", "function": {"name": "f", "arguments": json.dumps({"x": LONG})}}


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "description": LONG}}]},
        {"chat_template_kwargs": {"note": LONG}},
        {"messages": [{"role": "assistant", "tool_calls": [CALL]}]},
        {"messages": [{"role": "assistant", "reasoning_content": LONG}]},
    ],
    ids=["tools", "variables", "arguments", "reasoning"],
)
def test_what_a_template_writes_is_measured_wherever_it_stood(change):
    tokenizer = never_encoding()
    source = '{# <tool_call>{"name": ...} #}{{ messages | tojson }}{{ tools | tojson }}{{ note }}'
    tokenizer.chat_template = ChatTemplate(source, {})
    with pytest.raises(ApiError, match=r"which are \d+ tokens or more"):
        tokenize_chats(**{"messages": [{"role": "user", "content": "x"}]} | change, tokenizer=tokenizer)


def test_what_is_in_the_arguments_of_a_call_is_counted_before_it_is_decoded():
    """What is refused is a string; what is not would be decoded."""
    arguments = '{"x": [' + "[]," * MAX_CONTAINERS + "[]]}"
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    body = ChatRequest.model_validate({"model": "m", "messages": [{"role": "assistant", "tool_calls": [call]}]})
    [told] = body.messages[0].plain()["tool_calls"]
    assert told["function"]["arguments"] == {"arguments": arguments}


def test_before_an_executor_has_joined_the_models_own_length_counts():
    positions = json.loads((DEMO_MODEL_DIR / "config.json").read_text())["max_position_embeddings"]
    text = "a" * (positions * TOKENIZER.characters_per_token + 1)
    with pytest.raises(ApiError, match="maximum context length"):
        tokenize_completion(CompletionRequest(model="m", prompt=text, max_tokens=1), never_encoding(), 0)


def test_many_texts_are_tokenized_some_at_a_time():
    texts = ["word " * 20_000] * 8 + ["short"]
    divided = list(portions(texts))
    assert max(sum(map(len, some)) for some in divided) <= CHARACTERS_AT_ONCE
    assert [text for some in divided for text in some] == texts
    one_by_one = [TOKENIZER.encode([text], add_special_tokens=False)[0] for text in texts]
    assert TOKENIZER.encode(texts, add_special_tokens=False) == one_by_one


@in_event_loop
async def test_long_work_is_done_by_a_few_threads():
    work, running, most = LongWork(), [], []
    lock, gate = threading.Lock(), threading.Event()

    def piece(number):
        with lock:
            running.append(number)
            most.append(len(running))
        gate.wait(0.02)
        with lock:
            running.remove(number)
        return number

    results = await asyncio.gather(*(work.run("ann", WORTH_A_THREAD + 1, lambda i=i: piece(i)) for i in range(20)))
    assert results == list(range(20))
    assert max(most) == NUM_THREADS
    at_once = await work.run("ann", WORTH_A_THREAD, threading.get_ident)
    assert at_once == threading.get_ident(), "short work is done at once"


@in_event_loop
async def test_who_asks_for_much_long_work_delays_others_by_one_piece():
    work, done, gate = LongWork(), [], threading.Event()

    def ask(owner, piece):
        return asyncio.ensure_future(work.run(owner, WORTH_A_THREAD + 1, piece))

    held = [ask("ann", lambda: gate.wait(60)) for _ in range(NUM_THREADS)]
    asked = [ask(owner, lambda owner=owner: done.append(owner)) for owner in ["ann"] * 20 + ["bob"]]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*held, *asked)
    assert done.index("bob") <= NUM_THREADS
    assert len(done) == 21
