"""The API as an OpenAPI document, and as a page for people.

FastAPI could make the document if it read the bodies; here they are read as bytes, so that they can be counted before
they are decoded. The page needs no other server: FastAPI's own loads its scripts from one.
"""

import json
from html import escape

from fastapi import APIRouter, Response

from common import __version__
from scheduler_svc.frontend.errors import SHOULD_RETRY_HEADER
from scheduler_svc.frontend.http.middleware import API_KEY_HEADER, METRICS_PATH
from scheduler_svc.frontend.http.openapi_batches import BATCH_OPERATIONS
from scheduler_svc.frontend.http.openapi_operation import EVENTS, JSON, TEXT, Operation
from scheduler_svc.frontend.http.openapi_responses import RESPONSES_OPERATIONS
from scheduler_svc.frontend.http.openapi_schemas import REFERENCE, Json, answer_schemas, request_schemas
from scheduler_svc.frontend.http.plain_answers import MESSAGES_PATH, REQUEST_ID_HEADER
from scheduler_svc.frontend.http.rerank_api import RERANK_PATHS, SCORE_PATHS

DESCRIPTION = (
    "OpenAI's API for chats, completions, responses, embeddings, files and batches, with vLLM's parameters, "
    f"Anthropic's Messages, and reranking. Every answer has the header `{REQUEST_ID_HEADER}`, the request's own if it "
    f"has one; every error has `{SHOULD_RETRY_HEADER}`."
)
HEAD = """<!doctype html><meta charset=utf-8><title>Baton</title>
<style>body{font:15px sans-serif;margin:2em auto;max-width:60em}td{padding:.15em 1em .15em 0;vertical-align:top}</style>
<h1>Baton</h1>"""
OPENAPI_PATHS = ("/openapi.json", "/docs")


OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a conversation.",
        "ChatRequest",
        {JSON: "ChatCompletion", EVENTS: "ChatCompletionChunk"},
    ),
    Operation(
        "post",
        "/v1/completions",
        "Continue one prompt or several.",
        "CompletionRequest",
        {JSON: "Completion", EVENTS: "Completion"},
    ),
    *RESPONSES_OPERATIONS,
    *BATCH_OPERATIONS,
    Operation(
        "post",
        MESSAGES_PATH,
        "Answer a conversation, as Anthropic's API does.",
        "MessageRequest",
        {JSON: "Message", EVENTS: "MessageEvent"},
        error="MessageErrorAnswer",
        last_event="The last one is message_stop.",
    ),
    Operation(
        "post",
        f"{MESSAGES_PATH}/count_tokens",
        "How many tokens such a conversation has.",
        "CountTokensRequest",
        {JSON: "MessageTokens"},
        error="MessageErrorAnswer",
    ),
    Operation("post", "/v1/embeddings", "A vector for each input.", "EmbeddingRequest", {JSON: "EmbeddingList"}),
    *(
        Operation("post", path, "A query's documents by relevance.", "RerankRequest", {JSON: "Ranking"})
        for path in RERANK_PATHS
    ),
    *(
        Operation("post", path, "How relevant texts are to texts.", "ScoreRequest", {JSON: "ScoreList"})
        for path in SCORE_PATHS
    ),
    Operation(
        "get",
        "/v1/requests/{request_id}/events",
        "The rest of an answer, after the event `Last-Event-ID`.",
        answers={EVENTS: ""},
        headers=("Last-Event-ID",),
    ),
    Operation("delete", "/v1/requests/{request_id}", "Cancel a request."),
    Operation("post", "/tokenize", "Token ids of a text or a conversation.", "TokenizeRequest", {JSON: "Tokenized"}),
    Operation("post", "/detokenize", "The text of token ids.", "DetokenizeRequest", {JSON: "Detokenized"}),
    Operation("get", "/v1/models", "The models, each once for each of its names.", answers={JSON: "ModelList"}),
    Operation("get", "/v1/models/{model_id}", "A model, by one of its names.", answers={JSON: "ModelCard"}),
    Operation("get", "/version", "Of the service.", answers={JSON: "Version"}),
    Operation("get", "/health", "Whether the service lives.", answers={JSON: "Health"}, is_open=True),
    Operation("get", "/ready", "Whether an executor is ready.", answers={JSON: "Readiness"}, is_open=True),
    Operation("get", "/status", "The service's state; needs a key that may read it.", answers={JSON: "StatusReport"}),
    Operation(
        "get",
        "/metrics",
        "For Prometheus; needs a key that may read it, unless --open-metrics lifts that.",
        answers={TEXT: ""},
    ),
    Operation(
        "post",
        "/admin/executors/{executor}/drain",
        "Let an executor leave; needs an administrator's key.",
        "DrainRequest",
        {JSON: "Drained"},
        is_optional=True,
    ),
)


class OpenApi:
    """GET /openapi.json and /docs, both made at the start. They tell nothing of this service, and need no key.

    Args:
        needs_keys: whether requests need API keys.
        allow_unknown: whether requests may have unknown parameters.
        open_metrics: whether /metrics needs none of these keys.
    """

    def __init__(self, *, needs_keys: bool, allow_unknown: bool, open_metrics: bool) -> None:
        whole = document(needs_keys=needs_keys, allow_unknown=allow_unknown, open_metrics=open_metrics)
        self._json = json.dumps(whole).encode()
        self._html = page(whole).encode()
        self.router = APIRouter()
        self.router.get("/openapi.json", response_model=None)(self.openapi)
        self.router.get("/docs", response_model=None)(self.docs)

    async def openapi(self) -> Response:
        """The document."""
        return Response(self._json, media_type=JSON)

    async def docs(self) -> Response:
        """The page."""
        return Response(self._html, media_type="text/html; charset=utf-8")


def document(*, needs_keys: bool, allow_unknown: bool = False, open_metrics: bool = False) -> Json:
    """The API in OpenAPI 3.1."""
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        is_open = operation.is_open or (open_metrics and operation.path == METRICS_PATH)
        described = _described(operation, needs_key=needs_keys and not is_open)
        paths.setdefault(operation.path, {})[operation.method] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Baton",
            "version": __version__,
            "description": DESCRIPTION,
        },
        "paths": paths,
        "components": {
            "schemas": request_schemas(allow_unknown=allow_unknown) | answer_schemas(),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "api_key": {"type": "apiKey", "in": "header", "name": API_KEY_HEADER},
            },
        },
    }


def page(whole: Json) -> str:
    """A page with every endpoint and every parameter."""
    parts = [HEAD, f"<p>{escape(DESCRIPTION)}<p><a href=openapi.json>openapi.json</a>"]
    schemas: Json = whole["components"]["schemas"]
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h3><code>{method.upper()} {escape(path)}</code></h3><p>{escape(operation['summary'])}")
    for name in sorted(schemas):
        parts.append(f"<h4 id={name}>{name}</h4><p>{escape(schemas[name].get('description', ''))}<table>")
        for parameter, schema in schemas[name].get("properties", {}).items():
            told = escape(json.dumps(schema).replace(REFERENCE, ""))
            parts.append(f"<tr><td><code>{escape(parameter)}</code><td><code>{told}</code>")
        parts.append("</table>")
    return "\n".join(parts)


def _described(operation: Operation, *, needs_key: bool) -> Json:
    headers = {REQUEST_ID_HEADER: {"schema": {"type": "string"}}}
    content = {kind: _content(kind, schema, operation.last_event) for kind, schema in operation.answers.items()}
    success: Json = {"description": "Success.", "headers": headers} | ({"content": content} if content else {})
    should_retry = {"schema": {"enum": ["true", "false"]}}
    described: Json = {
        "summary": operation.summary,
        "parameters": [*_parameters(operation)],
        "responses": {
            "200" if content else "204": success,
            "default": {
                "description": "The request was refused, or failed.",
                "headers": headers | {SHOULD_RETRY_HEADER: should_retry, "retry-after": {"schema": {"type": "string"}}},
                "content": {JSON: _content(JSON, operation.error)},
            },
        },
    }
    if operation.body:
        content = {operation.body_type: _content(operation.body_type, operation.body)}
        described["requestBody"] = {"required": not operation.is_optional, "content": content}
    if needs_key:
        described["security"] = [{"key": []}, {"api_key": []}]
    return described


def _parameters(operation: Operation) -> list[Json]:
    in_path = [part.strip("{}") for part in operation.path.split("/") if part.startswith("{")]
    text = {"type": "string"}
    return [
        *({"name": name, "in": "path", "required": True, "schema": text} for name in in_path),
        *({"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()),
        *({"name": name, "in": "header", "schema": text} for name in (*operation.headers, REQUEST_ID_HEADER)),
    ]


def _content(kind: str, schema: str, last_event: str = "") -> Json:
    """A body of this media type. OpenAPI 3.1 does not say what the schema of events describes; here, as tools have it,
    each event."""
    if kind == EVENTS:
        data: Json = {"type": "string", "contentMediaType": JSON}
        data |= {"contentSchema": {"$ref": REFERENCE + schema}} if schema else {}
        text = {"type": "string"}
        event = {"type": "object", "properties": {"event": text, "data": data, "id": text}, "required": ["data"]}
        return {"schema": {"description": f"A server-sent event. {last_event}"} | event}
    return {"schema": {"$ref": REFERENCE + schema} if schema else {"type": "string"}}
