"""/tokenize and /detokenize in vLLM's shapes, /version, several names of the model, HEAD, pages of other origins."""

from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import __version__
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.requests.body import MAX_VALUES
from scheduler_svc.frontend.requests.limits import MAX_ECHOED_BYTES
from scheduler_svc.frontend.requests.tokenization import DetokenizeRequest, detokenize
from tests.support.demo_tokenizer import TOKENIZER, ids
from tests.support.frontend_process import COMPLETION, MODEL, Frontend, assert_openai_shape, running_frontend
from tests.support.plain_http import http

PAGE = "https://page.example"
TEXT = "one 月 two"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
KEY = {"authorization": "Bearer alpha"}


@pytest.fixture(scope="module")
def shared_frontend() -> Iterator[Frontend]:
    names = ("--served-model-name", MODEL, "--served-model-name", "org/other")
    with running_frontend(*names, "--cors-origin", PAGE, BATON_API_KEYS="alpha") as frontend:
        yield frontend


def post(frontend: Frontend, path: str, body: object, **headers: str) -> httpx.Response:
    return http.post(f"{frontend.url}{path}", json=body, headers=KEY | headers)


def test_a_text_becomes_tokens_and_tokens_a_text(frontend: Frontend):
    answer = post(frontend, "/tokenize", {"model": MODEL, "prompt": TEXT, "return_token_strs": True}).json()
    [tokens] = TOKENIZER.encode([TEXT], add_special_tokens=True)
    assert (answer["tokens"], answer["count"], answer["max_model_len"]) == (tokens, len(tokens), 2048)
    assert len(answer["token_strs"]) == len(tokens)
    assert answer["token_strs"][0] == "one"
    assert post(frontend, "/detokenize", {"tokens": tokens}).json() == {"prompt": TEXT}
    assert "token_strs" not in post(frontend, "/tokenize", {"prompt": ""}).json()


def test_a_chat_template_of_ones_own(tmp_path):
    (tmp_path / "chosen").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    with running_frontend("--chat-template", str(tmp_path / "chosen"), BATON_API_KEYS="alpha") as frontend:
        answer = post(frontend, "/tokenize", CHAT).json()
    assert answer["tokens"] == ids("user: hi\n")


@given(st.text(max_size=30), st.lists(st.integers(128, 255), max_size=6), st.integers(1, 7))
def test_tokens_become_the_same_text_in_pieces_of_any_size(text, bad, size):
    """Characters whose tokens are in two pieces are whole, and bytes that are none are U+FFFD."""
    tokens = ids(text)
    alone = {data[0]: token for token, data in TOKENIZER.token_bytes.items() if len(data) == 1}
    tokens += [alone[byte] for byte in bad]
    answer = detokenize(DetokenizeRequest(tokens=tokens), TOKENIZER, tokens_at_once=size)
    assert answer.prompt == b"".join(TOKENIZER.all_token_bytes[token] for token in tokens).decode(errors="replace")


def test_a_text_of_tokens_is_bounded():
    tokens = ids(TEXT)
    body, size = DetokenizeRequest(tokens=tokens), len(TEXT.encode())
    assert detokenize(body, TOKENIZER, max_bytes=size).prompt == TEXT
    with pytest.raises(ApiError, match=f"has {size} bytes; {size - 1} are allowed"):
        detokenize(body, TOKENIZER, max_bytes=size - 1)
    [token] = tokens[:1]
    too_many = [token] * (MAX_ECHOED_BYTES // len(TOKENIZER.token_bytes[token]) + 1)
    with pytest.raises(ApiError, match=f"{MAX_ECHOED_BYTES} are allowed"):
        detokenize(DetokenizeRequest(tokens=too_many), TOKENIZER)


def test_a_conversation_becomes_what_the_model_is_given(frontend: Frontend):
    answer = post(frontend, "/tokenize", CHAT).json()
    chat = post(frontend, "/v1/chat/completions", CHAT | {"model": "org/other", "max_tokens": 1})
    assert chat.json()["usage"]["prompt_tokens"] == answer["count"]
    text = post(frontend, "/detokenize", {"tokens": answer["tokens"]}).json()["prompt"]
    assert "<|im_start|>" in text
    assert "hi" in text
    shorter = post(frontend, "/tokenize", CHAT | {"add_generation_prompt": False}).json()
    assert shorter["count"] < answer["count"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", CHAT | {"prompt": "x"}, "messages"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x", "strange": 1}, "strange"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [1, True]}, "tokens"),
        ("/detokenize", {"tokens": [2048]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ],
)
def test_what_is_neither(frontend: Frontend, path: str, body: object, param: str):
    assert assert_openai_shape(post(frontend, path, body), 400)["param"] == param


def test_tokenizing_has_the_limits_of_generating(frontend: Frontend):
    assert assert_openai_shape(post(frontend, "/tokenize", {"prompt": "x", "model": "none"}), 404)["param"] == "model"
    too_many = {"tokens": [1] * (MAX_VALUES + 2)}
    assert str(MAX_VALUES) in assert_openai_shape(post(frontend, "/detokenize", too_many), 400)["message"]
    for path in ("/tokenize", "/detokenize", "/version"):
        assert_openai_shape(http.post(frontend.url + path, json={"prompt": "x", "tokens": [1]}), 401)


def test_the_version(frontend: Frontend):
    assert http.get(f"{frontend.url}/version", headers=KEY).json() == {"version": __version__}


def test_each_name_is_a_model_and_answers_have_the_first(frontend: Frontend):
    models = http.get(f"{frontend.url}/v1/models", headers=KEY).json()["data"]
    assert [(card["id"], card["root"], card["max_model_len"]) for card in models] == [
        (MODEL, MODEL, 2048),
        ("org/other", MODEL, 2048),
    ]
    assert http.get(f"{frontend.url}/v1/models/org/other", headers=KEY).json() == models[1]
    for name in (MODEL, "org/other"):
        assert post(frontend, "/v1/completions", COMPLETION | {"model": name}).json()["model"] == MODEL


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_may_ask_for_the_head_alone(frontend: Frontend, path: str):
    answer = http.head(frontend.url + path)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate"])
def test_compressed_bodies(frontend: Frontend, encoding: str):
    answer = post(frontend, "/v1/completions", COMPLETION, **{"content-encoding": encoding})
    assert f"'{encoding}'" in assert_openai_shape(answer, 415)["message"]


def test_a_page_of_an_allowed_origin(frontend: Frontend):
    """Its browser asks first, without a key; and it is not taken for this machine, though it runs there."""
    asked = {"origin": PAGE, "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization,content-type"
    question = http.options(f"{frontend.url}/v1/completions", headers=asked)
    assert question.status_code == 200
    assert question.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in question.headers["access-control-allow-headers"]
    for answer, status in (
        (post(frontend, "/v1/completions", COMPLETION | {"stream": True}, origin=PAGE), 200),
        (post(frontend, "/v1/completions", COMPLETION | {"n": 0}, origin=PAGE), 400),
        (http.get(f"{frontend.url}/v1/models", headers={"origin": PAGE}), 401),
    ):
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_pages_of_other_origins(frontend: Frontend):
    asked = {"origin": "https://other.example", "access-control-request-method": "POST"}
    question = http.options(f"{frontend.url}/v1/completions", headers=asked)
    assert question.status_code == 400
    assert "access-control-allow-origin" not in question.headers
    answer = post(frontend, "/v1/completions", COMPLETION, origin="https://other.example")
    assert "access-control-allow-origin" not in answer.headers
