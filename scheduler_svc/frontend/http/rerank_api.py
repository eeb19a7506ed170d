"""The endpoints that say how relevant documents are: reranking as Cohere, Jina and vLLM have it, and vLLM's scores."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Struct

from scheduler_svc.frontend.answers.pooled import PooledAnswer, margin, relevance, short_floats
from scheduler_svc.frontend.answers.pooled_objects import (
    ApiVersion,
    BilledUnits,
    Ranked,
    RankedDocument,
    Ranking,
    RankingMeta,
    Score,
    ScoreList,
)
from scheduler_svc.frontend.http.json_body import read_body
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.http.plain_answers import ANSWER, ANSWER_ID, IS_SUBMITTED, REQUEST_ID_HEADER, json_response
from scheduler_svc.frontend.http.streaming import unless_disconnected
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.pooled_request import PooledRequest
from scheduler_svc.frontend.requests.pooled_schemas import RerankRequest, ScoreRequest
from scheduler_svc.frontend.requests.pooling_model import PoolingModel, task_state
from scheduler_svc.frontend.requests.reader import RequestReader
from scheduler_svc.frontend.requests.scoring import tokenize_rerank, tokenize_score, work_of
from scheduler_svc.frontend.text.long_work import LongWork
from scheduler_svc.frontend.tracing.notes import answers_pooled, asked_pooled

RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
SCORE_PATHS = ("/score", "/v1/score")

Margins = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shown:
    """What a rerank request's answer shows.

    Attributes:
        top_n: of the documents, None for all.
        documents: their texts, None if the answer has none.
    """

    top_n: int | None
    documents: list[str] | None

    @staticmethod
    def of(body: RerankRequest) -> "Shown":
        """What `body` asks for."""
        return Shown(body.top_n, body.documents if body.return_documents else None)


class RerankApi:
    """POST /v1/rerank and /score, and their other names.

    Args:
        model: that scores.
        long_work: threads for long texts, which others have work for, too.
    """

    def __init__(self, link: CoreLink, reader: RequestReader, model: PoolingModel, long_work: LongWork) -> None:
        self._link = link
        self._reader = reader
        self._model = model
        self._long_work = long_work
        self.router = APIRouter()
        for path in RERANK_PATHS:
            self.router.post(path, response_model=None)(self.rerank)
        for path in SCORE_PATHS:
            self.router.post(path, response_model=None)(self.score)

    async def rerank(self, request: Request) -> Response:
        """A query's documents, the most relevant one first."""
        pooled, shown = await self._read_rerank(request)
        version = "2" if request.url.path.startswith("/v2/") else "1"
        return await self._answer(
            request, pooled, lambda answer, margins: ranking(shown, margins, answer, self._model.names[0], version)
        )

    async def score(self, request: Request) -> Response:
        """How relevant the second text of each pair is to its first."""
        pooled = await self._read_score(request)
        return await self._answer(
            request, pooled, lambda answer, margins: _score_list(margins, answer, self._model.names[0])
        )

    # These end before the answer does, and a request's body with them.

    async def _read_rerank(self, request: Request) -> tuple[PooledRequest, Shown]:
        async with read_body(request) as raw:
            body = await self._reader.parse(raw, RerankRequest, client_of(request), self._model.names)
            state = task_state(self._link, "score")
            size = work_of(len(raw), body, self._model, [body.query], body.documents)
            pooled = await self._long_work.run(
                client_of(request).id, size, lambda: tokenize_rerank(body, self._model, state)
            )
        return pooled, Shown.of(body)

    async def _read_score(self, request: Request) -> PooledRequest:
        async with read_body(request) as raw:
            body = await self._reader.parse(raw, ScoreRequest, client_of(request), self._model.names)
            state = task_state(self._link, "score")
            size = work_of(len(raw), body, self._model, body.text_1, body.text_2)
            return await self._long_work.run(
                client_of(request).id, size, lambda: tokenize_score(body, self._model, state)
            )

    async def _answer(
        self, request: Request, pooled: PooledRequest, write: Callable[[PooledAnswer, Margins], Struct]
    ) -> Response:
        request.scope[ANSWER_ID] = pooled.request_id
        asked_pooled(request.scope, pooled, self._model.names[0])
        client = client_of(request)
        answer = await pooled.open(self._link, client)
        request.scope[ANSWER] = answer
        answers_pooled(request.scope, answer, client.id)
        request.scope[IS_SUBMITTED] = True
        with answer:
            margins = await unless_disconnected(request.receive, _margins(answer))
        return json_response(write(answer, margins), {REQUEST_ID_HEADER: pooled.request_id})


async def _margins(answer: PooledAnswer) -> Margins:
    """Each input's margin, float64 [inputs]."""
    margins = np.zeros(answer.num_inputs)
    async for number, logits in answer.results():
        margins[number] = margin(logits)
    return margins


def ranking(shown: Shown, margins: Margins, answer: PooledAnswer, model: str, version: str) -> Ranking:
    """The answer of a rerank request. Of equal margins, the earlier document comes first.

    Args:
        margins: float64 [documents].
        model: its name in the answer.
        version: of Cohere's API, whose client is told.
    """
    order = np.argsort(-margins, kind="stable")[: shown.top_n].tolist()
    scores = short_floats(relevance(margins[order]))
    texts = [UNSET if shown.documents is None else RankedDocument(shown.documents[i]) for i in order]
    results = [Ranked(index, score, text) for index, score, text in zip(order, scores, texts, strict=True)]
    return Ranking(answer.answer_id, model, results, answer.usage, RankingMeta(ApiVersion(version), BilledUnits()))


def _score_list(margins: Margins, answer: PooledAnswer, model: str) -> ScoreList:
    data = [Score(index, score) for index, score in enumerate(short_floats(relevance(margins)))]
    return ScoreList(answer.answer_id, int(time.time()), model, data, answer.usage)
