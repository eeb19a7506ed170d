"""A bound on the tokens of a text that its length proves: texts beyond it are refused without tokenizing them."""

import asyncio
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
from scheduler_svc.frontend.text.tokenizer import CHARACTERS_AT_ONCE, Tokenizer
from tests.frontend.links import in_event_loop
from tests.support.chats import finished
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.effort import examples

MAX_LEN = 2048
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
            CompletionRequest(model="m", prompt=[text, "short"], max_tokens=1), TOKENIZER, MAX_LEN
        ),
        lambda text: finished(
            tokenize_chat(
                ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": text}]}),
                TOKENIZER,
                MAX_LEN,
            ),
            TOKENIZER,
        ),
    ],
    ids=["completion", "chat"],
)
def test_what_cannot_fit_is_not_tokenized(monkeypatch, tokenize):
    monkeypatch.setattr(TOKENIZER, "_tokenizer", None)
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
def test_what_a_template_writes_is_measured_wherever_it_stood(monkeypatch, change):
    source = '{# <tool_call>{"name": ...} #}{{ messages | tojson }}{{ tools | tojson }}{{ note }}'
    monkeypatch.setattr(TOKENIZER, "chat_template", ChatTemplate(source, {}))
    monkeypatch.setattr(TOKENIZER, "_tokenizer", None)
    body = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}]} | change)
    with pytest.raises(ApiError, match=r"which are \d+ tokens or more"):
        finished(tokenize_chat(body, TOKENIZER, MAX_LEN), TOKENIZER)


def test_what_is_in_the_arguments_of_a_call_is_counted_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr("scheduler_svc.frontend.requests.messages.loads", None)
    arguments = "[" + "[]," * MAX_CONTAINERS + "[]]"
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    body = ChatRequest.model_validate({"model": "m", "messages": [{"role": "assistant", "tool_calls": [call]}]})
    [told] = body.messages[0].plain()["tool_calls"]
    assert told["function"]["arguments"] == {"arguments": arguments}


def test_before_an_executor_has_joined_the_models_own_length_counts(monkeypatch):
    monkeypatch.setattr(TOKENIZER, "_tokenizer", None)
    positions = json.loads((DEMO_MODEL_DIR / "config.json").read_text())["max_position_embeddings"]
    text = "a" * (positions * TOKENIZER.characters_per_token + 1)
    with pytest.raises(ApiError, match="maximum context length"):
        tokenize_completion(CompletionRequest(model="m", prompt=text, max_tokens=1), TOKENIZER, 0)


def test_many_texts_are_tokenized_some_at_a_time():
    portions = []

    class Spy:
        def encode_batch_fast(self, texts, add_special_tokens):
            portions.append(sum(map(len, texts)))
            return TOKENIZER._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    texts = ["word " * 20_000] * 8 + ["short"]
    tokenizer = Tokenizer(DEMO_MODEL_DIR)
    tokenizer._tokenizer = Spy()
    assert [len(ids) for ids in tokenizer.encode(texts, add_special_tokens=False)] == [
        len(ids) for ids in TOKENIZER.encode(texts, add_special_tokens=False)
    ]
    assert max(portions) <= CHARACTERS_AT_ONCE
    assert sum(portions) == sum(map(len, texts))


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
