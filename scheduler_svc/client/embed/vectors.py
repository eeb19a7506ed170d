"""Vectors of many texts, asked for some at a time."""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scheduler_svc.client.errors import RequestFailed

if TYPE_CHECKING:
    from scheduler_svc.client.http.api import Api, Json

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Asked:
    """What to embed, and how.

    Attributes:
        dimensions: to keep; None for all.
        truncate: tokens of a text at most, -1 for as many as the model takes; None refuses longer ones.
    """

    texts: Sequence[str]
    dimensions: int | None
    normalize: bool
    truncate: int | None

    def body(self, start: int, end: int) -> "Json":
        """The request for some of the texts, without its model."""
        body: Json = {"input": list(self.texts[start:end]), "encoding_format": "base64", "normalize": self.normalize}
        options = {"dimensions": self.dimensions, "truncate_prompt_tokens": self.truncate}
        return body | {name: value for name, value in options.items() if value is not None}


def embedded(api: "Api", model: str | None, asked: Asked, batch: int) -> Iterator[tuple[int, Vector]]:
    """Each text's number with its vector, in order.

    Args:
        model: its name; None for the first one that embeds.
        batch: texts in one request.

    Raises:
        RequestFailed: the service refuses a request, or its answer is none.
    """
    name = model or api.patiently(lambda: embedding_model(api))
    for start in range(0, len(asked.texts), batch):
        body = asked.body(start, start + batch)
        answer = api.patiently(lambda: api.post("/v1/embeddings", {"model": name, **body}))  # noqa: B023  # called at once
        vectors = _vectors(answer)
        if len(vectors) != len(body["input"]):
            raise RequestFailed(f"the service answered {len(body['input'])} texts with {len(vectors)} vectors")
        yield from enumerate(vectors, start)


def embedding_model(api: "Api") -> str:
    """The first model that says that it embeds, or else the first one: other services do not say it."""
    models = api.models()
    found = next((model for model in models if "embed" in (model.get("tasks") or ())), None)
    return str((found or api.first_model())["id"])


def _vectors(answer: "Json") -> list[Vector]:
    try:
        entries = sorted(answer["data"], key=lambda entry: entry["index"])
        return [np.frombuffer(base64.b64decode(entry["embedding"], validate=True), "<f4") for entry in entries]
    except (KeyError, TypeError, ValueError) as error:
        raise RequestFailed(f"this is no list of embeddings: {error}") from error
