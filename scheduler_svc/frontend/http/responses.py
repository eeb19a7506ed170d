"""HTTP answers that are not streamed: JSON of our structs, and errors."""

from fastapi import Response
from msgspec import Struct

from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.errors import ApiError

REQUEST_ID_HEADER = "x-request-id"


class ModelCard(Struct, frozen=True):
    """A model as /v1/models lists it; `max_model_len` is null until the first executor has joined."""

    id: str
    created: int
    max_model_len: int | None
    vocab_size: int
    object: str = "model"
    owned_by: str = "baton"


class ModelList(Struct, frozen=True):
    """Answer of /v1/models."""

    data: list[ModelCard]
    object: str = "list"


def json_response(value: Struct, headers: dict[str, str] | None = None) -> Response:
    """An HTTP answer with a struct in it."""
    return Response(to_json(value), headers=headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """The HTTP answer that carries an error."""
    return Response(error.body(), error.status, error.headers, media_type="application/json")
