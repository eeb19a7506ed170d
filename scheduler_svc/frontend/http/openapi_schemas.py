"""JSON schemas of what requests and answers contain, made from the classes that check and write them."""

from collections.abc import Iterator, Sequence
from typing import Any, get_type_hints

import msgspec
from pydantic import AfterValidator, BaseModel
from pydantic.json_schema import models_json_schema

from common.messages import StatusReport
from scheduler_svc.frontend.answers.batch_objects import Batch, BatchList, DeletedFile, FileList, FileObject
from scheduler_svc.frontend.answers.messages_api.objects import Message, MessageEvent, MessageTokens
from scheduler_svc.frontend.answers.openai_objects import ChatChoice, ChatChunkChoice, ChatCompletion, Completion
from scheduler_svc.frontend.answers.pooled_objects import EmbeddingList, Ranking, ScoreList
from scheduler_svc.frontend.answers.responses.objects import DeletedResponse, InputItems, Response
from scheduler_svc.frontend.errors import MessageErrorAnswer
from scheduler_svc.frontend.http.admin_api import Drained
from scheduler_svc.frontend.http.describe_api import Health, ModelCard, ModelList, Readiness, Version
from scheduler_svc.frontend.http.openapi_batches import UPLOAD
from scheduler_svc.frontend.requests.batches.schemas import BatchRequest
from scheduler_svc.frontend.requests.fields import DECIMAL, MAX_STOP_CHARACTERS, Instead, Only
from scheduler_svc.frontend.requests.messages_api.blocks import NEEDS
from scheduler_svc.frontend.requests.messages_api.schemas import CountTokensRequest, MessageRequest
from scheduler_svc.frontend.requests.pooled_schemas import (
    MAX_DOCUMENTS,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
)
from scheduler_svc.frontend.requests.responses.schemas import ResponseRequest
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest, DrainRequest
from scheduler_svc.frontend.requests.strict import Allowing
from scheduler_svc.frontend.requests.thinking import EFFORTS
from scheduler_svc.frontend.requests.tokenization import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest

Json = dict[str, Any]

REFERENCE = "#/components/schemas/"
REQUESTS: tuple[type[BaseModel], ...] = (
    *(CompletionRequest, ChatRequest, ResponseRequest, MessageRequest, CountTokensRequest),
    *(BatchRequest, EmbeddingRequest, RerankRequest, ScoreRequest, TokenizeRequest, DetokenizeRequest, DrainRequest),
)
GENERATING = ("CompletionRequest", "ChatRequest", "ResponseRequest")
TEXT: Json = {"type": "string"}
TOKEN_IDS: Json = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
OBJECT: Json = {"type": "object"}
DOCUMENT: Json = {
    "anyOf": [TEXT, OBJECT | {"properties": {"text": TEXT}, "required": ["text"], "additionalProperties": False}]
}

# What is taken beside what the classes say, because it is made into that before it is checked.
WIDER: dict[tuple[str, str], Json] = {
    ("CompletionRequest", "prompt"): {"anyOf": [TEXT, TOKEN_IDS]},
    ("EmbeddingRequest", "input"): {"anyOf": [TEXT, TOKEN_IDS]},
    ("ScoreRequest", "text_1"): TEXT,
    ("ScoreRequest", "text_2"): TEXT,
    ("ChatMessage", "content"): TEXT,
    ("ResponseRequest", "input"): TEXT,
    ("MessageItem", "content"): TEXT,
    ("FunctionCallOutputItem", "output"): TEXT,
    **{(name, "content"): TEXT for name in ("Turn", "Block")},
    **{(name, "system"): TEXT for name in ("MessageRequest", "CountTokensRequest")},
    ("StructuredOutputs", "json"): TEXT,
    ("StructuredOutputs", "structural_tag"): TEXT,
    **{(name, "stop"): TEXT | {"minLength": 1, "maxLength": MAX_STOP_CHARACTERS} for name in GENERATING},
    **{(name, "guided_json"): TEXT for name in ("CompletionRequest", "ChatRequest")},
}
# What the classes do not say.
INSTEAD: dict[tuple[str, str], Json] = {
    ("Block", "type"): {"enum": [*NEEDS]},
    ("MessageTool", "type"): {"enum": ["custom"]},
    **{(name, "type"): {"enum": ["text"]} for name in ("ResultText", "SystemText")},
    ("RerankRequest", "documents"): {"type": "array", "items": DOCUMENT, "minItems": 1, "maxItems": MAX_DOCUMENTS},
    ("ChatRequest", "reasoning_effort"): {"enum": [*EFFORTS]},
    ("Reasoning", "effort"): {"enum": [*EFFORTS]},
    **{
        (name, "tool_choice"): {"anyOf": [{"enum": ["none", "auto", "required"]}, OBJECT]}
        for name in ("ChatRequest", "ResponseRequest")
    },
    **{
        (name, "logit_bias"): OBJECT
        | {"propertyNames": {"pattern": f"^({DECIMAL})$"}, "additionalProperties": {"type": "number"}}
        for name in GENERATING
    },
}


class Error(msgspec.Struct, frozen=True):
    """What went wrong; `param` names the parameter at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The answer of every request that is refused or fails."""

    error: Error


def request_schemas(*, allow_unknown: bool) -> Json:
    """Schemas of all requests, and of what they consist of, by name.

    Args:
        allow_unknown: whether requests to models may have fields that they do not name.
    """
    _, whole = models_json_schema([(model, "validation") for model in REQUESTS], ref_template=REFERENCE + "{model}")
    schemas: Json = whole["$defs"]
    for name, schema in schemas.items():
        schema["properties"] = {
            field: _field(name, field, declared, is_required=field in schema.get("required", ()))
            for field, declared in schema.get("properties", {}).items()
        }
    for model in REQUESTS:
        for field, off in _off_values(model):
            schemas[model.__name__]["properties"][field] = {"enum": [*off, None], "description": "Not supported."}
    if allow_unknown:
        for model in (model for model in REQUESTS if issubclass(model, Allowing)):
            schemas[model.__name__]["additionalProperties"] = True
    del schemas["ToolChoice"]  # what `tool_choice` is made into
    return schemas | {"Upload": UPLOAD}


def answer_schemas() -> Json:
    """Schemas of all answers, and of what they consist of, by name."""
    answers = [
        *(Completion, _with_choices("ChatCompletion", list[ChatChoice])),
        *(_with_choices("ChatCompletionChunk", list[ChatChunkChoice]), ErrorAnswer),
        *(Message, MessageTokens, MessageErrorAnswer, Response, DeletedResponse, InputItems),
        *(FileObject, FileList, DeletedFile, Batch, BatchList, EmbeddingList, Ranking, ScoreList),
        *(ModelList, ModelCard, Version, Health, Readiness, StatusReport, Drained, Tokenized, Detokenized),
    ]
    named, schemas = msgspec.json.schema_components([*answers, MessageEvent], ref_template=REFERENCE + "{name}")
    return {**schemas, "MessageEvent": named[-1]}


def _with_choices(name: str, choices: Any) -> type[msgspec.Struct]:
    """ChatCompletion, which stands for whole answers and for chunks, as one of them."""
    kinds = get_type_hints(ChatCompletion) | {"choices": choices}
    fields: list[Any] = [
        (field.name, kinds[field.name]) if field.required else (field.name, kinds[field.name], field.default)
        for field in msgspec.structs.fields(ChatCompletion)
    ]
    return msgspec.defstruct(name, fields, namespace={"__doc__": ChatCompletion.__doc__})


def _field(schema: str, field: str, declared: Json, *, is_required: bool) -> Json:
    """The schema of one field: `null` means that an optional one is absent."""
    said = {key: declared[key] for key in ("default", "description") if key in declared}
    kinds: Sequence[Json] = declared.get("anyOf") or [
        {key: value for key, value in declared.items() if key not in ("title", "default", "description")}
    ]
    if instead := INSTEAD.get((schema, field)):
        kinds = [instead]
    if wider := WIDER.get((schema, field)):
        kinds = [wider, *kinds]
    if not is_required and kinds != [{}] and {"type": "null"} not in kinds:
        kinds = [*kinds, {"type": "null"}]
    return ({"anyOf": [*kinds]} if len(kinds) > 1 else kinds[0]) | said


def _off_values(model: type[BaseModel]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Parameters that are not built, with the values that turn them off."""
    for name, field in model.model_fields.items():
        for check in field.metadata:
            if isinstance(check, AfterValidator) and isinstance(check.func, Only):
                yield name, check.func.values
            elif isinstance(check, AfterValidator) and isinstance(check.func, Instead):
                yield name, ()
