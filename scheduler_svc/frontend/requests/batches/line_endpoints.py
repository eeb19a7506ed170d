"""A line of a batch becomes what the core is asked, and the core's deltas become the line's answer. No HTTP in here."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.formats import format_of
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.answers.openai_objects import to_json
from scheduler_svc.frontend.answers.prompt_part import prompts_of
from scheduler_svc.frontend.api_keys import ApiClient
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from scheduler_svc.frontend.requests.answer_context import answer_context
from scheduler_svc.frontend.requests.batches.embedding_lines import EmbeddingLines
from scheduler_svc.frontend.requests.batches.ready_line import PRIORITY, LineName, ReadyLine
from scheduler_svc.frontend.requests.batches.schemas import BATCH_ENDPOINTS
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.pooling_model import PoolingModel
from scheduler_svc.frontend.requests.reader import RequestReader, Tokenize
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest, GenerationRequest
from scheduler_svc.frontend.requests.tokenized_request import tokenize_completion
from scheduler_svc.frontend.text.tokenizer import Tokenizer

Body = TypeVar("Body", bound=GenerationRequest)


# Makes a line with this body ready. Raises ApiError and RequestRejected for what a single request is refused.
LineEndpoint = Callable[[ApiClient, LineName, bytes], Awaitable[ReadyLine]]


def line_endpoints(
    link: CoreLink, reader: RequestReader, style: ChatStyle, model: str, embedder: PoolingModel
) -> Mapping[str, LineEndpoint]:
    """How lines of each of `BATCH_ENDPOINTS` are made ready.

    Args:
        model: its name in answers.
        embedder: the model that embeds.
    """
    generating = _GeneratingLines(reader, style, model)
    endpoints = {
        "/v1/chat/completions": generating.chat,
        "/v1/completions": generating.completion,
        "/v1/embeddings": EmbeddingLines(link, reader, embedder).embedding,
    }
    assert tuple(endpoints) == BATCH_ENDPOINTS, endpoints
    return endpoints


class _GeneratingLines:
    """Lines that ask for texts."""

    def __init__(self, reader: RequestReader, style: ChatStyle, model: str) -> None:
        self._reader = reader
        self._tokenize_chat = partial(tokenize_chat, style=style)
        self._model = model

    async def chat(self, client: ApiClient, name: LineName, body: bytes) -> ReadyLine:
        """A conversation."""
        return await self._ready("chat", client, name, body, ChatRequest, self._tokenize_chat)

    async def completion(self, client: ApiClient, name: LineName, body: bytes) -> ReadyLine:
        """One prompt or several."""
        return await self._ready("completion", client, name, body, CompletionRequest, tokenize_completion)

    async def _ready(
        self,
        kind: Literal["chat", "completion"],
        client: ApiClient,
        name: LineName,
        raw: bytes,
        schema: type[Body],
        tokenize: Tokenize[Body],
    ) -> ReadyLine:
        body, tokenized = await self._reader.read(raw, schema, tokenize, client)
        if body.stream:
            raise ApiError(400, "A batch has no streams: leave 'stream' out.", code="invalid_value", param="stream")
        tokenized = replace(
            tokenized,
            request_id=name.request_id("chatcmpl" if kind == "chat" else "cmpl"),
            is_resumable=True,
            priority=body.priority if "priority" in body.model_fields_set else PRIORITY,
        )
        context = answer_context(kind, tokenized, body, self._model)
        tokenizer = self._reader.tokenizer
        submits = tokenized.submits(client, context.encode())
        spec = AnswerSpec(
            tokenized.request_id,
            context,
            sum(map(len, tokenized.prompts)),
            Position.start(context.num_choices),
            await prompts_of(context, [submit.prompt for submit in submits], tokenizer),
        )
        return ReadyLine(client, tokenized.request_id, tuple(submits), partial(_generated, tokenizer, spec))


async def _generated(tokenizer: Tokenizer, spec: AnswerSpec, queue: DeltaQueue) -> bytes:
    generation = Generation(queue, tokenizer, spec)
    with generation:
        choices = await generation.whole()
    whole = format_of(spec.answer_id, spec.context).whole(choices, generation.usage, generation.model)
    return to_json(whole)
