"""OpenAI's endpoint for embeddings."""

from fastapi import APIRouter, Request, Response

from scheduler_svc.frontend.answers.embedding_json import EmbeddingWriter
from scheduler_svc.frontend.http.json_body import read_body
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.http.plain_answers import ANSWER, ANSWER_ID, IS_SUBMITTED, REQUEST_ID_HEADER, PartsResponse
from scheduler_svc.frontend.http.streaming import unless_disconnected
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.embedding import tokenize_embedding
from scheduler_svc.frontend.requests.pooled_request import PooledRequest
from scheduler_svc.frontend.requests.pooled_schemas import EmbeddingRequest
from scheduler_svc.frontend.requests.pooling_model import PoolingModel, task_state
from scheduler_svc.frontend.requests.reader import RequestReader
from scheduler_svc.frontend.text.long_work import LongWork
from scheduler_svc.frontend.tracing.notes import answers_pooled, asked_pooled


class EmbeddingsApi:
    """POST /v1/embeddings.

    Args:
        model: that embeds.
        long_work: threads for long texts, which others have work for, too.
    """

    def __init__(self, link: CoreLink, reader: RequestReader, model: PoolingModel, long_work: LongWork) -> None:
        self._link = link
        self._reader = reader
        self._model = model
        self._long_work = long_work
        self.router = APIRouter()
        self.router.post("/v1/embeddings", response_model=None)(self.embeddings)

    async def embeddings(self, request: Request) -> Response:
        """A vector for each input."""
        pooled, writer = await self._read(request)
        request.scope[ANSWER_ID] = pooled.request_id
        asked_pooled(request.scope, pooled, self._model.names[0])
        client = client_of(request)
        answer = await pooled.open(self._link, client)
        request.scope[ANSWER] = answer
        answers_pooled(request.scope, answer, client.id)
        request.scope[IS_SUBMITTED] = True
        with answer:
            parts = await unless_disconnected(request.receive, writer.write(answer, self._model.names[0]))
        return PartsResponse(parts, {REQUEST_ID_HEADER: pooled.request_id})

    async def _read(self, request: Request) -> tuple[PooledRequest, EmbeddingWriter]:
        """A request, tokenized, and what writes its answer. Its body ends here, long before the answer does."""
        tokenizer = self._model.tokenizer
        async with read_body(request) as raw:
            body = await self._reader.parse(raw, EmbeddingRequest, client_of(request), self._model.names)
            state = task_state(self._link, "embed")
            pooled = await self._long_work.run(
                client_of(request).id, len(raw), lambda: tokenize_embedding(body, tokenizer, state)
            )
        is_base64 = body.encoding_format == "base64"
        writer = EmbeddingWriter(body.dimensions, tokenizer.hidden_size, is_base64=is_base64, normalize=body.normalize)
        return pooled, writer
