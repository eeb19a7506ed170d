"""The OpenAPI document is true: every route is in it, and requests and answers are as it says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import jsonschema
import pytest

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.http.api import ApiSettings, create_app
from scheduler_svc.frontend.http.openapi import OPENAPI_PATHS, document, page
from scheduler_svc.frontend.http.openapi_schemas import REQUESTS, answer_schemas, request_schemas
from scheduler_svc.frontend.http.traces import Traces
from scheduler_svc.frontend.link.request_counts import RequestCounts
from scheduler_svc.frontend.requests.body import parse
from scheduler_svc.frontend_options import FrontendOptions
from tests.support.frontend_process import MODEL, Frontend, running_frontend
from tests.support.plain_http import NO_TLS, http

DOCUMENT = document(needs_keys=True)
SCHEMAS = DOCUMENT["components"]["schemas"]
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 5}
TEXT = {"model": MODEL, "prompt": "hello there", "max_tokens": 5}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def check(name: str, value: object) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


@pytest.fixture(scope="module")
def shared_frontend() -> Iterator[Frontend]:
    with running_frontend("--openapi", BATON_API_KEYS="alpha") as frontend:
        yield frontend


def test_every_route_is_there_and_no_other():
    link = SimpleNamespace(counts=RequestCounts())
    model = SimpleNamespace(vocab_size=1, folder=Path(), eos_token_ids=(), chat_template=None)
    app = create_app(link, model, ApiSettings(FrontendOptions(("model",), openapi=True, no_page=True)))
    assert isinstance(app, Traces)
    served = {(method.lower(), route.path_format) for route in app.routes for method in route.methods - {"HEAD"}}
    described = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert served == described | {("get", path) for path in OPENAPI_PATHS}


def test_every_reference_leads_somewhere():
    assert not request_schemas(allow_unknown=False).keys() & answer_schemas().keys(), "one name, one schema"
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(DOCUMENT)))
    assert named <= SCHEMAS.keys()
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_only_probes_need_no_key():
    is_open = {
        path for path, methods in DOCUMENT["paths"].items() if any("security" not in m for m in methods.values())
    }
    assert is_open == {"/health", "/ready"}
    assert "security" not in json.dumps(document(needs_keys=False)["paths"])


GOOD = [
    ("CompletionRequest", TEXT | {"prompt": prompt, "stop": stop})
    for prompt in ("x", ["x", "y"], [1, 2], [[1], [2, 3]])
    for stop in ("a", ["a", "b"], None)
] + [
    ("CompletionRequest", TEXT | {"logit_bias": {"5": -1.5}, "suffix": "", "stream_options": {"include_usage": False}}),
    ("ChatRequest", CHAT | {"tools": [TOOL], "tool_choice": "auto", "reasoning_effort": "low", "user": None}),
    ("ChatRequest", CHAT | {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "more": 1}]}]}),
    ("ChatRequest", CHAT | {"structured_outputs": {"json": "{}"}, "verbosity": "medium"}),
    ("MessageRequest", CHAT | {"system": "x", "tool_choice": {"type": "auto"}, "thread": None, "speed": "standard"}),
    ("MessageRequest", CHAT | {"tools": [{"name": "look", "input_schema": {}}], "stop_sequences": ["x"]}),
    ("MessageRequest", CHAT | {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "more": 1}]}]}),
    ("CountTokensRequest", {"model": MODEL, "messages": CHAT["messages"]}),
    *(("EmbeddingRequest", {"model": MODEL, "input": given}) for given in ("x", ["x", "y"], [1, 2], [[1], [2, 3]])),
    ("EmbeddingRequest", {"model": MODEL, "input": "x", "encoding_format": "base64", "dimensions": 3, "user": None}),
    (
        "RerankRequest",
        {"model": MODEL, "query": "x", "documents": ["y", {"text": "z"}], "top_n": 1, "rank_fields": None},
    ),
    ("ScoreRequest", {"model": MODEL, "text_1": "x", "text_2": ["y", "z"]}),
    ("TokenizeRequest", {"prompt": "x"}),
    ("DetokenizeRequest", {"tokens": []}),
    ("DrainRequest", {"finish": True}),
]
BAD = [
    ("CompletionRequest", {"model": MODEL}, "prompt"),
    ("CompletionRequest", TEXT | {"prompt": 5}, "prompt"),
    ("CompletionRequest", TEXT | {"suffix": "x"}, "suffix"),
    ("CompletionRequest", TEXT | {"strange": 1}, "strange"),
    ("CompletionRequest", TEXT | {"logit_bias": {"x": 1}}, "logit_bias"),
    ("ChatRequest", CHAT | {"temperature": 3}, "temperature"),
    ("ChatRequest", CHAT | {"functions": []}, "functions"),
    ("ChatRequest", CHAT | {"reasoning_effort": "much"}, "reasoning_effort"),
    ("ChatRequest", CHAT | {"messages": [{"role": "nobody"}]}, "messages[0].role"),
    ("MessageRequest", {"model": MODEL, "messages": CHAT["messages"]}, "max_tokens"),
    ("MessageRequest", CHAT | {"temperature": 1.5}, "temperature"),
    ("MessageRequest", CHAT | {"thread": {"type": "create"}}, "thread"),
    (
        "MessageRequest",
        CHAT | {"tools": [{"type": "bash_20250124", "name": "bash", "input_schema": {}}]},
        "tools[0].type",
    ),
    (
        "MessageRequest",
        CHAT | {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        "messages[0].content[0].type",
    ),
    ("CountTokensRequest", {"model": MODEL}, "messages"),
    ("DetokenizeRequest", {"tokens": "x"}, "tokens"),
    ("EmbeddingRequest", {"model": MODEL, "input": {}}, "input"),
    ("EmbeddingRequest", {"model": MODEL, "input": "x", "dimensions": 0}, "dimensions"),
    ("EmbeddingRequest", {"model": MODEL, "input": "x", "encoding_format": "hex"}, "encoding_format"),
    ("RerankRequest", {"model": MODEL, "query": "x", "documents": [{"title": "y"}]}, "documents"),
    ("RerankRequest", {"model": MODEL, "query": "x", "documents": []}, "documents"),
    ("ScoreRequest", {"model": MODEL, "text_1": "x"}, "text_2"),
]
MODELS = {model.__name__: model for model in REQUESTS}


@pytest.mark.parametrize(("name", "body"), GOOD)
def test_what_it_allows_is_taken(name: str, body: dict):
    check(name, body)
    parse(json.dumps(body).encode(), MODELS[name])


@pytest.mark.parametrize(("name", "body", "param"), BAD)
def test_what_it_does_not_allow_is_refused(name: str, body: dict, param: str):
    with pytest.raises(jsonschema.ValidationError):
        check(name, body)
    with pytest.raises(ApiError) as refused:
        parse(json.dumps(body).encode(), MODELS[name])
    assert (refused.value.status, refused.value.param) == (400, param)


def test_unknown_parameters_where_they_are_ignored():
    lenient = request_schemas(allow_unknown=True)
    assert lenient["ChatRequest"]["additionalProperties"] is True
    assert lenient["TokenizeRequest"]["additionalProperties"] is False


def test_answers_are_as_it_says(frontend: Frontend):
    with httpx.Client(
        verify=NO_TLS, base_url=frontend.url, headers={"authorization": "Bearer alpha"}, timeout=20
    ) as client:
        for path, body, name in (
            ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2, "n": 2}, "ChatCompletion"),
            ("/v1/completions", TEXT | {"logprobs": 2, "echo": True, "prompt_logprobs": 1}, "Completion"),
            ("/v1/messages", CHAT, "Message"),
            ("/v1/messages/count_tokens", CHAT, "MessageTokens"),
            ("/tokenize", {"prompt": "x", "return_token_strs": True}, "Tokenized"),
            ("/detokenize", {"tokens": [5, 6]}, "Detokenized"),
            ("/v1/embeddings", {"model": MODEL, "input": ["x", "y"]}, "EmbeddingList"),
            ("/v1/embeddings", {"model": MODEL, "input": "x", "encoding_format": "base64"}, "EmbeddingList"),
            ("/admin/executors/7/drain", {}, "Drained"),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            check(name, answer.json())
            content = DOCUMENT["paths"][re.sub("/7/", "/{executor}/", path)]["post"]["responses"]["200"]["content"]
            assert content["application/json"]["schema"]["$ref"].endswith(f"/{name}")
        for path, name in (
            ("/v1/models", "ModelList"),
            (f"/v1/models/{MODEL}", "ModelCard"),
            ("/version", "Version"),
            ("/health", "Health"),
            ("/ready", "Readiness"),
            ("/status", "StatusReport"),
            ("/nowhere", "ErrorAnswer"),
            ("/v1/models/none", "ErrorAnswer"),
            ("/v1/messages", "MessageErrorAnswer"),
        ):
            check(name, client.get(path).json())
        for path, body, name in (
            ("/v1/chat/completions", CHAT, "ChatCompletionChunk"),
            ("/v1/completions", TEXT, "Completion"),
        ):
            more = {
                "stream": True,
                "logprobs": 1 if "prompt" in body else True,
                "stream_options": {"include_usage": True},
            }
            lines = client.post(path, json=body | more).text.removesuffix("\n\n").split("\n\n")
            events = [{"data": line.removeprefix("data: ")} for line in lines if line.startswith("data: ")]
            described = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
            assert described["properties"]["data"]["contentSchema"] == {"$ref": f"#/components/schemas/{name}"}
            for event in events:
                jsonschema.Draft202012Validator(described | {"components": DOCUMENT["components"]}).validate(event)
            *chunks, done = (event["data"] for event in events)
            assert done == "[DONE]"
            assert json.loads(chunks[-1])["usage"]["total_tokens"]
            for chunk in chunks:
                check(name, json.loads(chunk))
        for line in client.post("/v1/messages", json=CHAT | {"stream": True}).text.removesuffix("\n\n").split("\n\n"):
            name, data = line.split("\ndata: ")
            check("MessageEvent", json.loads(data))
            assert json.loads(data)["type"] == name.removeprefix("event: ")


def test_document_and_page_need_no_key_and_no_other_server(frontend: Frontend):
    assert http.get(f"{frontend.url}/openapi.json").json() == DOCUMENT
    answer = http.get(f"{frontend.url}/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.text == page(DOCUMENT)
    assert "://" not in answer.text
    assert all(path in answer.text for path in DOCUMENT["paths"])
    assert http.post(f"{frontend.url}/docs").status_code == 401
