"""The answer of /v1/embeddings, written vector by vector as these come: whole, it may have a hundred megabytes."""

import asyncio
import base64
import time
from collections import deque

import numpy as np

from common.errors import RequestRejected
from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.answers.pooled import FloatArray, PooledAnswer, embedding, short_floats
from scheduler_svc.frontend.answers.pooled_objects import Embedding, EmbeddingList

BYTES_AT_ONCE = 2**17
EMPTY_DATA = b'"data":['  # texts in JSON have no such quotes


class EmbeddingWriter:
    """Writes what a request asked for.

    Args:
        dimensions: of each vector; None for all that the model gives.
        hidden_size: values that it gives, 0 if that is not known.
    """

    def __init__(self, dimensions: int | None, hidden_size: int, *, is_base64: bool, normalize: bool) -> None:
        self._dimensions = dimensions
        self._hidden_size = hidden_size
        self._is_base64 = is_base64
        self._normalize = normalize

    async def write(self, answer: PooledAnswer, model: str) -> list[bytes]:
        """The whole answer in parts. Raises RequestRejected as `PooledAnswer.results` does, or if the executors have
        another model than this frontend."""
        vectors = deque([b""] * answer.num_inputs)
        async for number, hidden in answer.results():
            vectors[number] = self._vector(number, hidden)
        created = int(time.time())
        envelope = to_json(EmbeddingList(answer.answer_id, created, model, [], answer.usage))
        before, empty, behind = envelope.partition(EMPTY_DATA)
        return [before + empty, *await _joined(vectors), behind]

    def _vector(self, number: int, hidden: FloatArray) -> bytes:
        if len(hidden) != (self._hidden_size or len(hidden)) or len(hidden) < (self._dimensions or 1):
            message = f"an executor's embedding has {len(hidden)} values, this frontend's model {self._hidden_size}"
            raise RequestRejected(message, "internal_error")
        vector = embedding(hidden, self._dimensions, normalize=self._normalize)
        if self._is_base64:
            return to_json(Embedding(number, base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()))
        return to_json(Embedding(number, short_floats(vector)))


async def _joined(vectors: deque[bytes]) -> list[bytes]:
    """The vectors with commas between them, many in each part; each is let go when it is there, or all would be held
    twice. Others have their turns while it works."""
    parts: list[bytes] = []
    some: list[bytes] = []
    num_bytes = 0
    while vectors:
        some.append(vectors.popleft())
        num_bytes += len(some[-1])
        if num_bytes >= BYTES_AT_ONCE:
            parts.append(b",".join(some))
            some, num_bytes = [b""], 0
            await asyncio.sleep(0)
    return [*parts, b",".join(some)] if len(some) > 1 or not parts else parts
