"""docs/api.md says what the code does: endpoints, parameters with defaults and limits, headers, errors."""

import ast
import json
import re

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from scheduler_svc.frontend.errors import _STATUS_OF_CODE
from scheduler_svc.frontend.http.callers import PROXY_HEADERS, PROXY_PREFIX
from scheduler_svc.frontend.http.openapi import OPENAPI_PATHS, OPERATIONS
from scheduler_svc.frontend.http.rate_limit_headers import ANTHROPIC_HEADERS
from scheduler_svc.frontend.requests.batches.schemas import BatchRequest
from scheduler_svc.frontend.requests.messages_api.schemas import MessageRequest
from scheduler_svc.frontend.requests.off_values import OffForAll, OffForChats, OffForCompletions, OffForMessages
from scheduler_svc.frontend.requests.pooled_schemas import EmbeddingRequest, RerankRequest, ScoreRequest
from scheduler_svc.frontend.requests.responses.schemas import ResponseRequest
from scheduler_svc.frontend.requests.sampling import SamplingFields
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest, GenerationRequest
from scheduler_svc.frontend.requests.validation import _CODE_OF_PYDANTIC_TYPE
from tests import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text()
FRONTEND = sorted((ROOT / "scheduler_svc" / "frontend").rglob("*.py"))
CORE = sorted((ROOT / "scheduler_svc" / "core").rglob("*.py"))
# Names of HTTP's own headers that the frontend has as texts; those that begin with x- need no list.
STANDARD_HEADERS = {
    *("authorization", "content-type", "content-encoding", "last-event-id", "retry-after", "www-authenticate", "allow"),
    *("cache-control", "connection", "request-id", "traceparent", "tracestate", "host", "origin", "sec-fetch-site"),
}
STANDARD_HEADERS |= {name for names in ANTHROPIC_HEADERS for name in names}
# Proxies'; one of the page for people; keys of JSON schemas and of OpenAPI.
NOT_OURS = PROXY_HEADERS | {PROXY_PREFIX, "x-content-type-options", "x-guidance", "x-event-data"}
TABLES = {
    "Both endpoints": set(GenerationRequest.model_fields),
    "Completions": set(CompletionRequest.model_fields) - set(GenerationRequest.model_fields),
    "Chats": set(ChatRequest.model_fields) - set(GenerationRequest.model_fields),
    "Responses": set(ResponseRequest.model_fields) - set(SamplingFields.model_fields),
    "Messages": set(MessageRequest.model_fields),
    "Batches": set(BatchRequest.model_fields),
    "Embeddings": set(EmbeddingRequest.model_fields),
    "Reranking": set(RerankRequest.model_fields),
    "Scores": set(ScoreRequest.model_fields),
}
SCHEMAS: dict[str, type[BaseModel]] = {
    "Both endpoints": GenerationRequest,
    "Completions": CompletionRequest,
    "Chats": ChatRequest,
    "Responses": ResponseRequest,
    "Messages": MessageRequest,
    "Batches": BatchRequest,
    "Embeddings": EmbeddingRequest,
    "Reranking": RerankRequest,
    "Scores": ScoreRequest,
}
ENDPOINTS = {heading: heading.lower() for heading in TABLES}
ENDPOINTS |= {"Both endpoints": "both", "Reranking": "rerank", "Scores": "score"}
OFF = {name for off in (OffForAll, OffForChats, OffForCompletions, OffForMessages) for name in off.model_fields}


def section(heading: str) -> str:
    match = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert match, f"docs/api.md has no part {heading!r}"
    return match.group(1)


def rows(heading: str) -> list[list[str]]:
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def parameters() -> list[tuple[str, FieldInfo, list[str]]]:
    return [
        (names(row[0])[0], SCHEMAS[heading].model_fields[names(row[0])[0]], row)
        for heading in TABLES
        for row in rows(heading)
    ]


def test_every_endpoint_is_in_the_table_and_says_whether_it_needs_a_key():
    documented = {name: row[2] for row in rows("Endpoints") for name in names(row[0])}
    is_open = {f"{operation.method.upper()} {operation.path}": operation.is_open for operation in OPERATIONS}
    is_open |= {f"GET {path}": True for path in OPENAPI_PATHS}
    assert {name: needs == "nothing" for name, needs in documented.items()} == is_open


@pytest.mark.parametrize("heading", TABLES)
def test_every_parameter_is_in_its_table_and_no_other(heading):
    documented = [names(row[0])[0] for row in rows(heading)]
    assert len(documented) == len(set(documented))
    off = [row for row in rows("Accepted with the value that turns them off") if row[1] == ENDPOINTS[heading]]
    elsewhere = {name for row in off for name in names(row[0])}
    metadata = set(names(section("Accepted with the value that turns them off").split("No token depends on")[1]))
    assert TABLES[heading] - elsewhere - metadata <= set(documented) <= TABLES[heading] - elsewhere


def test_values_that_turn_parameters_off_are_those_that_are_accepted():
    part = section("Accepted with the value that turns them off")
    metadata = names(part.split("No token depends on")[1])
    seen = set(metadata)
    for row in rows("Accepted with the value that turns them off"):
        chats, completions = (ChatRequest,), (CompletionRequest,)
        schemas: dict[str, tuple[type[BaseModel], ...]] = {"both": chats + completions}
        schemas |= {"chats": chats, "completions": completions, "responses": (ResponseRequest,)}
        schemas |= {"messages": (MessageRequest,), "rerank": (RerankRequest,)}
        for name in names(row[0]):
            seen.add(name)
            value = json.loads(names(row[2])[0])
            for schema in schemas[row[1]]:
                body = minimal(schema)
                schema.model_validate({**body, name: value})
                with pytest.raises(ValueError, match=name):
                    schema.model_validate({**body, name: {"another": "value"}})
    assert seen >= OFF


def minimal(schema: type[BaseModel]) -> dict[str, object]:
    if schema is ResponseRequest:
        return {"model": "m", "input": "Hi"}
    if schema is RerankRequest:
        return {"model": "m", "query": "Hi", "documents": ["Ho"]}
    if schema in (ChatRequest, MessageRequest):
        return {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    return {"model": "m", "prompt": "Hi"}


@pytest.mark.parametrize(("name", "field", "row"), parameters(), ids=lambda each: each if isinstance(each, str) else "")
def test_defaults_and_limits_of_a_parameter(name, field, row):
    default, values = row[1], row[2]
    if field.default is PydanticUndefined:
        assert default == "required"
    elif field.default is None:
        assert not default.startswith("`") or name in ("tool_choice", "add_generation_prompt")
    else:
        assert json.loads(names(default)[0]) == field.default
    for limit in limits(field):
        assert limit in re.findall(r"-?\d+(?:\.\d+)?", values), f"{name}: {limit} is not in {values!r}"


def limits(field: FieldInfo) -> list[str]:
    """Bounds of numbers and lengths, as they are written: of the field itself and of what a list has."""
    kinds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "maxItems")
    found = [value for kind in kinds for value in deep(json_schema(field), kind)]
    return [f"{value:g}" if abs(value) < 1e6 else str(int(value)) for value in found]


def json_schema(field: FieldInfo) -> object:
    try:
        return TypeAdapter(field.rebuild_annotation()).json_schema()
    except PydanticInvalidForJsonSchema:  # read by a function of ours alone
        return {}


def deep(schema: object, kind: str) -> list[float]:
    match schema:
        case dict():
            own = [schema[kind]] if isinstance(schema.get(kind), int | float) else []
            inner = [deep(value, kind) for key, value in schema.items() if key != "$defs"]
            return own + [value for values in inner for value in values]
        case list():
            return [value for each in schema for value in deep(each, kind)]
    return []


def test_every_code_of_an_error_is_in_the_table_with_its_status():
    documented: dict[str, set[int]] = {}
    for row in rows("Errors"):
        for code in names(row[1]):
            documented.setdefault(code, set()).add(int(row[0]))
    said = {code: {status} for code, status in _STATUS_OF_CODE.items()}
    said |= {code: {400} for code in _CODE_OF_PYDANTIC_TYPE.values()}
    for code, status in raised():
        said.setdefault(code, set())
        said[code] |= {status} if status else set()
    assert documented.keys() == said.keys()
    for code, statuses in said.items():
        assert statuses <= documented[code], f"{code} has {statuses}"


def raised() -> list[tuple[str, int | None]]:
    """Codes in calls of ApiError and RequestRejected, each with its status if that is written there."""
    found: list[tuple[str, int | None]] = []
    for path in [*FRONTEND, *CORE]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("ApiError", "RequestRejected", "cls"):
                status = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
                codes = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                if node.func.id == "RequestRejected":
                    codes, status = node.args[1:2], None
                texts = [code.value for code in codes if isinstance(code, ast.Constant)]
                found += [(text, status if isinstance(status, int) else None) for text in texts]
    return found


def test_every_header_is_in_the_table():
    documented = {name for row in rows("Headers") for name in names(row[0])}
    texts = {
        node.value
        for path in FRONTEND
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    ours = {text for text in texts if re.fullmatch(r"x-[a-z-]+", text)} - NOT_OURS
    assert ours | (texts & STANDARD_HEADERS) == documented
