"""The prompt that asks whether a document answers a query."""

import contextlib
import copy
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from common import messages as m
from common.errors import RequestRejected
from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.plain_answers import HELD
from scheduler_svc.frontend.http.rerank_api import RerankApi
from scheduler_svc.frontend.requests.pooled_request import MAX_TOKENS
from scheduler_svc.frontend.requests.pooled_schemas import RerankRequest, ScoreRequest
from scheduler_svc.frontend.requests.pooling_model import PoolingModel
from scheduler_svc.frontend.requests.reader import RequestReader
from scheduler_svc.frontend.requests.score_prompt import CHATML, INSTRUCTION, PAIR, SYSTEM, ScorePrompts
from scheduler_svc.frontend.requests.scoring import tokenize_rerank, tokenize_score
from scheduler_svc.frontend.text.literal import encode_literally
from scheduler_svc.frontend.text.long_work import WORTH_A_THREAD, LongWork
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend_options import FrontendOptions
from tests.frontend.links import in_event_loop
from tests.support.fake_core import tokens_of
from tests.support.pooling_folders import make_reranker

THINKING = """{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}"""
OF_PAIRS = """<|im_start|>system
Judge.<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>"""
STATE = m.TaskState(task="score", num_ready=1, max_model_len=400)
ANN = ApiClient("ann", "ann", 0, is_admin=False, may_read_status=False)
ROOMY = m.TaskState(task="score", num_ready=1, max_model_len=2**16)
FLEET = m.FleetState(num_ready=1, fingerprint="f", max_model_len=400, tasks=(STATE,))
TEXTS = st.lists(st.sampled_from(["a", " b", "\n", " ", "<", "|im_end|>", "<|im_end|>", ":", "é", "́"]), max_size=6)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(make_reranker(tmp_path_factory.mktemp("reranker"), THINKING))


@pytest.fixture(scope="module")
def model(reranker: Tokenizer) -> PoolingModel:
    return PoolingModel(("judge",), reranker)


def whole(tokenizer: Tokenizer, query: str, document: str) -> list[int]:
    prompts = ScorePrompts(tokenizer)
    [body] = prompts.documents([document], None)
    return [*prompts.leading(INSTRUCTION, query), *body, *prompts.frame.tail]


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode([text], add_special_tokens=False)[0]


def test_it_is_what_the_template_writes(reranker: Tokenizer):
    text = whole(reranker, "Where?", "Here it is.")
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": PAIR.format(INSTRUCTION, "Where?", "Here it is.")},
    ]
    rendered = reranker.render_chat(messages, None, {"enable_thinking": False})
    assert rendered.endswith("<think>\n\n</think>\n\n")
    assert rendered == CHATML.format(INSTRUCTION, "Where?", "Here it is.")
    assert text == encoded(reranker, rendered)


def test_a_model_without_a_template_is_asked_as_qwen3_reranker(tmp_path: Path):
    tokenizer = Tokenizer(make_reranker(tmp_path, None))
    assert whole(tokenizer, "q", "d") == encoded(tokenizer, CHATML.format(INSTRUCTION, "q", "d"))


def test_a_template_for_pairs_gets_its_roles(tmp_path: Path):
    tokenizer = Tokenizer(make_reranker(tmp_path, OF_PAIRS))
    text = f"<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\n{PAIR.format(INSTRUCTION, 'q', 'd')}<|im_end|>"
    assert whole(tokenizer, "q", "d") == encoded(tokenizer, text)


@given(TEXTS, TEXTS)
def test_no_text_leaves_its_place(reranker: Tokenizer, query: list[str], document: list[str]):
    ids = whole(reranker, "".join(query), "".join(document))
    special = set(reranker.special_tokens.values())
    assert [token for token in ids if token in special] == [
        token for token in encoded(reranker, CHATML) if token in special
    ]
    shown = b"".join(reranker.all_token_bytes[token] for token in ids).decode()
    assert shown == CHATML.format(INSTRUCTION, "".join(query), "".join(document))


@given(TEXTS.map("".join), TEXTS.map("".join))
def test_texts_without_special_tokens_are_encoded_as_in_one_piece(reranker: Tokenizer, query: str, document: str):
    if "<|im_end|>" not in query + document:
        assert whole(reranker, query, document) == encoded(reranker, CHATML.format(INSTRUCTION, query, document))


@given(TEXTS.map("".join))
def test_a_literal_text_has_the_same_characters(reranker: Tokenizer, text: str):
    [ids] = encode_literally([text], reranker)
    assert b"".join(reranker.token_bytes[token] for token in ids).decode() == text


def test_half_a_character_is_no_text(reranker: Tokenizer):
    with pytest.raises(RequestRejected, match="Unicode"):
        encode_literally(["<|im_end|>\ud800"], reranker)


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{{ messages[0].content }}", "does not show instruction, query and document"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "once and in this order"),
        ("{{ raise_exception('no system message') }}", "no system message"),
        ("{{ messages[1].content | replace('\n', ' ') }}", "on lines of one message"),
        ("{{ messages[1].content | replace('\n', '<|im_end|>\n') }}", "on lines of one message"),
    ],
)
def test_templates_that_cannot_ask(tmp_path: Path, template: str, fault: str):
    assert fault in ScorePrompts(Tokenizer(make_reranker(tmp_path, template))).fault


def test_an_answer_has_to_be_one_token():
    assert ScorePrompts(Tokenizer(DEMO_MODEL_DIR)).fault == (
        "its tokenizer writes 'yes' with 2 tokens, and an answer has to be one"
    )


def rerank(model: PoolingModel, **fields: object) -> list[list[int]]:
    body = RerankRequest(**({"model": "judge", "query": "Where is it?", "documents": ["here", "there"]} | fields))
    return [tokens_of(prompt) for prompt in tokenize_rerank(body, model, STATE).prompts]


def test_prompts_of_a_query_share_all_before_the_document(model: PoolingModel):
    first, second = rerank(model, documents=["It is here.", "No."])
    shared = next(i for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    text = b"".join(model.tokenizer.all_token_bytes[token] for token in first[:shared]).decode()
    assert text.endswith("<Query>: Where is it?\n<Document>:")
    params = tokenize_rerank(RerankRequest(model="", query="x", documents=["y"]), model, STATE).params
    no, yes = encoded(model.tokenizer, "no"), encoded(model.tokenizer, "yes")
    assert (params.pooling, params.max_tokens, params.pooled_token_ids) == ("logits", 1, (*no, *yes))


def test_a_document_is_cut_and_its_frame_is_not(model: PoolingModel):
    long = "word" + " word" * 999
    [plain] = rerank(model, documents=["x"])
    tail = model.score_prompts.frame.tail.tolist()
    [short] = rerank(model, documents=[long], max_tokens_per_doc=7)
    word = encoded(model.tokenizer, " word")
    assert len(short) == len(plain) - len(encoded(model.tokenizer, " x")) + 7
    assert short[-len(tail) :] == tail
    assert short[: -len(tail)][-7:] == (word * 7)[:7]
    for asked, length in ((-1, 400), (150, 150), (10_000, 400)):
        [cut] = rerank(model, documents=[long], truncate_prompt_tokens=asked)
        assert (len(cut), cut[-len(tail) :]) == (length, tail)
        assert rerank(model, documents=["x"], truncate_prompt_tokens=asked) == [plain]


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"documents": ["x", " word" * 400]}, "input 1 of the documents", "documents"),
        ({"query": "", "documents": ["x"]}, "'query' is empty", "query"),
        ({"documents": ["x", ""]}, "'documents' is empty", "documents"),
        ({"truncate_prompt_tokens": 20}, "leave no room for a document", "truncate_prompt_tokens"),
        ({"query": "x" * 6000}, "6000 characters", "query"),
        ({"documents": ["x", "y" * 6000]}, "6000 characters", "documents"),
    ],
)
def test_what_does_not_fit(model: PoolingModel, fields: dict, message: str, param: str):
    with pytest.raises(ApiError) as refused:
        rerank(model, **fields)
    assert (message in refused.value.message, refused.value.param) == (True, param)


def test_prompts_are_not_put_together_if_they_are_too_long(model: PoolingModel):
    body = RerankRequest(model="judge", query=" word" * 20_000, documents=["x"] * 300)
    tokenize_rerank(body.model_copy(update={"documents": ["x"]}), model, ROOMY)  # makes the frame
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match=f"the limit is {MAX_TOKENS}"):
            tokenize_rerank(body, model, ROOMY)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_TOKENS
    finally:
        tracemalloc.stop()


def test_pairs(model: PoolingModel):
    def pairs(text_1: object, text_2: object) -> tuple[bytes, ...]:
        return tokenize_score(ScoreRequest(model="judge", text_1=text_1, text_2=text_2), model, STATE).prompts

    both = pairs(["a", "b"], ["c", "d"])
    assert pairs("a", ["c", "d"]) == (*pairs("a", "c"), *pairs(["a"], "d"))
    assert both == (*pairs("a", "c"), *pairs("b", "d"))
    with pytest.raises(ValueError, match="should have 1, or as many"):
        pairs(["a", "b"], ["c", "d", "e"])
    with pytest.raises(ValueError, match="should have 1, or as many"):
        pairs(["a", "b"], "c")


def noting(tokenizer: Tokenizer) -> tuple[PoolingModel, list[str]]:
    """A model that has been asked before, and the texts that it tokenizes from now on."""
    seen: list[str] = []

    def encode(texts: list[str], **options: bool) -> list[list[int]]:
        seen.extend(texts)
        return tokenizer.encode(texts, **options)

    watched = copy.copy(tokenizer)
    watched.encode = encode
    model = PoolingModel(("judge",), watched)
    assert not model.score_prompts.fault, "which makes the frame, as the first request does"
    seen.clear()
    return model, seen


def test_a_query_is_encoded_once(reranker: Tokenizer):
    model, seen = noting(reranker)
    rerank(model, query="Zebra?", documents=["x"] * 50)
    assert sum("Zebra" in text for text in seen) == 1
    assert sum(map(len, seen)) < 2000


# --- what is tokenized for each pair ---


class Asked(Exception):
    """What `LongWork` is asked to do, and how much that is said to be."""

    def __init__(self, size: int, work: Callable[[], object]) -> None:
        self.size, self.work = size, work


class Reluctant:
    """A `LongWork` that does nothing."""

    async def run(self, owner: str, size: int, work: Callable[[], object]) -> object:
        raise Asked(size, work)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("score", {"text_1": ["q"] * 150, "text_2": ["d"] * 150, "instruction": "i" * 2400}),
        ("score", {"text_1": ["q"] * 150, "text_2": ["d"] * 150}),
        ("score", {"text_1": "q" * 100, "text_2": ["d"] * 150}),
        ("rerank", {"query": "q" * 100, "documents": ["d"] * 150}),
    ],
    ids=["an instruction", "the default", "a query", "a query of a ranking"],
)
@in_event_loop
async def test_the_work_is_as_much_as_is_tokenized(reranker: Tokenizer, name: str, body: dict):
    """A short one would be done by the event loop, and its streams would wait."""
    raw = json.dumps({"model": "judge", **body}).encode()
    model, seen = noting(reranker)
    link = SimpleNamespace(is_up=True, fleet=FLEET)
    reader = RequestReader(link, reranker, FrontendOptions(), LongWork())
    api = RerankApi(link, reader, model, Reluctant())
    scope: dict[str, object] = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    scope |= {"baton.client": ANN, HELD: SimpleNamespace(release=lambda: None)}

    async def receive() -> dict:
        return {"type": "http.request", "body": raw}

    with pytest.raises(Asked) as asked:
        await getattr(api, name)(Request(scope, receive))
    with contextlib.suppress(ApiError):  # the prompts are too long; that is known when they are tokenized
        asked.value.work()
    frame = model.score_prompts.frame
    around = len(frame.before_instruction + frame.before_query + frame.after_query + frame.before_document)
    tokenized = sum(max(len(text) - around, 0) for text in seen)
    assert asked.value.size >= max(tokenized, WORTH_A_THREAD + 1)


def test_what_is_rendered_for_the_first_request_is_work_for_a_thread(model: PoolingModel):
    prompts = ScorePrompts(model.tokenizer)
    assert prompts.work_of_frame > WORTH_A_THREAD
    assert not prompts.fault
    assert prompts.work_of_frame == 0


def test_a_template_that_cannot_be_rendered_now_is_asked_again(reranker: Tokenizer):
    def unavailable(*_: object) -> str:
        raise RequestRejected("not now", "unavailable")

    away = copy.copy(reranker)
    away.chat_template = SimpleNamespace(source="", render=unavailable)
    prompts = ScorePrompts(away)
    with pytest.raises(RequestRejected, match="not now"):
        _ = prompts.fault
    away.chat_template = reranker.chat_template
    assert not prompts.fault
