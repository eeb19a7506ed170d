"""Embeddings, reranking and scores over HTTP, by models of their own beside the one that generates."""

import base64
import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import msgspec
import numpy as np
import openai
import pytest
from click.testing import CliRunner

from common import messages as m
from common.errors import CheckpointError, RequestRejected
from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.api_key_file import ApiKey, digest, encode_key_file
from scheduler_svc.frontend.__main__ import main as frontend_command
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.accounts import Held, Shares
from scheduler_svc.frontend.http.plain_answers import HELD, PartsResponse
from scheduler_svc.frontend.requests.body import parse_noting
from scheduler_svc.frontend.requests.embedding import MAX_ANSWER_FLOATS, tokenize_embedding
from scheduler_svc.frontend.requests.pooled_schemas import EmbeddingRequest
from scheduler_svc.frontend.requests.pooling_model import (
    PoolingModel,
    num_ready_of_served,
    read_pooling_models,
    task_state,
    tasks_of_served,
)
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend_options import FrontendOptions
from tests.frontend.links import in_event_loop
from tests.support.eventually import eventually
from tests.support.fake_core import (
    HIDDEN_SIZE,
    TASKS,
    FakeCore,
    Step,
    delta,
    hidden_of,
    logits_of,
    outputs,
    pool,
    refuse,
    silence,
    tokens_of,
)
from tests.support.frontend_process import MODEL, Frontend, assert_openai_shape, running_frontend
from tests.support.plain_http import http
from tests.support.pooling_folders import END, make_embedder, make_reranker

KEYS = [
    ApiKey(
        name="alice",
        sha256=digest("a"),
        created="2026-01-01T00:00:00Z",
        max_open_requests=9,
        min_priority=0,
        weight=2.5,
    ),
    ApiKey(name="root", sha256=digest("r"), created="2026-01-01T00:00:00Z", admin=True),
]
ALICE, ROOT = ({"authorization": f"Bearer {key}"} for key in "ar")
TEXTS = ["The moon.", "Once upon a time, a naïve 🦊 met it.", "The moon."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "keys.json").write_bytes(encode_key_file(KEYS))
    (folder / "keys.json").chmod(0o600)
    return {
        "embed": make_embedder(folder / "vectors"),
        "score": make_reranker(folder / "judge"),
        "keys": folder / "keys.json",
    }


@pytest.fixture(scope="module")
def shared_frontend(folders: dict[str, Path]) -> Iterator[Frontend]:
    models = ["--pooling-model", f"embed={folders['embed']}", "--pooling-model", f"score:rank/1={folders['score']}"]
    with running_frontend(*models, "--api-keys", str(folders["keys"])) as frontend:
        yield frontend


@pytest.fixture
def client(frontend: Frontend) -> Iterator[openai.OpenAI]:
    with frontend.client("a") as client:
        yield client


@pytest.fixture(scope="module")
def embedder(folders: dict[str, Path]) -> Tokenizer:
    return Tokenizer(folders["embed"])


def post(
    frontend: Frontend, path: str, body: object, headers: dict[str, str] = ALICE, **more: object
) -> httpx.Response:
    return http.post(f"{frontend.url}{path}", json=body, headers=headers, **({"timeout": 20} | more))


def unit(vector: np.ndarray) -> np.ndarray:
    wide = vector.astype(np.float64)
    return wide / np.linalg.norm(wide)


def test_embeddings(client: openai.OpenAI, core: FakeCore, embedder: Tokenizer):
    answer = client.embeddings.create(model="vectors", input=TEXTS)  # asks for base64, and decodes it
    prompts = [tokens_of(submit.prompt) for submit in core.submits]
    assert prompts == [[*ids, END] for ids in embedder.encode(TEXTS, add_special_tokens=False)]
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    for entry, tokens in zip(answer.data, prompts, strict=True):
        assert np.allclose(entry.embedding, unit(hidden_of(tokens)), atol=1e-6)
    assert (answer.model, answer.object) == ("vectors", "list")
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, prompts))
    [params] = {submit.params for submit in core.submits}
    assert params == m.SamplingParams(max_tokens=1, pooling="hidden")
    of_client = {(submit.client_name, submit.client_limit, submit.weight) for submit in core.submits}
    assert of_client == {("alice", 9, 2.5)}
    assert {(submit.stream, submit.priority, submit.timeout_s) for submit in core.submits} == {(False, 0, None)}
    assert not core.cancels


def test_numbers_are_those_of_base64(client: openai.OpenAI, frontend: Frontend):
    numbers = client.embeddings.create(model="vectors", input=TEXTS, encoding_format="float", dimensions=7)
    coded = post(frontend, "/v1/embeddings", {"model": "vectors", "input": TEXTS, "encoding_format": "base64"})
    for entry, code in zip(numbers.data, coded.json()["data"], strict=True):
        whole = np.frombuffer(base64.b64decode(code["embedding"]), "<f4")
        assert len(whole) == HIDDEN_SIZE
        assert np.allclose(np.linalg.norm(entry.embedding), 1, atol=1e-6)
        assert np.allclose(entry.embedding, unit(whole[:7]), atol=1e-6)
    assert coded.headers["x-request-id"].startswith("embd-")
    assert coded.json()["id"] == coded.headers["x-request-id"]


def test_token_ids_are_taken_as_they_are(frontend: Frontend, core: FakeCore):
    body = {"model": "vectors", "input": [[5, 6], [7]], "normalize": False, "cache_salt": "s", "priority": 3}
    answer = post(frontend, "/v1/embeddings", body | {"timeout_s": 9}, {**ALICE, "x-request-id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    vectors = [np.array(entry["embedding"], np.float32) for entry in answer.json()["data"]]
    assert np.array_equal(vectors, [hidden_of([5, 6]), hidden_of([7])])
    for submit in core.submits:
        assert (submit.cache_salt, submit.priority, submit.timeout_s) == (f"key {submit.client}/s", 3, 9)
    assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_many_inputs_come_in_their_order(frontend: Frontend, core: FakeCore):
    inputs = [[1 + i % 2000, 5] for i in range(2048)]
    answer = post(frontend, "/v1/embeddings", {"model": "vectors", "input": inputs, "dimensions": 2}, ROOT)
    assert len(core.submits) == 2048
    for i in (0, 1, 1024, 2047):
        entry = answer.json()["data"][i]
        assert entry["index"] == i
        assert np.allclose(entry["embedding"], unit(hidden_of(inputs[i])[:2]), atol=1e-6)


BAD_EMBEDDINGS = [
    ({"input": []}, "input"),
    ({"input": ""}, "input"),
    ({"input": ["x", ""]}, "input"),
    ({"input": [[]]}, "input"),
    ({"input": [5, 999_999]}, "input"),
    ({"input": [[5], [-1]]}, "input"),
    ({"input": ["x", 5]}, "input"),
    ({"input": ["x"] * 2049}, "input"),
    ({"input": [7] * 2049}, "input"),
    ({"input": "x" * 2048 * 30}, "input"),
    ({"dimensions": 0}, "dimensions"),
    ({"dimensions": HIDDEN_SIZE + 1}, "dimensions"),
    ({"encoding_format": "hex"}, "encoding_format"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
    ({"normalize": 1}, "normalize"),
    ({"priority": 101}, "priority"),
    ({"timeout_s": 0}, "timeout_s"),
    ({"cache_salt": "x" * 257}, "cache_salt"),
    ({"stream": True}, "stream"),
]
BAD_RANKINGS = [
    ({"query": ""}, "query"),
    ({"query": 5}, "query"),
    ({"documents": []}, "documents"),
    ({"documents": "x"}, "documents"),
    ({"documents": ["x", 5]}, "documents"),
    ({"documents": ["x", {"title": "y"}]}, "documents"),
    ({"documents": ["x", {"text": "y", "title": "z"}]}, "documents"),
    ({"documents": ["x"] * 1025}, "documents"),
    ({"documents": ["x" * 2048 * 30]}, "documents"),
    ({"top_n": 0}, "top_n"),
    ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    ({"max_chunks_per_doc": 5}, "max_chunks_per_doc"),
    ({"rank_fields": ["title"]}, "rank_fields"),
    ({"instruction": "x" * 4097}, "instruction"),
    ({"return_documents": "yes"}, "return_documents"),
]
BAD_SCORES = [({"text_1": []}, "text_1"), ({"text_2": ["x", ""]}, "text_2"), ({"text_1": ["x", "y"]}, "text_2")]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        *(("/v1/embeddings", {"model": "vectors", "input": "x"} | bad, param) for bad, param in BAD_EMBEDDINGS),
        *(
            ("/v1/rerank", {"model": "rank/1", "query": "x", "documents": ["y"]} | bad, param)
            for bad, param in BAD_RANKINGS
        ),
        *(
            ("/score", {"model": "rank/1", "text_1": "x", "text_2": ["y", "z", "w"]} | bad, param)
            for bad, param in BAD_SCORES
        ),
    ],
)
def test_what_is_refused(frontend: Frontend, core: FakeCore, path: str, body: dict, param: str):
    assert assert_openai_shape(post(frontend, path, body), 400)["param"] == param
    assert not core.submits


def test_an_answer_has_a_largest_size(embedder: Tokenizer):
    large = copy.copy(embedder)
    large.hidden_size = MAX_ANSWER_FLOATS // 2
    two, three = (EmbeddingRequest(model="", input=["x"] * count) for count in (2, 3))
    assert tokenize_embedding(two, large, TASKS[1]).num_tokens == 4
    num_floats = 3 * large.hidden_size
    with pytest.raises(ApiError, match=f"would have {num_floats} numbers, the limit is {MAX_ANSWER_FLOATS}"):
        tokenize_embedding(three, large, TASKS[1])
    fewer = three.model_copy(update={"dimensions": MAX_ANSWER_FLOATS // 3})
    assert tokenize_embedding(fewer, large, TASKS[1]).num_tokens == 6


@pytest.mark.parametrize(("asked", "length"), [(-1, 2048), (5, 5), (9999, 2048)])
def test_a_text_is_cut_and_its_end_stays(embedder: Tokenizer, asked: int, length: int):
    long = "word" * 9000
    request = EmbeddingRequest(model="", input=[long, "x"], truncate_prompt_tokens=asked)
    [cut, short] = map(tokens_of, tokenize_embedding(request, embedder, TASKS[1]).prompts)
    [whole] = embedder.encode([long], add_special_tokens=False)
    assert cut == [*whole[: length - 1], END]
    assert short[-1] == END
    bare = request.model_copy(update={"add_special_tokens": False})
    assert tokens_of(tokenize_embedding(bare, embedder, TASKS[1]).prompts[0]) == whole[:length]
    ids = EmbeddingRequest(model="", input=[7] * 3000, truncate_prompt_tokens=asked)
    assert tokens_of(tokenize_embedding(ids, embedder, TASKS[1]).prompts[0]) == [7] * min(length, 3000)


def test_an_input_may_fill_all_positions(embedder: Tokenizer):
    for ids, fits in (([7] * 2048, True), ([7] * 2049, False)):
        request = EmbeddingRequest(model="", input=ids)
        if fits:
            assert tokenize_embedding(request, embedder, TASKS[1]).num_tokens == 2048
            continue
        with pytest.raises(ApiError, match="input 0 of the input has 2049") as refused:
            tokenize_embedding(request, embedder, TASKS[1])
        assert refused.value.code == "context_length_exceeded"


RERANK = {"model": "rank/1", "query": "Where?", "documents": ["a", {"text": "b"}, "c", "d"]}


def scores_of(core: FakeCore) -> list[float]:
    """What the documents' scores have to be."""
    scores = []
    for submit in core.submits:
        no, yes = logits_of(tokens_of(submit.prompt), submit.params.pooled_token_ids).astype(np.float64)
        scores.append(np.exp(yes) / (np.exp(no) + np.exp(yes)))
    return scores


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_rerank(frontend: Frontend, core: FakeCore, path: str):
    answer = post(frontend, path, RERANK).json()
    scores = scores_of(core)
    order = sorted(range(4), key=lambda i: -scores[i])
    assert [entry["index"] for entry in answer["results"]] == order
    assert np.allclose([entry["relevance_score"] for entry in answer["results"]], [scores[i] for i in order], atol=1e-6)
    assert all(entry.keys() == {"index", "relevance_score"} for entry in answer["results"])
    assert (answer["model"], answer["id"][:7]) == ("rank/1", "rerank-")
    assert answer["usage"]["total_tokens"] == sum(len(submit.prompt) for submit in core.submits) // 4
    assert answer["meta"]["api_version"]["version"] == ("2" if path.startswith("/v2") else "1")


def test_documents_of_more_than_a_text_are_refused_by_what_they_have(frontend: Frontend):
    body = RERANK | {"documents": ["a", {"text": "b", "image": "c"}]}
    error = assert_openai_shape(post(frontend, "/v1/rerank", body), 400)
    assert "only texts are ranked, and document 1 has 'image' too" in error["message"]


def test_the_best_documents_and_their_texts(frontend: Frontend):
    whole = post(frontend, "/v1/rerank", RERANK).json()["results"]
    best = post(frontend, "/v1/rerank", RERANK | {"top_n": 2, "return_documents": True}).json()["results"]
    assert [entry["index"] for entry in best] == [entry["index"] for entry in whole[:2]]
    assert [entry["document"] for entry in best] == [{"text": "abcd"[entry["index"]]} for entry in best]
    assert len(post(frontend, "/v1/rerank", RERANK | {"top_n": 99}).json()["results"]) == 4


def test_of_equal_scores_the_first_comes_first(frontend: Frontend):
    body = RERANK | {"documents": ["a", "b", "a", "b", "a"]}
    order = [entry["index"] for entry in post(frontend, "/v1/rerank", body).json()["results"]]
    assert order in ([0, 2, 4, 1, 3], [1, 3, 0, 2, 4])


def test_documents_whose_scores_are_all_1_are_in_order(frontend: Frontend, core: FakeCore):
    """A float32 has no more of a probability when "yes" is ahead by 17."""
    aheads = iter([18.0, 30.0, 17.5, 40.0])

    def sure(submit: m.Submit) -> Iterator[Step]:
        yield outputs(delta(submit, [], "stop", pooled=np.array([-3, next(aheads) - 3], "<f4").tobytes()))

    core.script = sure
    results = post(frontend, "/v1/rerank", RERANK).json()["results"]
    assert [(entry["index"], entry["relevance_score"]) for entry in results] == [(i, 1.0) for i in (3, 1, 0, 2)]


@in_event_loop
async def test_an_answer_counts_until_it_is_sent():
    for fails in (False, True):
        shares, sent = Shares(100), []
        response = PartsResponse([b"12345", b"67890"], {})

        async def send(message: dict, shares: Shares = shares, sent: list = sent, fails: bool = fails) -> None:
            assert shares.num_held == 10
            sent.append(message.get("body", b""))
            if fails and len(sent) == 2:
                raise ConnectionResetError

        with contextlib.suppress(ConnectionResetError):
            await response({"type": "http", HELD: Held(shares, "")}, None, send)
        assert b"".join(sent) == (b"12345" if fails else b"1234567890")
        assert shares.num_held == 0


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_score(frontend: Frontend, core: FakeCore, path: str):
    answer = post(frontend, path, {"model": "rank/1", "text_1": "Where?", "text_2": ["a", "b"]}).json()
    assert [(entry["index"], entry["object"]) for entry in answer["data"]] == [(0, "score"), (1, "score")]
    assert np.allclose([entry["score"] for entry in answer["data"]], scores_of(core), atol=1e-6)


def test_each_model_has_its_tasks(client: openai.OpenAI, frontend: Frontend):
    cards = {card.id: (card.tasks, card.max_model_len, card.root) for card in client.models.list()}
    assert cards == {
        MODEL: (["generate"], 2048, MODEL),
        "vectors": (["embed"], 2048, "vectors"),
        "rank/1": (["score"], 2048, "rank/1"),
    }
    assert client.models.retrieve("rank/1").tasks == ["score"]
    for path, body in (
        ("/v1/embeddings", {"model": MODEL, "input": "x"}),
        ("/v1/rerank", RERANK | {"model": "vectors"}),
        ("/score", {"model": "vectors", "text_1": "x", "text_2": "y"}),
        ("/v1/completions", {"model": "vectors", "prompt": "x"}),
    ):
        assert assert_openai_shape(post(frontend, path, body), 404)["code"] == "model_not_found"


def test_a_priority_that_a_key_may_not_have(frontend: Frontend):
    for path, body in (("/v1/embeddings", {"model": "vectors", "input": "x"}), ("/rerank", RERANK)):
        assert post(frontend, path, body | {"priority": -1}, ROOT).status_code == 200
        assert assert_openai_shape(post(frontend, path, body | {"priority": -1}), 403)["code"] == "priority_not_allowed"


def test_each_input_counts_for_the_limit_of_a_key(frontend: Frontend, core: FakeCore):
    body = {"model": "vectors", "input": ["x"] * 10}
    error = assert_openai_shape(post(frontend, "/v1/embeddings", body), 400)
    assert "10 sequences (one for each input)" in error["message"]
    assert not core.submits
    assert post(frontend, "/v1/embeddings", body, ROOT).status_code == 200


def test_what_the_core_refuses(frontend: Frontend, core: FakeCore):
    core.script = refuse("too many", "too_many_requests")
    error = assert_openai_shape(post(frontend, "/v1/embeddings", {"model": "vectors", "input": ["x", "y"]}), 429)
    assert (error["message"], error["code"]) == ("too many", "too_many_requests")


def test_a_client_that_goes_has_all_its_inputs_cancelled(frontend: Frontend, core: FakeCore):
    core.script = silence
    frontend.begin("/v1/embeddings", {"model": "vectors", "input": ["x", "y"]}, 2, **ALICE).close()
    eventually(lambda: len(core.cancels) == 2)
    assert {cancel.request_id for cancel in core.cancels} == {submit.request_id for submit in core.submits}


def test_a_vector_of_another_model_is_no_answer(frontend: Frontend, core: FakeCore):
    def wide(submit: m.Submit) -> Iterator[Step]:
        yield outputs(delta(submit, [], "stop", pooled=np.ones(HIDDEN_SIZE * 2, "<f4").tobytes()))

    core.script = wide
    assert (
        "512 values"
        in assert_openai_shape(post(frontend, "/v1/embeddings", {"model": "vectors", "input": "x"}), 500)["message"]
    )


def test_results_that_are_no_numbers_are_no_answer(frontend: Frontend, core: FakeCore):
    def broken(submit: m.Submit) -> Iterator[Step]:
        yield outputs(delta(submit, [], "stop", pooled=np.full(HIDDEN_SIZE, np.nan, "<f4").tobytes()))

    core.script = broken
    assert assert_openai_shape(post(frontend, "/v1/embeddings", {"model": "vectors", "input": "x"}), 503)
    core.script = pool
    assert post(frontend, "/v1/embeddings", {"model": "vectors", "input": "x"}).status_code == 200


# --- which model, and whether the fleet has it ---

NO_FLEET = m.FleetState(num_ready=0, fingerprint="", max_model_len=0)


def test_a_task_that_no_executor_has_taken_is_refused_by_whether_one_may_come():
    link = SimpleNamespace(is_up=True, fleet=NO_FLEET)
    may_come = msgspec.structs.replace(TASKS[2], num_ready=0, max_model_len=0)
    for tasks, code in (((), "no_executor"), ((TASKS[0], may_come), "no_executor"), (TASKS[:1], "task_not_served")):
        link.fleet = msgspec.structs.replace(NO_FLEET, tasks=tasks)
        with pytest.raises(
            RequestRejected, match=r"no executor takes the task 'score'.*--pooling-model score=MODEL"
        ) as no:
            task_state(link, "score")
        assert no.value.code == code
    link.fleet = msgspec.structs.replace(NO_FLEET, tasks=TASKS)
    assert task_state(link, "score") == TASKS[2]
    link.is_up = False
    with pytest.raises(RequestRejected, match="cannot be reached"):
        task_state(link, "score")


def test_the_served_model_answers_what_has_no_model_of_its_own(embedder: Tokenizer):
    own = {"embed": PoolingModel(("vectors",), embedder)}
    all_tasks = m.FleetState(num_ready=0, fingerprint="", max_model_len=9, tasks=TASKS)
    only_embeds = msgspec.structs.replace(all_tasks, tasks=TASKS[1:2])
    assert tasks_of_served(NO_FLEET, {}) == ["generate"]
    assert tasks_of_served(all_tasks, own) == ["generate", "score"]
    assert tasks_of_served(only_embeds, {}) == ["embed"]
    assert tasks_of_served(only_embeds, own) == ["generate"]
    assert [num_ready_of_served(fleet, {}) for fleet in (NO_FLEET, all_tasks, only_embeds)] == [0, 0, 1]
    assert num_ready_of_served(only_embeds, own) == 0


def options(*values: str) -> FrontendOptions:
    return FrontendOptions(("served",), pooling_model=values)


def test_models_of_their_own(folders: dict[str, Path]):
    models = read_pooling_models(options(f"embed:a={folders['score']}", f"score={folders['score']}"))
    assert {task: model.names for task, model in models.items()} == {"embed": ("a",), "score": ("judge",)}
    assert models["embed"].tokenizer is models["score"].tokenizer
    with pytest.raises(CheckpointError, match="a name of the served model"):
        read_pooling_models(options(f"embed:served={folders['embed']}"))
    with pytest.raises(CheckpointError, match="cannot score: its tokenizer writes 'yes' with 2 tokens"):
        read_pooling_models(options(f"score={DEMO_MODEL_DIR}"))


@pytest.mark.parametrize("value", ["", "embed", "embed=", "generate=x", "embed:=x", "=x", "Embed=x"])
def test_values_that_name_no_model(value: str):
    with pytest.raises(ValueError, match="is not TASK=MODEL or TASK:NAME=MODEL"):
        _ = options(value).pooling_models


def test_unknown_parameters_where_they_are_ignored():
    body = b'{"model": "m", "input": "x", "embed_dtype": "float32"}'
    assert parse_noting(body, EmbeddingRequest, FrontendOptions(allow_unknown=True)).ignored == ("embed_dtype",)
    with pytest.raises(ApiError, match="Unknown parameter: 'embed_dtype'"):
        parse_noting(body, EmbeddingRequest)


def test_a_value_that_names_no_model_is_wrong_usage():
    result = CliRunner().invoke(frontend_command, ["--core-endpoint", "ipc://none", "--pooling-model", "embed"])
    assert (result.exit_code, "is not TASK=MODEL" in result.output) == (2, True)


def test_a_task_has_one_model():
    with pytest.raises(ValueError, match="the task embed has one model, not a and b"):
        _ = options("embed=a", "score=c", "embed:x=b").pooling_models
