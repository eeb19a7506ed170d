"""What clients may ask of models that embed or score: OpenAI's parameters of embeddings; of reranking those that vLLM,
Cohere's and Jina's clients send."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SkipValidation, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from common.messages import MAX_PRIORITY
from scheduler_svc.frontend.requests.fields import INT32_MAX, Only, prompt_list
from scheduler_svc.frontend.requests.score_prompt import INSTRUCTION
from scheduler_svc.frontend.requests.strict import Allowing

MAX_INPUTS = 2048
MAX_DOCUMENTS = 1024
MAX_INSTRUCTION_CHARACTERS = 4096


def _text_list(value: Any) -> Any:
    """One text or several -> a list of texts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise PydanticCustomError("text_type", "it should be a string or a list of strings")


def _documents(value: Any) -> Any:
    """Documents, each as a text or as an object with one -> a list of texts."""
    if not isinstance(value, list):
        raise PydanticCustomError("documents_type", "it should be a list of strings or of objects with a 'text'")
    texts = [item.get("text") if isinstance(item, dict) else item for item in value]
    for number, (item, text) in enumerate(zip(value, texts, strict=True)):
        if isinstance(item, dict) and (others := sorted(item.keys() - {"text"})):
            raise PydanticCustomError(
                "unsupported_parameter",
                "only texts are ranked, and document {number} has {name} too",
                {"number": number, "name": repr(others[0][:50])},
            )
        if not isinstance(text, str):
            raise PydanticCustomError(
                "documents_type",
                "document {number} is neither a string nor an object with a 'text'",
                {"number": number},
            )
    return texts


def _minus_one_or_positive(length: int) -> int:
    if length == 0:
        raise PydanticCustomError("truncation", "it should be -1, for as much as fits, or greater than 0")
    return length


Texts = Annotated[list[SkipValidation[str]], BeforeValidator(_text_list), Field(min_length=1, max_length=MAX_DOCUMENTS)]


class PoolingRequest(Allowing):
    """The parameters of all endpoints that give pooled results."""

    model: str
    truncate_prompt_tokens: (
        Annotated[int, Field(ge=-1, le=INT32_MAX), AfterValidator(_minus_one_or_positive)] | None
    ) = None
    cache_salt: Annotated[str, Field(max_length=256)] = ""
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    timeout_s: Annotated[float, Field(gt=0.0, le=1e9)] | None = None
    user: str | None = None  # no result depends on it


class EmbeddingRequest(PoolingRequest):
    """POST /v1/embeddings."""

    input: Annotated[
        list[SkipValidation[str | list[int]]],  # `prompt_list` has looked at each of maybe 100,000 token ids
        BeforeValidator(prompt_list),
        Field(max_length=MAX_INPUTS),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    normalize: bool = True
    add_special_tokens: bool = True


class ScoringRequest(PoolingRequest):
    """The parameters of reranking and scoring."""

    instruction: Annotated[str, Field(max_length=MAX_INSTRUCTION_CHARACTERS)] = INSTRUCTION


class RerankRequest(ScoringRequest):
    """POST /v1/rerank, /rerank and /v2/rerank."""

    query: str
    documents: Annotated[
        list[SkipValidation[str]], BeforeValidator(_documents), Field(min_length=1, max_length=MAX_DOCUMENTS)
    ]
    top_n: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    return_documents: bool = False
    max_tokens_per_doc: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    max_chunks_per_doc: Annotated[Any, AfterValidator(Only())] = None
    rank_fields: Annotated[Any, AfterValidator(Only(["text"]))] = None


class ScoreRequest(ScoringRequest):
    """POST /score and /v1/score."""

    text_1: Texts
    text_2: Texts

    @field_validator("text_2")
    @classmethod
    def _are_pairs(cls, text_2: list[str], info: ValidationInfo) -> list[str]:
        num_1 = len(info.data.get("text_1", text_2))
        if num_1 not in (1, len(text_2)):
            raise PydanticCustomError(
                "pairs",
                "it has {num_2} texts, and 'text_1' has {num_1}: it should have 1, or as many",
                {"num_1": num_1, "num_2": len(text_2)},
            )
        return text_2
