"""OpenAI's endpoints that generate: completions and chats."""

from functools import partial
from typing import Literal, TypeVar

from fastapi import APIRouter, Request, Response

from scheduler_svc.frontend.answers.events import ChunkEvents
from scheduler_svc.frontend.answers.formats import format_of
from scheduler_svc.frontend.answers.generation import Generation
from scheduler_svc.frontend.http.json_body import read_body
from scheduler_svc.frontend.http.permissions import client_of
from scheduler_svc.frontend.http.plain_answers import ANSWER, ANSWER_ID, IS_SUBMITTED, REQUEST_ID_HEADER, json_response
from scheduler_svc.frontend.http.streaming import EventStream, unless_disconnected
from scheduler_svc.frontend.link.core_link import CoreLink
from scheduler_svc.frontend.requests.answer_context import answer_context
from scheduler_svc.frontend.requests.chat import tokenize_chat
from scheduler_svc.frontend.requests.chat_style import ChatStyle
from scheduler_svc.frontend.requests.generating import open_generation
from scheduler_svc.frontend.requests.reader import RequestReader, Tokenize
from scheduler_svc.frontend.requests.schemas import ChatRequest, CompletionRequest, GenerationRequest
from scheduler_svc.frontend.requests.tokenized_request import tokenize_completion
from scheduler_svc.frontend.tracing.notes import answers, asked

Body = TypeVar("Body", bound=GenerationRequest)


class GenerateApi:
    """POST /v1/completions and /v1/chat/completions.

    Args:
        model: its name in answers.
        keep_alive_s: seconds of silence of a stream before a comment.
    """

    def __init__(
        self, link: CoreLink, reader: RequestReader, style: ChatStyle, *, model: str, keep_alive_s: float
    ) -> None:
        self._link = link
        self._reader = reader
        self._tokenize_chat = partial(tokenize_chat, style=style)
        self._model = model
        self._keep_alive_s = keep_alive_s
        self.router = APIRouter()
        self.router.post("/v1/completions", response_model=None)(self.completions)
        self.router.post("/v1/chat/completions", response_model=None)(self.chat_completions)

    async def completions(self, request: Request) -> Response:
        """Continue one prompt or several."""
        return await self._answer(
            request, *await self._open("completion", request, CompletionRequest, tokenize_completion)
        )

    async def chat_completions(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._answer(request, *await self._open("chat", request, ChatRequest, self._tokenize_chat))

    async def _open(
        self,
        kind: Literal["completion", "chat"],
        request: Request,
        schema: type[Body],
        tokenize: Tokenize[Body],
    ) -> tuple[Generation, bool]:
        """The answer to a request, and whether it streams. Its body ends here, long before the answer does."""
        client = client_of(request)
        async with read_body(request) as raw:
            body, tokenized = await self._reader.read(raw, schema, tokenize, client, request.scope)
            request.scope[ANSWER_ID] = tokenized.request_id
            context = asked(request.scope, body, tokenized, answer_context(kind, tokenized, body, self._model))
            generation = await open_generation(self._link, self._reader.tokenizer, tokenized, context, client)
        request.scope[ANSWER] = generation
        answers(request.scope, generation, client.id)
        return generation, body.stream

    async def _answer(self, request: Request, generation: Generation, streams: bool) -> Response:
        spec = generation.spec
        form = format_of(spec.answer_id, spec.context)
        if streams:
            events = ChunkEvents(form, spec.position, has_ids=spec.context.is_resumable)
            return EventStream(generation, events, keep_alive_s=self._keep_alive_s)
        request.scope[IS_SUBMITTED] = True
        with generation:
            choices = await unless_disconnected(request.receive, generation.whole())
        whole = form.whole(choices, generation.usage, generation.model)
        return json_response(whole, {REQUEST_ID_HEADER: spec.answer_id})
