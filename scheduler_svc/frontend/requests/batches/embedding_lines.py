"""Lines of a batch that ask for embeddings."""

from dataclasses import dataclass, replace

from scheduler_svc.frontend.answers.embedding_json import EmbeddingWriter
from scheduler_svc.frontend.answers.pooled import PooledAnswer
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.requests.batches.ready_line import PRIORITY, LineName, ReadyLine
from scheduler_svc.frontend.requests.embedding import tokenize_embedding
from scheduler_svc.frontend.requests.pooled_schemas import EmbeddingRequest
from scheduler_svc.frontend.requests.pooling_model import PoolingModel, task_state
from scheduler_svc.frontend.requests.reader import RequestReader


class EmbeddingLines:
    """Makes them ready.

    Args:
        model: that embeds.
    """

    def __init__(self, link: CoreLink, reader: RequestReader, model: PoolingModel) -> None:
        self._link = link
        self._reader = reader
        self._model = model

    async def embedding(self, client: ApiClient, name: LineName, raw: bytes) -> ReadyLine:
        """A vector for each input."""
        tokenizer = self._model.tokenizer
        body = await self._reader.parse(raw, EmbeddingRequest, client, self._model.names)
        state = task_state(self._link, "embed")
        pooled = await self._reader.long_work(client.id, len(raw), lambda: tokenize_embedding(body, tokenizer, state))
        priority = body.priority if "priority" in body.model_fields_set else PRIORITY
        pooled = replace(pooled, request_id=name.request_id("embd"), priority=priority)
        writer = EmbeddingWriter(
            body.dimensions,
            tokenizer.hidden_size,
            is_base64=body.encoding_format == "base64",
            normalize=body.normalize,
        )
        written = _Written(writer, pooled.request_id, len(pooled.prompts), pooled.num_tokens, self._model.names[0])
        submits = tuple(pooled.submits(client))
        return ReadyLine(client, pooled.request_id, submits, written.answer, is_resumable=False)


@dataclass(frozen=True)
class _Written:
    """How an answer is written."""

    writer: EmbeddingWriter
    answer_id: str
    num_inputs: int
    num_tokens: int
    model: str

    async def answer(self, queue: DeltaQueue) -> bytes:
        """The answer's JSON."""
        with PooledAnswer(queue, self.answer_id, self.num_inputs, self.num_tokens) as pooled:
            return b"".join(await self.writer.write(pooled, self.model))
