"""Answers with pooled results: OpenAI's list of embeddings, vLLM's scores, and the ranking that Cohere's, Jina's and
vLLM's clients read, each its own part of it."""

from msgspec import UNSET, Struct, UnsetType

from scheduler_svc.frontend.answers.openai_objects import PromptTokensDetails


class PooledUsage(Struct, frozen=True):
    """Tokens that were read; none are written."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Embedding(Struct, frozen=True):
    """One input's: numbers, or base64 of them as little-endian float32."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingList(Struct, frozen=True):
    """Answer of /v1/embeddings."""

    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: PooledUsage
    object: str = "list"


class RankedDocument(Struct, frozen=True):
    """A document as it was sent."""

    text: str


class Ranked(Struct, frozen=True):
    """A document's place in the request, and how relevant it is to the query, 0 to 1."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class ApiVersion(Struct, frozen=True):
    """Of Cohere's API."""

    version: str


class BilledUnits(Struct, frozen=True):
    """What Cohere would count: one query."""

    search_units: int = 1


class RankingMeta(Struct, frozen=True):
    """What Cohere's clients read beside the results."""

    api_version: ApiVersion
    billed_units: BilledUnits


class Ranking(Struct, frozen=True):
    """Answer of /v1/rerank, /v2/rerank and /rerank; the most relevant document comes first."""

    id: str
    model: str
    results: list[Ranked]
    usage: PooledUsage
    meta: RankingMeta
    object: str = "list"


class Score(Struct, frozen=True):
    """One pair's, 0 to 1."""

    index: int
    score: float
    object: str = "score"


class ScoreList(Struct, frozen=True):
    """Answer of /score and /v1/score."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: PooledUsage
    object: str = "list"
